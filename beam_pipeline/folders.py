"""Finds files below a folder or behind a glob, on this machine or in a store."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

from apache_beam.io.filesystems import FileSystems

from beam_pipeline.errors import UserError
from beam_pipeline.reading import is_local

# Path, size in bytes or why it is passed over, modification time in ns.
Found = tuple[str, "int | Skipped", int]


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A file that was passed over, and why."""

    reason: str


def printable(text: str) -> str:
    """File names may hold bytes that are no text; keys and labels are text."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def subfolders(path: str) -> list[tuple[str, str]]:
    try:
        with os.scandir(path) as entries:
            return sorted((e.name, e.path) for e in entries if e.is_dir() and e.name[0] != ".")
    except FileNotFoundError:
        raise UserError(
            f"--input {path!r} does not exist; expected a folder, glob or manifest."
        ) from None
    except NotADirectoryError:
        raise UserError(
            f"--input {path!r} is a file, not a folder; expected a folder, or a manifest named "
            ".csv, "
            ".jsonl or .parquet."
        ) from None
    except OSError as e:
        raise UserError(
            f"--input {path!r} cannot be listed ({e.strerror}); mend its rights."
        ) from e


def files_beside(path: str) -> Iterator[Skipped]:
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                yield Skipped("hidden")
            elif not entry.is_dir():
                yield Skipped("outside_class_folders")


def files_below(path: str) -> Iterator[Found]:
    """Every file below a folder, ordered by path."""
    if is_local(path):
        return _walk(path, frozenset())
    return files_matching(path.rstrip("/") + "/**")


def files_matching(pattern: str) -> Iterator[Found]:
    """Every file that matches a glob, ordered by path."""
    try:
        found = FileSystems.match([pattern])[0].metadata_list
    except Exception as e:  # every store has errors of its own
        raise UserError(f"--input {pattern!r} cannot be listed ({e}).") from e
    for metadata in sorted(found, key=lambda m: m.path):
        if is_local(metadata.path) and os.path.isdir(metadata.path):
            yield metadata.path, Skipped("directory"), 0
        else:
            mtime_ns = int((metadata.last_updated_in_seconds or 0) * 1e9)
            yield metadata.path, metadata.size_in_bytes, mtime_ns


def _walk(path: str, above: frozenset[tuple[int, int]]) -> Iterator[Found]:
    try:
        entries = sorted(os.scandir(path), key=lambda e: e.name)
    except OSError as e:
        raise UserError(
            f"--input: {path!r} cannot be listed ({e.strerror}); mend its rights."
        ) from e
    for entry in entries:
        if entry.is_dir():
            status = entry.stat()
            here = (status.st_dev, status.st_ino)
            if entry.name.startswith("."):
                yield entry.path, Skipped("hidden"), 0
            elif here in above:
                yield entry.path, Skipped("link_to_a_folder_above"), 0
            else:
                yield from _walk(entry.path, above | {here})
        elif entry.is_file():
            status = entry.stat()
            yield entry.path, status.st_size, status.st_mtime_ns
        elif entry.is_symlink():
            yield entry.path, -1, 0  # broken: listed, so that it is quarantined, not lost
        else:
            yield entry.path, Skipped("special_file"), 0
