"""Checks of a data set as a whole: its manifest, its folder, the files beside the shards."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from imageshards import storage
from imageshards.example import decode_example
from imageshards.index import has_index, index_schema, read_shard_index
from imageshards.manifest import (
    IMAGE_FEATURE,
    INDEX_NAME,
    QUARANTINE_NAME,
    REJECTS_NAME,
    SHARD_NAME,
    STAGING_NAME,
    TRANSFORM_NAME,
    read_rejects,
    shard_name,
    shards_of,
)
from imageshards.text import counted
from imageshards.tfrecord import RecordError, read_records
from imageshards.verification.shard import MAX_PROBLEMS, Problem, ShardResult, repeated

_REJECTS = f"{QUARANTINE_NAME}/{REJECTS_NAME}"


def data_set_problems(
    directory: str, manifest: Mapping[str, Any], results: Sequence[ShardResult]
) -> list[Problem]:
    """Problems that no single shard shows."""
    phrases = {
        "manifest": (f"manifest.json: {phrase}" for phrase in manifest_problems(manifest)),
        "accounting": accounting_problems(manifest, directory),
        "index": index_problems(manifest, directory),
    }
    own = "adopted" not in manifest
    if own:  # others name and fill their shards as they like, and have other files beside them
        phrases |= {"balance": balance_problems(manifest), "files": missing_files(directory)}
    return [
        *(Problem(check, f"{phrase}.") for check, found in phrases.items() for phrase in found),
        *(extra_shards(manifest, directory) if own else ()),
        *checksum_problems(results, manifest),
        *duplicate_problems(results, manifest, directory),
    ]


def manifest_problems(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Where a manifest disagrees with itself, as phrases."""
    for split, entry in manifest["splits"].items():
        shards = entry["shards"]
        for number, shard in enumerate(shards):
            expected = f"{split}-{number:05d}-of-{len(shards):05d}.tfrecord"
            if "adopted" not in manifest and shard["file"] != expected:
                yield f"shard {number} of split {split!r} is {shard['file']!r}, not {expected!r}"
            if sum(shard["classes"].values()) != shard["num_records"]:
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
    """Where shards of a split (by class: of a split and class) differ by more than one."""
    groups: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for split, shard in shards_of(manifest):
        name = f"split {split!r}"
        if manifest.get("shard_by") == "class":
            classes = [c for c, count in shard["classes"].items() if count]
            if len(classes) > 1:
                yield f"{shard['file']} holds {len(classes)} classes; shards by class hold one"
            if len(classes) != 1:
                continue
            name += f", class {classes[0]!r}"
        groups[name].append(shard)
    for name, shards in groups.items():
        least = min(shards, key=lambda shard: shard["num_records"])
        most = max(shards, key=lambda shard: shard["num_records"])
        if most["num_records"] - least["num_records"] > 1:
            yield (
                f"{name}: {most['file']} holds {counted(most['num_records'], 'record')} but "
                f"{least['file']} only {least['num_records']}; they may differ by one"
            )


def extra_shards(manifest: Mapping[str, Any], directory: str) -> list[Problem]:
    """Files that look like shards but are not listed."""
    listed = {shard["file"] for _, shard in shards_of(manifest)}
    message = "{}: it looks like a shard, but the manifest does not list it."
    return [
        Problem("files", message.format(name), name)
        for name in names_in(directory)
        if SHARD_NAME.fullmatch(name) and name not in listed
    ]


def checksum_problems(results: Iterable[ShardResult], manifest: Mapping[str, Any]) -> list[Problem]:
    """Shards whose SHA-256 is not the manifest's, or is that of another shard."""
    expected = {shard_name(shard): shard["sha256"] for _, shard in shards_of(manifest)}
    file_of = {sha256: file for file, sha256 in expected.items()}
    problems = []
    for result in results:
        if result.sha256 in ("", expected[result.file]):
            continue
        other = file_of.get(result.sha256)
        what = (
            f"it holds the bytes of {other}"
            if other
            else f"its SHA-256 is {result.sha256}; the manifest says {expected[result.file]}"
        )
        problems.append(Problem("checksums", f"{result.file}: {what}.", result.file))
    return problems


