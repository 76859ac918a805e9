"""What is wrong with the path of an image that is not there, in words that say how to mend it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from beam_pipeline.planning.refs import MISSING, ImageRef
from imageshards.errors import UserError
from imageshards.storage import is_local
from imageshards.text import counted

HOW_PATHS_ARE_READ = (
    "paths in an image table are relative to the folder of the table's file: fix the paths, or "
    "move the table"
)


_OF_WINDOWS = re.compile(r"[A-Za-z]:(\\|$)")


class Missing(NamedTuple):
    """How many images were missing when they were listed, and the first place of one."""

    num_images: int = 0
    first: str = ""


def missing_of(refs: Iterable[ImageRef]) -> Missing:
    """Counts the images that the listing did not find."""
    return add_missing(Missing(1, ref.uri) for ref in refs if ref.mtime_ns == MISSING)


def add_missing(found: Iterable[Missing]) -> Missing:
    """The sum of some counts."""
    some = [each for each in found if each.num_images]
    return Missing(
        sum(each.num_images for each in some), min((each.first for each in some), default="")
    )


def check_some_exist(num_images: int, missing: Missing) -> None:
    """Ends a build whose paths are all wrong before it begins its work.

    Raises:
        UserError: All images are missing.
    """
    if num_images and missing.num_images == num_images:
        raise UserError(
            argument="input",
            received=f"{counted(num_images, 'image')}, and none of them was found, such as "
            f"{why_missing(missing.first)}",
            remedy=HOW_PATHS_ARE_READ,
        )


def why_missing(uri: str) -> str:
    """Returns a place that is not there, and of a path of this machine where it ceases to exist."""
    if not is_local(uri):
        return repr(uri)
    folder = os.path.dirname(uri)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    first, *behind = os.path.relpath(uri, folder).split("/")
    if _OF_WINDOWS.match(first):
        return f"{uri!r} ({first!r} is an absolute path of Windows: write it relative to the table)"
    return f"{uri!r} (the folder {folder!r} has no {'folder ' if behind else ''}{first!r})"
