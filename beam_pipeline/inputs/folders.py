"""Finds files below a folder or behind a glob, on this machine or in a store."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterator

from apache_beam.io.filesystem import FileSystem

from imageshards import storage
from imageshards.errors import UserError
from imageshards.storage import is_local

# Path, size in bytes or why it is passed over, modification time in ns.
Found = tuple[str, "int | Skipped", int]

_MAGIC = re.compile(r"[*?\[]")
_RESOURCE_FORKS = "__MACOSX"  # what macOS adds to archives; looks like a class folder
_Identity = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A file that was passed over, and why."""

    reason: str


def printable(text: str) -> str:
    """File names may hold bytes that are no text; keys and labels are text."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_glob(path: str) -> bool:
    """Whether a path is a pattern; `photos [2020]` is a folder if there is one of that name."""
    return bool(_MAGIC.search(path)) and not (is_local(path) and os.path.lexists(path))


def glob_root(pattern: str) -> str:
    """The folder above everything that a pattern can match."""
    above, slash, _ = _MAGIC.split(pattern)[0].rpartition("/")
    return above or slash or "."


def subfolders(path: str) -> list[tuple[str, str]]:
    """(name, path) of the folders in a folder, by name, without hidden ones."""
    if is_local(path):
        found = [(entry.name, entry.path) for entry in _entries(path) if _is_dir(entry)]
    else:
        found = [(entry.name, entry.path) for entry in _stored(path) if entry.is_folder]
    return [(name, below) for name, below in found if name[:1] != "." and name != _RESOURCE_FORKS]


def files_beside(path: str) -> Iterator[Skipped]:
    """The files of a folder that are in none of its folders."""
    if is_local(path):
        found = [(entry.name, _is_dir(entry)) for entry in _entries(path)]
    else:
        found = [(entry.name, entry.is_folder) for entry in _stored(path)]
    for name, is_folder in found:
        if name.startswith("."):
            yield Skipped("hidden")
        elif not is_folder:
            yield Skipped("outside_class_folders")


def _stored(path: str) -> list[storage.Entry]:
    """One level of a folder in a store."""
    try:
        entries = storage.list_folder(path)
    except OSError as e:
        raise _not_listed(path, e) from e
    if not entries:
        raise UserError(f"--input {path!r} holds nothing; expected a folder, glob or manifest.")
    return entries


def _not_listed(path: str, e: OSError) -> UserError:
    return UserError(
        f"--input {path!r} cannot be listed ({e.strerror or e}); fix the path or its permissions."
    )


def files_below(path: str) -> Iterator[Found]:
    """Every file below a folder, ordered by path."""
    if is_local(path):
        return _walk(path, _above(path), None)
    return _found_there(path, storage.files_below(path))


def files_matching(pattern: str) -> Iterator[Found]:
    """Every file that matches a glob, as Beam reads globs, ordered by path."""
    if is_local(pattern):
        yield from _matching_here(pattern)
        return
    matches = re.compile(FileSystem.translate_pattern(pattern)).match
    # A store is asked for no more than the names that begin as the pattern does.
    found = storage.files_from(_MAGIC.split(pattern)[0])
    yield from (file for file in _found_there(pattern, found) if matches(file[0]))


def _found_there(path: str, found: Iterator[storage.Stat]) -> Iterator[Found]:
    try:
        for file in found:
            yield file.path, file.size_bytes, file.mtime_ns
    except OSError as e:
        raise _not_listed(path, e) from e


def _matching_here(pattern: str) -> Iterator[Found]:
    # Beam's own walk does not follow links to folders, and drops links to nothing unseen.
    root = glob_root(pattern)
    below = pattern.removeprefix(root).lstrip("/")
    matches = re.compile(FileSystem.translate_pattern(os.path.join(root, below))).match
    depth = None if "**" in below else below.count("/")
    for found in _walk(root, _above(root), depth):
        if matches(found[0]):
            yield found


def _above(path: str) -> frozenset[_Identity]:
    """A folder and those above it: a link to one of them goes round in a circle."""
    found: set[_Identity | None] = set()
    for way in (os.path.abspath(path), os.path.realpath(path)):
        here = pathlib.Path(way)
        found.update(map(_identity, [here, *here.parents]))
    return frozenset(filter(None, found))


def _identity(path: str | pathlib.Path) -> _Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _walk(path: str, above: frozenset[_Identity], depth: int | None) -> Iterator[Found]:
    """Files below a folder; `depth` is how many levels of folders are entered, None all."""
    for entry in _entries(path):
        if not _is_dir(entry):
            yield _file(entry)
        elif entry.name.startswith("."):
            yield entry.path, Skipped("hidden"), 0
        elif depth == 0:
            yield entry.path, Skipped("directory"), 0
        else:
            here = _identity(entry.path)
            if here in above:
                yield entry.path, Skipped("link_to_a_folder_above"), 0
            else:
                inside = above if here is None else above | {here}
                yield from _walk(entry.path, inside, None if depth is None else depth - 1)


def _file(entry: os.DirEntry[str]) -> Found:
    """What is not a folder; what cannot be looked at is listed, so that it is quarantined."""
    try:
        if entry.is_file():
            status = entry.stat()
            return entry.path, status.st_size, status.st_mtime_ns
    except OSError:  # gone since it was listed, or a link that leads nowhere
        return entry.path, -1, 0
    if entry.is_symlink() and not os.path.exists(entry.path):
        return entry.path, -1, 0
    return entry.path, Skipped("special_file"), 0


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda e: e.name)
    except FileNotFoundError:
        raise UserError(
            f"--input {path!r} does not exist; expected a folder, glob or manifest."
        ) from None
    except NotADirectoryError:
        raise UserError(
            f"--input {path!r} is a file, not a folder; expected a folder, or a manifest named "
            ".csv, .jsonl or .parquet."
        ) from None
    except OSError as e:
        raise UserError(
            f"--input {path!r} cannot be listed ({e.strerror}); fix its permissions."
        ) from e
