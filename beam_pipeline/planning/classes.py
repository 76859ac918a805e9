"""Checks labels and numbers the classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from beam_pipeline.planning.refs import Label, RefBatch, names_of
from imageshards.errors import UserError
from imageshards.manifest import NONE, ONE, SEVERAL
from imageshards.text import about_look_alikes, class_sort_key


class ClassOrder(NamedTuple):
    """Order of the classes, which decides their ids.

    Attributes:
        class_names: Names in the order that the user gave. Classes without an image keep their id.
        pinned: Names in the order of the dataset that is being rebuilt. New labels follow, sorted
            by `class_sort_key`, so that no old class gets a new id.
    """

    class_names: tuple[str, ...] | None = None
    pinned: tuple[str, ...] = ()

    def names(self, labels: Iterable[str]) -> list[str]:
        """Returns the class names by id, for labels that `distinct_labels` has checked."""
        if self.class_names is not None:
            return list(self.class_names)
        new = set(labels).difference(self.pinned)
        return [*self.pinned, *sorted(new, key=class_sort_key)]


def distinct_labels(batch: RefBatch, class_names: Sequence[str] | None) -> set[str]:
    """Returns the labels of a batch, after checking each once.

    Raises:
        UserError: A label is blank, has a line break, is no valid text or is missing in
            `class_names`. The message names the label and the key of an image.
    """
    # Reversed, so that the error names the first image with the label.
    keys = {name: ref.key for ref in reversed(batch.refs) for name in names_of(ref.label)}
    for label, key in sorted(keys.items()):
        if not label.strip() or {"\n", "\r"} & set(label) or not is_text(label):
            problem = f"the label {label!r} of {key!r} cannot name a class"
            expected = "text on one line that is not blank"
            raise UserError(problem, expected=expected, remedy="rename it")
        if class_names is not None and label not in class_names:
            known = ", ".join(repr(name) for name in class_names[:5])
            more = ", …" if len(class_names) > 5 else ""
            alike = about_look_alikes(label, class_names)
            raise UserError(
                argument="class_names",
                received=f"no {label!r}{alike}, the label of {key!r}",
                expected=f"one of {known}{more}",
                remedy="add the class or leave the image out",
            )
    return set(keys)


def label_kind(label: Label) -> str:
    """Returns how many labels an image with this label has: `ONE`, `NONE` or `SEVERAL`."""
    return ONE if isinstance(label, str) else NONE if label is None else SEVERAL


def is_text(text: str) -> bool:
    """Returns whether a text can be written as UTF-8."""
    # JSON, and bytes that are no UTF-8, bring lone surrogates, which UTF-8 cannot encode.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
