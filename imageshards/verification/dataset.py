"""Checks of a dataset as a whole: its manifest, its folder, the files beside the shards."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from imageshards import storage
from imageshards.errors import IndexDamageError
from imageshards.example import decode_record
from imageshards.index import index_schema, read_shard_index
from imageshards.manifest import (
    INDEX_NAME,
    ONE,
    QUARANTINE_NAME,
    SHARD_NAME,
    TRANSFORM_NAME,
    Manifest,
    Shard,
)
from imageshards.text import counted
from imageshards.tfrecord import RecordError, read_records
from imageshards.verification.shard import Problem, check_file

if TYPE_CHECKING:
    import pyarrow as pa

# Of a key that several records have.
_MAX_PLACES = 5


def dataset_problems(directory: str, manifest: Manifest) -> Iterator[Problem]:
    """Yields the problems that no single shard shows.

    A file or folder that cannot be read is a problem of the check that needs it.
    """
    checks: dict[str, Iterator[Problem | str]] = {
        "manifest": (f"manifest.json: {phrase}" for phrase in manifest_problems(manifest)),
        "accounting": accounting_problems(manifest, directory),
        "checksums": file_problems(manifest, directory),
        "index": index_problems(manifest, directory),
    }
    if manifest.adopted is None:
        # Others name and fill their shards as they like, and have other files beside them.
        checks |= {
            "balance": balance_problems(manifest),
            "files": unlisted_files(manifest, directory),
        }
    for check, found in checks.items():
        try:
            for each in found:
                yield each if isinstance(each, Problem) else Problem(check, f"{each}.")
        except OSError as e:
            what = f"{e.filename or directory} could not be read ({e.strerror or e})"
            yield Problem(check, f"{what}.", e.filename)


def file_problems(manifest: Manifest, directory: str) -> Iterator[Problem]:
    """Yields where files beside the shards are missing, or are not those that were written."""
    checked = storage.map_concurrently(
        lambda item: check_file(storage.join(directory, item[0]), *item), manifest.files.items()
    )
    for result in checked:
        yield from result.problems


def manifest_problems(manifest: Manifest) -> Iterator[str]:
    """Where a manifest disagrees with itself, as phrases."""
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
    """Yields where shards of a split differ by more than one record, in all or of a class.

    The plan deals the records of each class to the shards in turn, and the commit closes the gaps
    that rejected images leave. With several labels or none an image has no class of its own.
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
            without = next((file for file in files if file not in of_files), None)
            least = without or min(of_files, key=of_files.__getitem__)
            if of_files[most] - of_files[least] > 1:
                yield (
                    f"split {name!r}: {most} holds {counted(of_files[most], 'record')}{what} "
                    f"but {least} only {of_files[least]}; they may differ by one"
                )


def unlisted_files(manifest: Manifest, directory: str) -> Iterator[Problem]:
    """Yields files that look like shards, and files in folders of a dataset, that the manifest
    does not list."""
    shards = [shard for _, shard in manifest.shards()]
    listed = {shard.file for shard in shards} | {shard.index.file for shard in shards}
    listed |= manifest.files.keys()
    names = [entry.name for entry in storage.list_folder(directory)]
    below = [
        storage.files_below(storage.join(directory, folder))
        for folder in (INDEX_NAME, TRANSFORM_NAME, QUARANTINE_NAME)
    ]
    start = len(storage.join(directory, ""))
    shards_found = filter(SHARD_NAME.fullmatch, names)
    for name in [*shards_found, *(file.path[start:] for file in itertools.chain(*below))]:
        if name not in listed:
            check = "index" if name.startswith(f"{INDEX_NAME}/") else "files"
            yield Problem(check, f"{name}: the manifest does not list it.", name)


def index_problems(manifest: Manifest, directory: str) -> Iterator[Problem]:
    """Where `index/` is damaged, its classes are not the manifest's, or a key is there twice."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = index_schema({}, manifest.label)
    columns = [n for n in ("key", "class_name", "shard", "record") if n in schema.names]
    schema = pa.schema([schema.field(name) for name in columns])

    def rows(shard: Shard) -> pa.Table | str:
        try:
            return read_shard_index(directory, shard, schema)
        except IndexDamageError as e:
            return e.problem

    shards = [shard for _, shard in manifest.shards()]
    tables = [schema.empty_table()]
    for shard, found in zip(shards, storage.map_concurrently(rows, shards), strict=True):
        name = shard.name
        if isinstance(found, str):
            yield Problem("index", f"{name}: its {shard.index.file} {found}.", name)
            continue
        tables.append(found)
        held, said = Counter(_labels_in(found)), Counter(shard.classes)
        for each in sorted({*held, *said}):
            if held[each] != said[each]:
                what = f"it holds {counted(held[each], 'record')} of class {each!r}"
                yield Problem("records", f"{name}: {what}; the manifest says {said[each]}.", name)
    table = pa.concat_tables(tables)
    # The different keys of many millions of records are more bytes than a plain Arrow text can be.
    keys = table["key"].cast(pa.large_string())
    counts = pa.table(keys.value_counts().flatten(), ["key", "count"])
    twice = counts.filter(pc.greater(counts["count"], 1))["key"]
    places = defaultdict(list)
    for row in table.filter(pc.is_in(keys, twice)).to_pylist():
        places[row["key"]].append((row["shard"], row["record"]))
    for key, held_by in sorted(places.items()):
        shown = "; ".join(f"{file}, record {record}" for file, record in held_by[:_MAX_PLACES])
        message = f"The key {key!r} is held by {len(held_by)} records: {shown}."
        yield Problem("keys", message, *held_by[0])


def _labels_in(table: pa.Table) -> list[str]:
    """The class names of all rows, those with several labels one after the other."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "class_name" not in table.column_names:
        return []
    names = table["class_name"]
    return (pc.list_flatten(names) if pa.types.is_list(names.type) else names).to_pylist()


def accounting_problems(manifest: Manifest, directory: str) -> Iterator[str]:
    """Yields whether a listed image became neither a record nor a reject in the quarantine."""
    records = sum(entry.num_records for entry in manifest.splits.values())
    rejects = sum(manifest.rejects.values())
    if manifest.listed != records + rejects:
        yield (
            f"manifest.json: {counted(manifest.listed, 'image')} were listed, but "
            f"{counted(records, 'record')} + {counted(rejects, 'reject')} = {records + rejects}"
        )
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
