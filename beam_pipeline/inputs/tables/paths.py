"""Finds the picture of a row of an image table, and pictures that a template would find."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import unicodedata
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from beam_pipeline.inputs.tables import cells
from beam_pipeline.inputs.tables.cells import shown
from beam_pipeline.inputs.tables.roles import TableSchema
from beam_pipeline.option_texts import invalid
from beam_pipeline.planning.refs import HOW_PATHS_ARE_READ, MISSING, ImageRef, why_missing
from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.images.options import EXTENSIONS
from imageshards.tables import Row
from imageshards.template import fields, fill
from imageshards.text import counted

# An address of a store or a web server. Any different text is a path of this machine.
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
# Files below the folder of a table that are compared with its cells.
_MOST_FILES = 200_000


def folder_of(table: str, image_root: str | None) -> str:
    """Returns the folder to which paths in a table are relative: its own, or `image_root`."""
    folder = image_root or os.path.dirname(table)
    return os.path.abspath(folder) if storage.is_local(folder) else folder


def image_place(where: str, folder: str, image: str, any_path: bool) -> ImageRef:
    """Returns a reference to a row's image, with the path in the row as its key."""
    # Systems store é as one character (NFC) or as e and an accent (NFD), and the table may have
    # either form. Windows writes backslashes, which are ordinary characters of a name elsewhere.
    names = image, unicodedata.normalize("NFC", image), unicodedata.normalize("NFD", image)
    forms = [(image, form) for form in dict.fromkeys(names)]
    if "\\" in image and not _ADDRESS.match(image):
        slashed = image.replace("\\", "/")
        forms.append((slashed, slashed))
    missing = ImageRef(image, _uri(where, folder, image, any_path), None, mtime_ns=MISSING)
    for key, form in forms:
        ref = ImageRef(key, _uri(where, folder, form, any_path), None)
        if not storage.is_local(ref.uri):
            return ref
        try:
            status = os.stat(ref.uri)
        # A missing file is quarantined, with the reason, when it is read.
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError):
            return ref
        return ref._replace(size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)
    return missing


def _uri(where: str, folder: str, image: str, any_path: bool) -> str:
    """Returns the path or address of a row's image; raises `UserError` if it is not allowed."""
    path = image
    # Beam has no file system for file:// addresses.
    if image.lower().startswith("file:///"):
        path = urllib.parse.unquote(image[len("file://") :])
    elif _ADDRESS.match(image):
        return image
    elif not storage.is_local(folder) and not os.path.isabs(image):
        return storage.join(folder, image)
    # The author of a table could otherwise copy any file of this machine into `quarantine/`. `..`
    # is resolved before the system follows a symbolic link, so the checked path is the opened path.
    path = os.path.normpath(os.path.join(folder, path))
    # The table may name its folder with or without symbolic links.
    roots = (folder, os.path.realpath(folder)) if storage.is_local(folder) else ()
    if any_path or any(path.startswith(root.rstrip("/") + "/") for root in roots):
        return path
    trusted = Arg("allow_any_path", True)
    raise UserError(
        f"{where} names the image {shown(image)}, which is {path!r}, outside of the folder "
        f"{folder!r}",
        expected="a path below that folder, or an address",
        remedy="name the folder above the images by " + Arg("image_root") + ", or, if you trust a "
        "table, say " + trusted,
    )


def check_found(path: str, rows: Sequence[Row], schema: TableSchema) -> None:
    """Refuses a table if no image of its first rows is found, but would be found by a template."""
    first: ImageRef | None = None
    folder = folder_of(path, schema.image_root)
    for where, row in rows:
        # The rows are refused with a better sentence when they are listed.
        with contextlib.suppress(ValueError, UserError):
            texts = {name: cells.cell_text(cell) or "" for name, cell in row.items()}
            image = fill(schema.template or f"{{{schema.image}}}", texts)
            ref = image_place(where, folder, image, schema.any_path)
            if ref.mtime_ns != MISSING:
                return
            first = first or ref
    template = proposed_template(folder, [row for _, row in rows]) if first else ""
    if first and template:
        received = f"{counted(len(rows), 'image')} in its first rows, and none of them was found, "
        received += f"such as {why_missing(first.uri)}"
        remedy = HOW_PATHS_ARE_READ + ", or say " + Arg("image_path", template)
        raise invalid("input", received, remedy=remedy)


def proposed_template(folder: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the template that finds most pictures of some rows below a folder; "" without one.

    A picture's name is the cell of some column, with or without the ending of a picture. A folder
    above it may be the cell of a different column, such as the label.
    """
    if not storage.is_local(folder):
        return ""
    texts = [{name: str(cell) for name, cell in row.items() if _names_file(cell)} for row in rows]
    known: dict[str, dict[str, Mapping[str, str]]] = {}
    for cells_of in texts:
        for name, text in cells_of.items():
            known.setdefault(text, {})[name] = cells_of
    best, most = "", 0
    tried: set[str] = set()
    for picture in itertools.islice(_pictures(folder), _MOST_FILES):
        for template in _templates(picture, known):
            if template in tried:
                continue
            tried.add(template)
            images = [fill(template, row) for row in texts if row.keys() >= {*fields(template)}]
            found = [image for image in images if os.path.exists(os.path.join(folder, image))]
            # A label may be the name of a picture, too, but one label has many rows.
            if 2 * len(found) >= len(rows) and len({*found}) > most:
                best, most = template, len({*found})
        if most == len(rows):
            break
    return best


def _names_file(cell: Any) -> bool:
    return isinstance(cell, str | int) and cell != "" and "\0" not in str(cell)


def _pictures(folder: str) -> Iterator[str]:
    """Yields the paths of pictures below a folder, relative to the folder."""
    for entry in storage.walk(
        folder, enters=lambda path: not storage.name_of(path).startswith(".")
    ):
        if entry.kind == "file" and entry.path.lower().endswith(EXTENSIONS):
            yield entry.path[len(folder.rstrip("/")) + 1 :]


def _templates(path: str, known: Mapping[str, Mapping[str, Mapping[str, str]]]) -> Iterator[str]:
    """Yields the templates of a path whose end is a known cell; `known` is cell → column → row."""
    for end in (path, os.path.splitext(path)[0]):
        parts = end.split("/")
        for number in range(len(parts)):
            for column, row in known.get("/".join(parts[number:]), {}).items():
                if {"{", "}"} & {*path, *"".join(row)}:
                    continue
                columns = {text: f"{{{name}}}" for name, text in row.items() if name != column}
                above = [columns.get(part, part) for part in parts[:number]]
                yield "/".join([*above, f"{{{column}}}{path[len(end) :]}"])