def duplicate_problems(
    results: Sequence[ShardResult], manifest: Mapping[str, Any], directory: str
) -> list[Problem]:
    """Keys that more than one record has, each with all its places."""
    twice = repeated(value for result in results for value in result.key_hashes)
    entries = {shard_name(shard): shard for _, shard in shards_of(manifest)}
    places: defaultdict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for result in results:
        wanted = {i for i, value in enumerate(result.key_hashes) if value in twice}
        for number, offset, key in _keys(directory, entries[result.file], wanted):
            places[key].append((result.file, number, offset))
    problems = []
    for key, found in sorted(places.items()):
        if len(found) > 1:  # else two keys that only share their hash
            shown = "; ".join(
                f"{file}, record {number}" for file, number, _ in found[:MAX_PROBLEMS]
            )
            message = f"The key {key!r} is held by {len(found)} records: {shown}."
            problems.append(Problem("keys", message, *found[0]))
    return problems


def _keys(
    directory: str, entry: Mapping[str, Any], wanted: set[int]
) -> Iterator[tuple[int, int, str]]:
    """(number, offset, key) of some records of a shard, by its index."""
    if wanted:
        rows = read_shard_index(directory, entry, index_schema({})).to_pylist()
        yield from ((number, rows[number]["offset"], rows[number]["key"]) for number in wanted)


def notes_of(manifest: Mapping[str, Any], directory: str) -> list[str]:
    """Remarks for a person that are no problems."""
    notes = []
    if storage.is_folder(storage.join(directory, STAGING_NAME)):
        notes.append(
            f"{STAGING_NAME}/ is left over from an unfinished build; it may be deleted unless a "
            "build is running."
        )
    if not any(True for _ in shards_of(manifest)):
        notes.append("The manifest lists no shard at all.")
    elif not has_index(manifest):
        notes.append(
            f"There is no {INDEX_NAME}/ (an older version built it), so classes and keys were not "
            f"looked at; write it by imageshards adopt {directory}."
        )
    return notes


def index_problems(manifest: Mapping[str, Any], directory: str) -> Iterator[str]:
    """Where the files of `index/` are not those that the manifest names, as phrases.

    A data set without any is fine: an older version built it.
    """
    shards = [shard for _, shard in shards_of(manifest)]
    without = [shard["file"] for shard in shards if shard.get("index") is None]
    if without and len(without) < len(shards):
        yield f"manifest.json names no index of {without[0]}, though it does of other shards"
    listed = {shard["index"]["file"] for shard in shards if shard.get("index") is not None}
    for name in names_in(storage.join(directory, INDEX_NAME)):
        if f"{INDEX_NAME}/{name}" not in listed:
            yield f"{INDEX_NAME}/{name}: the manifest does not list it"


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
    # Data sets of older versions do not say whether bytes were kept.
    options = manifest.get("options")
    keeps_bytes = isinstance(options, dict) and options.get("quarantine_bytes") is True
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
        try:
            for record in read_records(storage.join(folder, name)):
                count += 1
                features = decode_example(record.payload, {"stage", IMAGE_FEATURE})
                without += features.get("stage") == [b"decode"] and IMAGE_FEATURE not in features
        except (RecordError, ValueError) as e:
            place = f"{QUARANTINE_NAME}/{name}, record {getattr(e, 'number', count - 1)}"
            at = f" at byte {e.offset_bytes}" if isinstance(e, RecordError) else ""
            yield f"{place}{at}: {getattr(e, 'reason', e)}"
            return
    if count != total:
        yield (
            f"the quarantine holds {counted(count, 'record')}; the manifest says "
            f"{counted(total, 'reject')}"
        )
    if keeps_bytes and without:
        yield f"the quarantine lacks the original bytes of {counted(without, 'reject')}"


def missing_files(directory: str) -> Iterator[str]:
    """What every data set has beside its shards and this one lacks, as phrases."""
    for name in ("features.json", "dataset_info.json"):
        if not storage.exists(storage.join(directory, name)):
            yield f"{name} is missing"
    for name in ("transform_fn", "transformed_metadata"):
        if not storage.is_folder(storage.join(directory, TRANSFORM_NAME, name)):
            yield f"{TRANSFORM_NAME}/{name} is missing"


def names_in(folder: str) -> list[str]:
    """What a folder holds, sorted; nothing if it cannot be read."""
    try:
        return [entry.name for entry in storage.list_folder(folder)]
    except OSError:
        return []
