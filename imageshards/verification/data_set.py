"""Checks of a data set as a whole: its manifest, its folder, the files beside the shards."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from imageshards import storage
from imageshards.errors import IndexDamageError
from imageshards.example import decode_record
from imageshards.index import index_schema, read_shard_index
from imageshards.manifest import (
    IMAGE_FEATURE,
    INDEX_NAME,
    NONE,
    ONE,
    QUARANTINE_NAME,
    REJECTS_NAME,
    SHARD_NAME,
    TRANSFORM_NAME,
    label_of,
    read_rejects,
    record_features,
    shard_name,
    shards_of,
)
from imageshards.text import counted
from imageshards.tfrecord import RecordError, read_records
from imageshards.verification.shard import Problem

if TYPE_CHECKING:
    import pyarrow as pa

# Of a key that several records have.
_MAX_PLACES = 5
_REJECTS = f"{QUARANTINE_NAME}/{REJECTS_NAME}"


def data_set_problems(directory: str, manifest: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems that no single shard shows."""
    phrases = {
        "manifest": (f"manifest.json: {phrase}" for phrase in manifest_problems(manifest)),
        "accounting": accounting_problems(manifest, directory),
    }
    if "adopted" not in manifest:
        # Others name and fill their shards as they like, and have other files beside them.
        files = missing_files(directory, manifest)
        phrases |= {"balance": balance_problems(manifest), "files": files}
        yield from unlisted_files(manifest, directory)
    for check, found in phrases.items():
        yield from (Problem(check, f"{phrase}.") for phrase in found)
    yield from index_problems(manifest, directory)


