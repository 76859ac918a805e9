"""Finds files below a folder or behind a glob, on this machine or in a store."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterator

from apache_beam.io.filesystem import FileSystem
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.errors import UserError
from beam_pipeline.reading import is_local

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
    return [
        (entry.name, entry.path)
        for entry in _entries(path)
        if _is_dir(entry) and not entry.name.startswith(".") and entry.name != _RESOURCE_FORKS
    ]


def files_beside(path: str) -> Iterator[Skipped]:
    """The files of a folder that are in none of its folders."""
    for entry in _entries(path):
        if entry.name.startswith("."):
            yield Skipped("hidden")
        elif not _is_dir(entry):
            yield Skipped("outside_class_folders")


def files_below(path: str) -> Iterator[Found]:
    """Every file below a folder, ordered by path."""
    if is_local(path):
        return _walk(path, _above(path), None)
    return files_matching(path.rstrip("/") + "/**")


def files_matching(pattern: str) -> Iterator[Found]:
    """Every file that matches a glob, as Beam reads globs, ordered by path."""
    if is_local(pattern):
        yield from _matching_here(pattern)
        return
    try:
        found = FileSystems.match([pattern])[0].metadata_list
    except Exception as e:  # every store has errors of its own
        raise UserError(
            f"--input {pattern!r} cannot be listed ({e}); mend the path or its rights."
        ) from e
    for metadata in sorted(found, key=lambda m: m.path):
        if not metadata.path.endswith("/"):  # stores mark folders by such objects
            mtime_ns = int((metadata.last_updated_in_seconds or 0) * 1e9)
            yield metadata.path, metadata.size_in_bytes, mtime_ns


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
            f"--input {path!r} cannot be listed ({e.strerror}); mend its rights."
        ) from e
