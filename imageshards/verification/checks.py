"""Checks a dataset: each file by its size and SHA-256, and the parts that no single file shows.

The content of records is not checked: bytes with the right SHA-256 are the bytes that were written.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from imageshards import storage
from imageshards.errors import IndexDamageError
from imageshards.example import decode_record
from imageshards.index import index_schema, read_shard_index
from imageshards.manifest import (
    COMPANION_NAMES,
    DATASET_FOLDERS,
    INDEX_NAME,
    ONE,
    QUARANTINE_NAME,
    REPORT_NAME,
    SHARD_NAME,
    File,
    Manifest,
    Shard,
)
from imageshards.manifest.file import shard_path
from imageshards.text import counted
from imageshards.tfrecord import RecordError, read_records, scan_file

_MAX_PLACES = 5  # places that a problem names for a key


class Problem(NamedTuple):
    """A problem of a dataset: a sentence, and the file, record and offset that it is about."""

    check: str
    message: str
    file: str | None = None
    record: int | None = None
    offset_bytes: int | None = None


@dataclasses.dataclass
class FileResult:
    """The result of the check of one file; without `sha256` the file could not be read."""

    problems: list[Problem] = dataclasses.field(default_factory=list)
    num_records: int = 0
    num_bytes: int = 0
    sha256: str = ""


def check_file(path: str, name: str, entry: File | Shard) -> FileResult:
    """Compares the size and the SHA-256 of a file with its entry in the manifest."""
    expected = entry.num_bytes
    try:
        result = FileResult([], 0, *storage.sha256_of(path, expected))
    except OSError as e:
        return FileResult([_unreadable(name, e)])
    if result.num_bytes != expected:
        # `sha256_of` stops behind the expected size, so a larger file has no exact size.
        is_larger = result.num_bytes > expected
        size = f"more than {expected}" if is_larger else f"{result.num_bytes}"
        what = f"it has {size} bytes; the manifest says {expected}"
        result.problems.append(Problem("files", f"{name}: {what}.", name))
    if result.sha256 != entry.sha256:
        what = f"its SHA-256 is {result.sha256}; the manifest says {entry.sha256}"
        result.problems.append(Problem("checksums", f"{name}: {what}.", name))
    return result


def check_shard(directory: str, entry: Shard) -> FileResult:
    """Reads a whole shard and compares it with its entry in the manifest."""
    name, path = entry.name, shard_path(directory, entry.name)
    result = check_file(path, name, entry)
    if not result.problems:
        # The same bytes hold the same records, so they need not be read again.
        result.num_records = entry.num_records
    elif result.sha256:
        try:
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
        except OSError as e:
            result.problems.append(_unreadable(name, e))
    return result


def _unreadable(name: str, e: OSError) -> Problem:
    what = f"it could not be read ({e.strerror or e})"
    if isinstance(e, FileNotFoundError):
        what = "the manifest lists it, but it is missing"
    return Problem("files", f"{name}: {what}.", name)


def dataset_problems(directory: str, manifest: Manifest) -> Iterator[Problem]:
    """Yields the problems that no single shard shows."""
    files = storage.map_concurrently(
        lambda item: check_file(storage.join(directory, item[0]), *item), manifest.files.items()
    )
    checks: dict[str, Iterator[Problem | str]] = {
        "manifest": (f"manifest.json: {phrase}" for phrase in manifest_problems(manifest)),
        "accounting": accounting_problems(manifest, directory),
        # Files beside the shards may be missing or differ from the manifest.
        "checksums": itertools.chain.from_iterable(result.problems for result in files),
        "index": index_problems(manifest, directory),
    }
    if manifest.adopted is None:
        # Adopted shards may have any names and sizes, and any files beside them.
        checks |= {
            "balance": balance_problems(manifest),
            "files": unlisted_files(manifest, directory),
        }
    for check, found in checks.items():
        try:
            for each in found:
                yield each if isinstance(each, Problem) else Problem(check, f"{each}.")
        except OSError as e:
            # A file that cannot be read is a problem of the check that needs the file.
            what = f"{e.filename or directory} could not be read ({e.strerror or e})"
            yield Problem(check, f"{what}.", e.filename)


def manifest_problems(manifest: Manifest) -> Iterator[str]:
    """Yields the contradictions within a manifest, as phrases."""
    label = manifest.label
    for split, entry in manifest.splits.items():
        shards = entry.shards
        for number, shard in enumerate(shards):
            expected = f"{split}-{number:05d}-of-{len(shards):05d}.tfrecord"
            if manifest.adopted is None and shard.file != expected:
                yield f"shard {number} of split {split!r} is {shard.file!r}, not {expected!r}"
            if label == ONE and sum(shard.classes.values()) != shard.num_records:
                yield f"the classes of {shard.file} do not add up to its num_records"
        total = sum(shard.num_records for shard in shards)
        if total != entry.num_records:
            yield (
                f"split {split!r} says {counted(entry.num_records, 'record')}, but its shards "
                f"add up to {total}"
            )
    used = {name for _, shard in manifest.shards() for name in shard.classes}
    for name in sorted(used - set(manifest.classes)):
        yield f"class {name!r} of a shard is not among the classes"


def balance_problems(manifest: Manifest) -> Iterator[str]:
    """Yields the splits whose shards differ by more than one record, in all or of a class.

    The plan deals the records of each class to the shards in turn, and the commit fills the gaps of
    rejected images. With several labels or none, only the number of records is even.
    """
    by_class = manifest.label == ONE
    for name, split in manifest.splits.items():
        files = [shard.file for shard in split.shards]
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for shard in split.shards:
            counts[""][shard.file] = shard.num_records
            for each, count in shard.classes.items() if by_class else ():
                counts[f" of class {each!r}"][shard.file] = count
        for what, of_files in counts.items():
            most = max(of_files, key=of_files.__getitem__)
            # A shard without records of the class has no count of it.
            without = next((file for file in files if file not in of_files), None)
            least = without or min(of_files, key=of_files.__getitem__)
            if of_files[most] - of_files[least] > 1:
                yield (
                    f"split {name!r}: {most} holds {counted(of_files[most], 'record')}{what} "
                    f"but {least} only {of_files[least]}; they may differ by one"
                )


def unlisted_files(manifest: Manifest, directory: str) -> Iterator[Problem]:
    """Yields files that a dataset may consist of and that the manifest does not list."""
    shards = [shard for _, shard in manifest.shards()]
    listed = {shard.file for shard in shards} | {shard.index.file for shard in shards}
    listed |= manifest.files.keys()
    names = [entry.name for entry in storage.list_folder(directory)]
    below = [
        storage.files_below(storage.join(directory, folder))
        for folder in DATASET_FOLDERS
        if folder != REPORT_NAME  # which the manifest does not list
    ]
    start = len(storage.join(directory, ""))
    found = [name for name in names if SHARD_NAME.fullmatch(name) or name in COMPANION_NAMES]
    for name in [*found, *(file.path[start:] for file in itertools.chain(*below))]:
        if name not in listed:
            check = "index" if name.startswith(f"{INDEX_NAME}/") else "files"
            yield Problem(check, f"{name}: the manifest does not list it.", name)


def index_problems(manifest: Manifest, directory: str) -> Iterator[Problem]:
    """Yields damaged files of `index/`, wrong numbers of classes, and keys of several records."""
    schema = index_schema({}, manifest.label, ("key", "class_name", "shard", "record"))

    def rows(shard: Shard) -> pa.Table | str:
        try:
            return read_shard_index(directory, shard, schema)
        except IndexDamageError as e:
            return e.damage

    shards = [shard for _, shard in manifest.shards()]
    tables = [schema.empty_table()]
    for shard, found in zip(shards, storage.map_concurrently(rows, shards), strict=True):
        name = shard.name
        if isinstance(found, str):
            # The other shards are still checked.
            yield Problem("index", f"{name}: its {shard.index.file} {found}.", name)
            continue
        tables.append(found)
        labels = []
        if "class_name" in schema.names:
            names = found["class_name"]
            labels = (pc.list_flatten(names) if pa.types.is_list(names.type) else names).to_pylist()
        held, said = Counter(labels), Counter(shard.classes)
        for each in sorted({*held, *said}):
            if held[each] != said[each]:
                what = f"it holds {counted(held[each], 'record')} of class {each!r}"
                yield Problem("records", f"{name}: {what}; the manifest says {said[each]}.", name)
    table = pa.concat_tables(tables)
    # The keys of many millions of records exceed the 2 GiB of a plain Arrow text column.
    keys = table["key"].cast(pa.large_string())
    counts = pa.table(keys.value_counts().flatten(), ["key", "count"])
    twice = counts.filter(pc.greater(counts["count"], 1))["key"]
    places = defaultdict(list)
    # Only rows whose key is not unique become Python objects.
    for row in table.filter(pc.is_in(keys, twice)).to_pylist():
        places[row["key"]].append((row["shard"], row["record"]))
    for key, held_by in sorted(places.items()):
        shown = "; ".join(f"{file}, record {record}" for file, record in held_by[:_MAX_PLACES])
        message = f"The key {key!r} is held by {len(held_by)} records: {shown}."
        yield Problem("keys", message, *held_by[0])


def accounting_problems(manifest: Manifest, directory: str) -> Iterator[str]:
    """Yields a problem if a listed image is neither a record nor a reject in the quarantine."""
    records = manifest.num_records
    rejects = sum(manifest.rejects.values())
    if manifest.listed != records + rejects:
        yield (
            f"manifest.json: {counted(manifest.listed, 'image')} were listed, but "
            f"{counted(records, 'record')} + {counted(rejects, 'reject')} = {records + rejects}"
        )
    # TFRecord files in the quarantine hold the rejected originals with their reasons.
    held: Counter[str] = Counter()
    for name in manifest.files:
        if name.startswith(f"{QUARANTINE_NAME}/") and SHARD_NAME.fullmatch(storage.name_of(name)):
            path = storage.join(directory, name)
            try:
                for record in read_records(path):
                    (reason,) = decode_record(path, record, {"reason"}).get("reason") or [b""]
                    held[reason.decode() if isinstance(reason, bytes) else ""] += 1
            except (RecordError, ValueError) as e:
                yield f"{name} is damaged ({str(e).rstrip('.')})"
                return
    if held != Counter(manifest.rejects):
        yield f"the quarantine holds {dict(held)}; the manifest says {manifest.rejects}"