def manifest_problems(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Where a manifest disagrees with itself, as phrases."""
    label = label_of(manifest)
    for split, entry in manifest["splits"].items():
        shards = entry["shards"]
        for number, shard in enumerate(shards):
            expected = f"{split}-{number:05d}-of-{len(shards):05d}.tfrecord"
            if "adopted" not in manifest and shard["file"] != expected:
                yield f"shard {number} of split {split!r} is {shard['file']!r}, not {expected!r}"
            if label == ONE and sum(shard["classes"].values()) != shard["num_records"]:
                yield f"the classes of {shard['file']} do not add up to its num_records"
        total = sum(shard["num_records"] for shard in shards)
        if total != entry["num_records"]:
            yield (
                f"split {split!r} says {counted(entry['num_records'], 'record')}, but its shards "
                f"add up to {total}"
            )
    used = {name for _, shard in shards_of(manifest) for name in shard["classes"]}
    for name in sorted(used - set(manifest["classes"])):
        yield f"class {name!r} of a shard is not among the classes"


def balance_problems(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Where shards of a split differ by more than one."""
    for name, split in manifest["splits"].items():
        if not split["shards"]:
            continue
        least = min(split["shards"], key=lambda shard: shard["num_records"])
        most = max(split["shards"], key=lambda shard: shard["num_records"])
        if most["num_records"] - least["num_records"] > 1:
            yield (
                f"split {name!r}: {most['file']} holds {counted(most['num_records'], 'record')} "
                f"but {least['file']} only {least['num_records']}; they may differ by one"
            )


def unlisted_files(manifest: Mapping[str, Any], directory: str) -> Iterator[Problem]:
    """Files that look like shards, and files of `index/`, that are not listed."""
    shards = [shard for _, shard in shards_of(manifest)]
    listed = {shard["file"] for shard in shards} | {shard["index"]["file"] for shard in shards}
    message = "{}: the manifest does not list it."
    for name in names_in(directory):
        if SHARD_NAME.fullmatch(name) and name not in listed:
            yield Problem("files", message.format(name), name)
    for file in names_in(storage.join(directory, INDEX_NAME)):
        if (name := f"{INDEX_NAME}/{file}") not in listed:
            yield Problem("index", message.format(name), name)


def index_problems(manifest: Mapping[str, Any], directory: str) -> Iterator[Problem]:
    """Where `index/` is damaged, its classes are not the manifest's, or a key is there twice."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = index_schema({}, label_of(manifest))
    columns = [n for n in ("key", "class_name", "shard", "record") if n in schema.names]
    schema = pa.schema([schema.field(name) for name in columns])

    def rows(shard: Mapping[str, Any]) -> pa.Table | str:
        try:
            return read_shard_index(directory, shard, schema)
        except IndexDamageError as e:
            return e.problem

    shards = [shard for _, shard in shards_of(manifest)]
    tables = [schema.empty_table()]
    for shard, found in zip(shards, storage.map_concurrently(rows, shards), strict=True):
        name = shard_name(shard)
        if isinstance(found, str):
            yield Problem("index", f"{name}: its {shard['index']['file']} {found}.", name)
            continue
        tables.append(found)
        held, said = Counter(_labels_in(found)), Counter(shard["classes"])
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


def accounting_problems(manifest: Mapping[str, Any], directory: str) -> Iterator[str]:
    """Whether every listed image became a record or a reject, as phrases."""
    records = sum(entry["num_records"] for entry in manifest["splits"].values())
    rejects = sum(manifest["rejects"].values())
    if manifest["listed"] != records + rejects:
        yield (
            f"manifest.json: {counted(manifest['listed'], 'image')} were listed, but "
            f"{counted(records, 'record')} + {counted(rejects, 'reject')} = {records + rejects}"
        )
    yield from _quarantine_problems(manifest["rejects"], directory, rejects)
    keeps_bytes = manifest.get("options", {}).get("quarantine_bytes") is True
    yield from _originals_problems(directory, rejects, keeps_bytes)


def _quarantine_problems(listed: Mapping[str, int], directory: str, total: int) -> Iterator[str]:
    reasons: Counter[str] = Counter()
    try:
        reasons.update(reject["reason"] for reject in read_rejects(directory))
    except FileNotFoundError:
        if total:
            yield f"{_REJECTS} is missing, but the manifest counts {counted(total, 'reject')}"
            return
    except (OSError, ValueError) as e:
        yield f"{_REJECTS} could not be read ({e})"
        return
    for reason in sorted(reasons.keys() | listed.keys()):
        if reasons[reason] != listed.get(reason, 0):
            yield (
                f"{_REJECTS} holds {counted(reasons[reason], 'reject')} for {reason!r}; "
                f"the manifest says {listed.get(reason, 0)}"
            )


def _originals_problems(directory: str, total: int, keeps_bytes: bool) -> Iterator[str]:
    """Whether the quarantine holds all that was rejected, and with bytes where they were read."""
    folder = storage.join(directory, QUARANTINE_NAME)
    count = without = 0
    for name in names_in(folder):
        if not SHARD_NAME.fullmatch(name):
            continue
        path = storage.join(folder, name)
        try:
            for record in read_records(path):
                count += 1
                features = decode_record(path, record, {"stage", IMAGE_FEATURE})
                without += features.get("stage") == [b"decode"] and IMAGE_FEATURE not in features
        except RecordError as e:
            place = f"record {e.number} at byte {e.offset_bytes}"
            yield f"{QUARANTINE_NAME}/{name}, {place}: {e.reason}"
            return
    if count != total:
        yield (
            f"the quarantine holds {counted(count, 'record')}; the manifest says "
            f"{counted(total, 'reject')}"
        )
    if keeps_bytes and without:
        yield f"the quarantine lacks the original bytes of {counted(without, 'reject')}"


def missing_files(directory: str, manifest: Mapping[str, Any]) -> Iterator[str]:
    """What every data set has beside its shards and this one lacks, as phrases."""
    for name in ("features.json", "dataset_info.json"):
        if not storage.exists(storage.join(directory, name)):
            yield f"{name} is missing"
    if manifest["features"] == record_features(NONE):
        return  # without labels and extra columns there is nothing to transform
    for name in ("transform_fn", "transformed_metadata"):
        if not storage.is_folder(storage.join(directory, TRANSFORM_NAME, name)):
            yield f"{TRANSFORM_NAME}/{name} is missing"


def names_in(folder: str) -> list[str]:
    """What a folder holds, sorted; nothing if it cannot be read."""
    try:
        return [entry.name for entry in storage.list_folder(folder)]
    except OSError:
        return []
