"""Labels and class ids: which labels are accepted, and in which order classes are numbered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from beam_pipeline.planning.refs import Label, RefBatch, names_of
from imageshards.errors import UserError
from imageshards.manifest import NONE, ONE, SEVERAL
from imageshards.text import about_look_alikes, class_sort_key


class ClassOrder(NamedTuple):
    """What decides the ids of classes.

    Attributes:
        class_names: Given order, taken as it is: classes without an image keep their id.
        pinned: Order of the dataset being rebuilt; new labels follow, sorted by
            `class_sort_key`, so no old class is renumbered.
    """

    class_names: tuple[str, ...] | None = None
    pinned: tuple[str, ...] = ()

    def names(self, labels: Iterable[str]) -> list[str]:
        """Class names by id, for the distinct labels of the data, checked by `distinct_labels`."""
        if self.class_names is not None:
            return list(self.class_names)
        new = set(labels).difference(self.pinned)
        return [*self.pinned, *sorted(new, key=class_sort_key)]


def distinct_labels(batch: RefBatch, class_names: Sequence[str] | None) -> set[str]:
    """The labels of a batch, each checked once.

    Raises:
        UserError: A label that is blank, has a line break, is no text or is not one of
            `class_names`; names the label and the key of an image.
    """
    keys = {name: ref.key for ref in reversed(batch.refs) for name in names_of(ref.label)}
    for label, key in sorted(keys.items()):
        if not label.strip() or {"\n", "\r"} & set(label) or not is_text(label):
            raise UserError(
                f"the label {label!r} of {key!r} cannot name a class",
                expected="text on one line that is not blank",
                remedy="rename it",
            )
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
    """`ONE`, `NONE` or `SEVERAL`: how many labels images have of which this is one's."""
    return ONE if isinstance(label, str) else NONE if label is None else SEVERAL


def is_text(text: str) -> bool:
    """Whether it can be written: a lone surrogate, from JSON or bytes that are no UTF-8, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
