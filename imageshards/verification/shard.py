"""Checks of one shard: its bytes by their SHA-256, its records where these are not the right ones.

What records hold is not looked into while their checksum is right: they are what was built.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from imageshards import storage
from imageshards.manifest import File, Shard, shard_path
from imageshards.text import counted
from imageshards.tfrecord import RecordError, scan_file


class Problem(NamedTuple):
    """One thing that is wrong, as a sentence that names file, record and offset."""

    check: str
    message: str
    file: str | None = None
    record: int | None = None
    offset_bytes: int | None = None


@dataclasses.dataclass
class FileResult:
    """What was found in one file; one that could not be read has no `sha256`.

    Of a shard, `num_records` are the records that were found.
    """

    problems: list[Problem] = dataclasses.field(default_factory=list)
    num_records: int = 0
    num_bytes: int = 0
    sha256: str = ""


def check_file(path: str, name: str, entry: File | Shard) -> FileResult:
    """Compares the size and the SHA-256 of a file with its entry of the manifest."""
    expected = entry.num_bytes
    try:
        result = FileResult([], 0, *storage.sha256_of(path, expected))
    except OSError as e:
        return FileResult([_unreadable(name, e)])
    if result.num_bytes != expected:
        is_larger = result.num_bytes > expected
        size = f"more than {expected}" if is_larger else f"{result.num_bytes}"
        what = f"it has {size} bytes; the manifest says {expected}"
        result.problems.append(Problem("files", f"{name}: {what}.", name))
    if result.sha256 != entry.sha256:
        what = f"its SHA-256 is {result.sha256}; the manifest says {entry.sha256}"
        result.problems.append(Problem("checksums", f"{name}: {what}.", name))
    return result


def check_shard(directory: str, entry: Shard) -> FileResult:
    """Reads one shard whole and compares it with its entry of the manifest."""
    name, path = entry.name, shard_path(directory, entry.name)
    result = check_file(path, name, entry)
    if not result.problems:
        result.num_records = entry.num_records
    elif result.sha256:
        try:
            _check_records(entry, name, path, result)
        except OSError as e:
            result.problems.append(_unreadable(name, e))
    return result


def _unreadable(name: str, e: OSError) -> Problem:
    what = f"it could not be read ({e.strerror or e})"
    if isinstance(e, FileNotFoundError):
        what = "the manifest lists it, but it is missing"
    return Problem("files", f"{name}: {what}.", name)


def _check_records(entry: Shard, name: str, path: str, result: FileResult) -> None:
    for record in scan_file(path, entry.num_bytes):
        result.num_records += 1
        if isinstance(record, RecordError):
            number, offset = record.number, record.offset_bytes
            message = f"{name}, record {number} at byte {offset}: {record.reason}."
            result.problems.append(Problem("checksums", message, name, number, offset))
    if result.num_records != entry.num_records:
        held = counted(result.num_records, "record")
        message = f"{name}: it holds {held}; the manifest says {entry.num_records}."
        result.problems.append(Problem("records", message, name))
