"""Finds the image of a table's row: a file below the table's folder, or an address."""

from __future__ import annotations

import os
import re
import unicodedata
import urllib.parse

from beam_pipeline.inputs.tables.cells import (
    shown,
)
from beam_pipeline.planning.refs import MISSING, ImageRef
from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.storage import is_local

# An address of a store or a web server. Any other text is a path of this machine.
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def image_place(where: str, folder: str, image: str, any_path: bool) -> ImageRef:
    """A reference to a row's image, with the path in the row as its key.

    Systems store é as one character (NFC) or as e and an accent (NFD), whatever the table has.
    Windows writes paths with backslashes, which elsewhere are characters of a name.
    """
    normal = () if image.isascii() else (unicodedata.normalize(f, image) for f in ("NFC", "NFD"))
    forms = [(image, form) for form in (image, *normal)]
    if "\\" in image and not _ADDRESS.match(image):
        slashed = image.replace("\\", "/")
        forms.append((slashed, slashed))
    missing = ImageRef(image, _uri(where, folder, image, any_path), None, mtime_ns=MISSING)
    for key, form in forms:
        uri = _uri(where, folder, form, any_path)
        size_bytes, mtime_ns = _stat(uri)
        if mtime_ns != MISSING:
            return ImageRef(key, uri, None, size_bytes=size_bytes, mtime_ns=mtime_ns)
    return missing


def _uri(where: str, folder: str, image: str, any_path: bool) -> str:
    """The absolute path or the address of a row's image.

    Raises:
        UserError: Its path leads out of the table's folder, and rows may not name `any_path`. Who
            wrote the table could otherwise copy any file of this machine into `quarantine/`.
    """
    path = image
    if image.lower().startswith("file:///"):  # Beam has no file system of that name
        path = urllib.parse.unquote(image[len("file://") :])
    elif _ADDRESS.match(image):
        return image
    elif not is_local(folder) and not os.path.isabs(image):
        return storage.join(folder, image)
    # `..` is resolved before the system follows a symbolic link, so that what is checked is opened.
    path = os.path.normpath(os.path.join(folder, path))
    if any_path or (is_local(folder) and _is_below(path, folder)):
        return path
    raise UserError(
        f"{where} names the image {shown(image)}, which is {path!r}, outside of the table's folder "
        f"{folder!r}",
        expected="a path below that folder, or an address",
        remedy="move the table above its images, or, if you trust the table, say "
        + Arg("allow_any_path", True),
    )


def _is_below(path: str, folder: str) -> bool:
    """Whether a path is below a folder, which it may name with or without symbolic links."""
    return any(
        path.startswith(root.rstrip("/") + "/") for root in (folder, os.path.realpath(folder))
    )


def _stat(uri: str) -> tuple[int, int]:
    if not is_local(uri):
        return -1, 0
    try:
        status = os.stat(uri)
    # Any of these is quarantined with the reason when it is read.
    except (FileNotFoundError, NotADirectoryError):
        return -1, MISSING
    except (OSError, ValueError):
        return -1, 0
    return status.st_size, status.st_mtime_ns
