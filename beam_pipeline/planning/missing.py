"""Counts images that were missing when they were listed, and explains why a path was not found."""

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
_WINDOWS_DRIVE = re.compile(r"[A-Za-z]:(\\|$)")


class Missing(NamedTuple):
    """Number of images that were missing when they were listed, and the path of the first."""

    num_images: int = 0
    first: str = ""


def missing_of(refs: Iterable[ImageRef]) -> Missing:
    """Counts the images that the listing did not find."""
    return add_missing(Missing(1, ref.uri) for ref in refs if ref.mtime_ns == MISSING)


def add_missing(found: Iterable[Missing]) -> Missing:
    """Returns the sum of several counts, with the smallest path."""
    some = [each for each in found if each.num_images]
    return Missing(
        sum(each.num_images for each in some), min((each.first for each in some), default="")
    )


def check_some_exist(num_images: int, missing: Missing) -> None:
    """Raises `UserError` if all images are missing, before a build begins its work."""
    if num_images and missing.num_images == num_images:
        received = f"{counted(num_images, 'image')}, and none of them was found, such as "
        received += why_missing(missing.first)
        raise UserError(argument="input", received=received, remedy=HOW_PATHS_ARE_READ)


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
