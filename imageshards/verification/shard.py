"""Checks of one shard: its bytes by their SHA-256, its records where these are not the right ones.

What records hold is not looked into while their checksum is right: they are what was built.
"""

from __future__ import annotations

import dataclasses
import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from imageshards import storage
from imageshards.errors import IndexDamageError
from imageshards.index import index_schema, read_shard_index
from imageshards.manifest import shard_name, shard_path
from imageshards.text import counted
from imageshards.tfrecord import Record, RecordError, scan_file

# Problems of one kind that are listed per shard; more are counted.
MAX_PROBLEMS = 5

_BUFFER_BYTES = 1 << 20
# What is known of a shard only when it was read.
_BY_READING = ("checksums", "records", "keys", "index")


class Problem(NamedTuple):
    """One thing that is wrong, as a sentence that names file, record and offset."""

    check: str
    message: str
    file: str | None = None
    record: int | None = None
    offset_bytes: int | None = None


class ShardTask(NamedTuple):
    """A shard to check: the data set, and the shard's entry of the manifest."""

    directory: str
    entry: Mapping[str, Any]


@dataclasses.dataclass
class ShardResult:
    """What was found in one shard.

    Attributes:
        key_hashes: 64 bits of every record's key, in the order of the records; equal ones are
            candidates for keys that are there twice.
        not_looked_at: Checks that could not be made, or not of all its records.
    """

    file: str
    problems: list[Problem] = dataclasses.field(default_factory=list)
    found: Counter[str] = dataclasses.field(default_factory=Counter)
    num_records: int = 0
    num_bytes: int = 0
    sha256: str = ""
    key_hashes: array[int] = dataclasses.field(default_factory=lambda: array("Q"))
    not_looked_at: tuple[str, ...] = ()

    @property
    def hidden(self) -> Counter[str]:
        """Problems that were found but, being too many, not listed."""
        return self.found - Counter(problem.check for problem in self.problems)

    def add(self, check: str, what: str, record: Record | RecordError | None = None) -> None:
        """Notes one problem of this shard; `what` has no full stop."""
        self.found[check] += 1
        if self.found[check] > MAX_PROBLEMS:
            return
        if record is None:
            self.problems.append(Problem(check, f"{self.file}: {what}.", self.file))
            return
        number, offset = record.number, record.offset_bytes
        message = f"{self.file}, record {number} at byte {offset}: {what}."
        self.problems.append(Problem(check, message, self.file, number, offset))


def check_shard(task: ShardTask) -> ShardResult:
    """Reads one shard whole and compares it with its entry."""
    entry = task.entry
    result = ShardResult(shard_name(entry), num_records=entry["num_records"])
    path = shard_path(task.directory, entry)
    try:
        digest = hashlib.sha256()
        with storage.open_read(path) as file:
            while data := file.read(_BUFFER_BYTES):
                digest.update(data)
                result.num_bytes += len(data)
        result.sha256 = digest.hexdigest()
        if result.num_bytes != entry["num_bytes"]:
            what = f"it has {result.num_bytes} bytes; the manifest says {entry['num_bytes']}"
            result.add("files", what)
        if result.sha256 != entry["sha256"]:
            _scan(entry, result, path)
    except OSError as e:
        missing = isinstance(e, FileNotFoundError)
        reason = "the manifest lists it, but it is missing"
        result.add("files", reason if missing else f"it could not be read ({e.strerror or e})")
        result.num_records, result.not_looked_at = 0, _BY_READING
        return result
    if entry.get("index") is None:
        result.not_looked_at = ("records", "keys")  # only the index says it
    else:
        _check_index(task, result)
    return result


def _scan(entry: Mapping[str, Any], result: ShardResult, path: str) -> None:
    """Names each broken record of a shard that is not the one that was built."""
    result.num_records = 0
    for record in scan_file(path):
        result.num_records += 1
        if isinstance(record, RecordError):
            result.add("checksums", record.reason, record)
    if result.found["checksums"]:
        result.not_looked_at = ("records",)
    if result.num_records != entry["num_records"]:
        held = counted(result.num_records, "record")
        result.add("records", f"it holds {held}; the manifest says {entry['num_records']}")


def _check_index(task: ShardTask, result: ShardResult) -> None:
    """Holds the index of a shard against the counts of the manifest; its keys are the shard's."""
    wanted = index_schema({})
    try:
        table = read_shard_index(task.directory, task.entry, wanted)
    except IndexDamageError as e:
        result.add("index", f"its {task.entry['index']['file']} {e.problem}")
        result.not_looked_at = (*result.not_looked_at, "keys")
        return
    result.key_hashes = array("Q", (_hash(key.encode()) for key in table["key"].to_pylist()))
    _compare_classes(result, task.entry["classes"], Counter(table["class_name"].to_pylist()))


def _compare_classes(result: ShardResult, said: Mapping[str, int], held: Counter[str]) -> None:
    for name in sorted({name for name, count in said.items() if count} | held.keys()):
        if said.get(name, 0) != held[name]:
            records = counted(held[name], "record")
            what = f"it holds {records} of class {name!r}; the manifest says {said.get(name, 0)}"
            result.add("records", what)


def repeated(values: Iterable[int]) -> set[int]:
    """Those that come more than once, 0 aside."""
    seen: set[int] = set()
    twice: set[int] = set()
    for value in values:
        if value in seen:
            twice.add(value)
        elif value:
            seen.add(value)
    return twice


def _hash(value: object) -> int:
    """64 bits that stand for a key; 0 for none."""
    if not isinstance(value, bytes) or not value:
        return 0
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")
