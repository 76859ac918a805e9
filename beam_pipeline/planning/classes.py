"""Labels and class ids: which labels are accepted, and in which order classes are numbered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from beam_pipeline.planning.refs import RefBatch
from imageshards.errors import UserError


def class_order(
    labels: Iterable[str], class_names: Sequence[str] | None, pinned: Sequence[str]
) -> list[str]:
    """Class names by class id.

    Args:
        labels: Distinct labels of the data, in any order.
        class_names: Given order, taken as it is: classes without an image keep their id.
        pinned: Order of the data set being rebuilt; new labels follow, sorted by code
            point, so no old class is renumbered.

    Raises:
        UserError: A label is not among `class_names`, or there is none at all.
    """
    found = set(labels)
    if not found:
        raise UserError(
            "--input holds no image; expected files below it whose names end as --extensions says "
            "(.jpg, .png and others); convert HEIC and raw pictures to JPEG first."
        )
    if class_names is not None:
        unknown = sorted(found.difference(class_names))
        if unknown:
            raise UserError(_unknown_label(unknown[0], None, class_names))
        return list(class_names)
    return [*pinned, *sorted(found.difference(pinned))]


def names_by_label(classes: Sequence[str], first_label: int) -> list[str]:
    """What every label of a record stands for: where the first class is 1, 0 is a background.

    Args:
        classes: Class names by class id.
        first_label: The label of the first class, 0 or 1.
    """
    background = "background"
    while background in classes:
        background += "_"
    return [*[background] * first_label, *classes]


class ClassOrder(NamedTuple):
    """What gives the classes of a build their labels; args of `class_order`, `names_by_label`."""

    class_names: tuple[str, ...] | None = None
    pinned: tuple[str, ...] = ()
    first_label: int = 0

    def names(self, labels: Iterable[str]) -> list[str]:
        """Names by label, for the distinct labels of the data."""
        return names_by_label(class_order(labels, self.class_names, self.pinned), self.first_label)


def _unknown_label(label: str, key: str | None, class_names: Sequence[str]) -> str:
    """The sentence for a label outside `--class_names`, with the image `key` where known."""
    of_image = "" if key is None else f" of {key!r}"
    known = ", ".join(repr(name) for name in class_names[:5])
    more = ", …" if len(class_names) > 5 else ""
    return (
        f"--class_names does not hold the label {label!r}{of_image}; expected one of "
        f"{known}{more}; add the class or leave the image out."
    )


def check_classes(labels: Iterable[str], classes: Sequence[str], allow_one_class: bool) -> None:
    """Checks the number and the names of the classes.

    Args:
        labels: Distinct labels of the data.
        classes: Class names by class id.
        allow_one_class: Whether a single class is accepted.

    Raises:
        UserError: One class only, or a class whose name is blank or has a line break.
    """
    found = sorted(labels)
    if len(found) == 1 and not allow_one_class:
        raise UserError(
            f"--input holds one class only, {found[0]!r}; expected at least two "
            "(ROOT/<class>/*.jpg, or a --label_regex that captures the class); pass "
            "--allow_one_class if that is meant."
        )
    bad = [name for name in classes if not _can_name_a_class(name)]
    if bad:
        raise UserError(
            f"--input holds the label {bad[0]!r}; expected text on one line that is not blank; "
            "rename it."
        )


def _can_name_a_class(label: str) -> bool:
    return bool(label.strip()) and not {"\n", "\r"} & set(label) and is_text(label)


def distinct_labels(batch: RefBatch, class_names: Sequence[str] | None) -> set[str]:
    """The labels of a batch, each checked once.

    Raises:
        UserError: A blank label, one with a line break or bytes that are no text, or one
            outside `class_names`; names the label and an image's key.
    """
    keys = {ref.label: ref.key for ref in reversed(batch.refs)}
    unknown = keys.keys() - (keys if class_names is None else class_names)
    for label in sorted(keys):
        if not _can_name_a_class(label):
            raise UserError(
                f"the label {label!r} of {keys[label]!r} cannot name a class; expected text that "
                "is not blank and has no line break; rename it."
            )
        if label in unknown and class_names is not None:
            raise UserError(_unknown_label(label, keys[label], class_names))
    return set(keys)


def is_text(text: str) -> bool:
    """Whether it can be written: a lone surrogate, from JSON or bytes that are no UTF-8, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
