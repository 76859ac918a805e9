"""Checks of one shard: its bytes by their SHA-256, its records where these are not the right ones.

What records hold is not looked into while their checksum is right: they are what was built.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from imageshards import storage
from imageshards.manifest import shard_name, shard_path
from imageshards.text import counted
from imageshards.tfrecord import RecordError, scan_file

_BUFFER_BYTES = 1 << 20


class Problem(NamedTuple):
    """One thing that is wrong, as a sentence that names file, record and offset."""

    check: str
    message: str
    file: str | None = None
    record: int | None = None
    offset_bytes: int | None = None


@dataclasses.dataclass
class ShardResult:
    """What was found in one shard; one that could not be read has no `sha256`."""

    problems: list[Problem] = dataclasses.field(default_factory=list)
    num_records: int = 0
    num_bytes: int = 0
    sha256: str = ""


def check_shard(directory: str, entry: Mapping[str, Any]) -> ShardResult:
    """Reads one shard whole and compares it with its entry of the manifest."""
    name, path = shard_name(entry), shard_path(directory, entry)
    try:
        return _checked(entry, name, path)
    except OSError as e:
        what = f"it could not be read ({e.strerror or e})"
        if isinstance(e, FileNotFoundError):
            what = "the manifest lists it, but it is missing"
        return ShardResult([Problem("files", f"{name}: {what}.", name)])


def _checked(entry: Mapping[str, Any], name: str, path: str) -> ShardResult:
    result, digest = ShardResult(num_records=entry["num_records"]), hashlib.sha256()

    def add(check: str, what: str) -> None:
        result.problems.append(Problem(check, f"{name}: {what}.", name))

    with storage.open_read(path) as file:
        while data := file.read(_BUFFER_BYTES):
            digest.update(data)
            result.num_bytes += len(data)
    result.sha256 = digest.hexdigest()
    if result.num_bytes != entry["num_bytes"]:
        add("files", f"it has {result.num_bytes} bytes; the manifest says {entry['num_bytes']}")
    if result.sha256 == entry["sha256"]:
        return result
    add("checksums", f"its SHA-256 is {result.sha256}; the manifest says {entry['sha256']}")
    result.num_records = 0
    for record in scan_file(path):
        result.num_records += 1
        if isinstance(record, RecordError):
            number, offset = record.number, record.offset_bytes
            message = f"{name}, record {number} at byte {offset}: {record.reason}."
            result.problems.append(Problem("checksums", message, name, number, offset))
    if result.num_records != entry["num_records"]:
        held = counted(result.num_records, "record")
        add("records", f"it holds {held}; the manifest says {entry['num_records']}")
    return result
