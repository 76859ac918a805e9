"""Checks labels, numbers the classes, and explains why no image was found."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from beam_pipeline.option_texts import invalid
from beam_pipeline.planning.refs import MISSING, ImageRef, Label, RefBatch, names_of
from imageshards.errors import UserError
from imageshards.manifest import NONE, ONE, SEVERAL
from imageshards.storage import is_local
from imageshards.text import about_look_alikes, class_sort_key, counted


class ClassOrder(NamedTuple):
    """Order of the classes, which decides their ids."""

    # The order that the user gave. Classes without an image keep their id.
    class_names: tuple[str, ...] | None = None
    # The order of the dataset that is being rebuilt. New labels follow, sorted by `class_sort_key`,
    # so that no old class gets a new id.
    pinned: tuple[str, ...] = ()

    def names(self, labels: Iterable[str]) -> list[str]:
        """Returns the class names by id, for labels that `distinct_labels` has checked."""
        if self.class_names is not None:
            return list(self.class_names)
        new = set(labels).difference(self.pinned)
        return [*self.pinned, *sorted(new, key=class_sort_key)]


def distinct_labels(batch: RefBatch, class_names: Sequence[str] | None) -> set[str]:
    """Returns the labels of a batch, after checking each once.

    Raises `UserError` with the key of an image if a label is blank, has a line break, is no valid
    text or is missing in `class_names`.
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
            raise invalid(
                "class_names",
                f"no {label!r}{alike}, the label of {key!r}",
                f"one of {known}{more}",
                "add the class or leave the image out",
            )
    return set(keys)


def label_kind(label: Label) -> str:
    """Returns how many labels an image with this label has: `ONE`, `NONE` or `SEVERAL`."""
    return ONE if isinstance(label, str) else NONE if label is None else SEVERAL


def is_text(text: str) -> bool:
    # JSON, and bytes that are no UTF-8, bring lone surrogates, which UTF-8 cannot encode.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


HOW_PATHS_ARE_READ = (
    "paths in an image table are relative to the folder of the table's file: fix the paths, or "
    "move the table"
)
_WINDOWS_DRIVE = re.compile(r"[A-Za-z]:(\\|$)")


class Missing(NamedTuple):
    """Number of images that were missing when they were listed, and the path of the first."""

    num_images: int = 0
    first: str = ""


def missing_of(refs: Iterable[ImageRef]) -> Missing:
    return add_missing(Missing(1, ref.uri) for ref in refs if ref.mtime_ns == MISSING)


def add_missing(found: Iterable[Missing]) -> Missing:
    some = [each for each in found if each.num_images]
    first = min((each.first for each in some), default="")
    return Missing(sum(each.num_images for each in some), first)


def check_some_exist(num_images: int, missing: Missing) -> None:
    """Raises `UserError` if all images are missing, before a build begins its work."""
    if num_images and missing.num_images == num_images:
        received = f"{counted(num_images, 'image')}, and none of them was found, such as "
        received += why_missing(missing.first)
        raise invalid("input", received, remedy=HOW_PATHS_ARE_READ)


def why_missing(uri: str) -> str:
    """Returns the path for an error; for a local path also the first part that does not exist."""
    if not is_local(uri):
        return repr(uri)
    folder = os.path.dirname(uri)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    first, *behind = os.path.relpath(uri, folder).split("/")
    if _WINDOWS_DRIVE.match(first):
        return f"{uri!r} ({first!r} is an absolute path of Windows: write it relative to the table)"
    return f"{uri!r} (the folder {folder!r} has no {'folder ' if behind else ''}{first!r})"
