"""Checks of a data set as a whole: its manifest, its folder, the files beside the shards."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from beam_pipeline.verify.shard import MAX_PROBLEMS, Problem, ShardResult
from imageshards import storage
from imageshards.example import decode_example
from imageshards.form import anything, keyed, listed, loads, mapped, text
from imageshards.manifest import (
    CROISSANT_NAME,
    FILENAME_FEATURE,
    IMAGE_FEATURE,
    INDEX_NAME,
    QUARANTINE_NAME,
    REJECTS_NAME,
    SHARD_NAME,
    STAGING_NAME,
    TRANSFORM_NAME,
    read_rejects,
    shards_of,
)
from imageshards.text import counted
from imageshards.tfrecord import RecordError, read_records

_REJECTS = f"{QUARANTINE_NAME}/{REJECTS_NAME}"
# What of the files beside the shards is held against the manifest.
_FEATURES = keyed({"featuresDict": keyed({"features": mapped(anything)})})
_LENGTH = text(r"[0-9]{1,18}", "a count, as text")
_DATASET_INFO = keyed({"splits": listed(keyed({"name": text(), "shardLengths": listed(_LENGTH)}))})
_CROISSANT = keyed({"distribution": listed(keyed({"@id": text()}, {"sha256": text()}))})


def data_set_problems(
    directory: str, manifest: Mapping[str, Any], results: Sequence[ShardResult]
) -> list[Problem]:
    """Problems that no single shard shows."""
    phrases = {
        "manifest": (f"manifest.json: {phrase}" for phrase in manifest_problems(manifest)),
        "balance": balance_problems(manifest),
        "accounting": accounting_problems(manifest, directory),
        "metadata": metadata_problems(manifest, directory),
        "index": index_problems(manifest, directory),
    }
    return [
        *(Problem(check, f"{phrase}.") for check, found in phrases.items() for phrase in found),
        *extra_shards(manifest, directory),
        *checksum_problems(results, manifest),
        *duplicate_problems(results, directory, manifest.get("compression", "none")),
    ]


def manifest_problems(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Where a manifest disagrees with itself, as phrases."""
    suffix = ".gz" if manifest.get("compression") == "gzip" else ""
    for split, entry in manifest["splits"].items():
        shards = entry["shards"]
        for number, shard in enumerate(shards):
            expected = f"{split}-{number:05d}-of-{len(shards):05d}.tfrecord{suffix}"
            if shard["file"] != expected:
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
    expected = {shard["file"]: shard["sha256"] for _, shard in shards_of(manifest)}
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
    results: Sequence[ShardResult], directory: str, compression: str
) -> list[Problem]:
    """Keys that more than one record has, each with all its places."""
    twice = _repeated(value for r in results for value in r.key_hashes)
    places: defaultdict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for result in results:
        wanted = {i for i, value in enumerate(result.key_hashes) if value in twice}
        path = storage.join(directory, result.file)
        for number, offset, key in _keys(path, wanted, compression):
            places[key].append((result.file, number, offset))
    problems = []
    for key, found in sorted(places.items()):
        if len(found) > 1:  # Else two keys that only share their hash.
            shown = "; ".join(
                f"{file}, record {number}" for file, number, _ in found[:MAX_PROBLEMS]
            )
            message = f"The key {key!r} is held by {len(found)} records: {shown}."
            problems.append(Problem("keys", message, *found[0]))
    return problems


def _keys(path: str, wanted: set[int], compression: str) -> Iterator[tuple[int, int, str]]:
    try:
        for record in read_records(path, compression) if wanted else ():
            if record.number in wanted:
                key = decode_example(record.payload, {FILENAME_FEATURE})[FILENAME_FEATURE][0]
                text = key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
                yield record.number, record.offset_bytes, text
    except RecordError:
        return  # Reported when the shard was checked.


def notes_of(
    manifest: Mapping[str, Any], directory: str, results: Sequence[ShardResult]
) -> list[str]:
    """Remarks for a person that are no problems."""
    notes = []
    if storage.is_folder(storage.join(directory, STAGING_NAME)):
        notes.append(
            f"{STAGING_NAME}/ is left over from an unfinished build; it may be deleted unless a "
            "build is running."
        )
    if not any(True for _ in shards_of(manifest)):
        notes.append("The manifest lists no shard at all.")
    split_of = {shard["file"]: split for split, shard in shards_of(manifest)}
    splits: defaultdict[int, set[str]] = defaultdict(set)
    twice = _repeated(value for r in results for value in r.content_hashes)
    for result in results:
        for value in twice.intersection(result.content_hashes):
            splits[value].add(split_of[result.file])
    leaks = sum(1 for found in splits.values() if len(found) > 1)
    if leaks:
        notes.append(
            f"{leaks} original pictures stand in more than one split, byte for byte; "
            "--group_column keeps such pictures together."
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


def metadata_problems(manifest: Mapping[str, Any], directory: str) -> Iterator[str]:
    """Whether the TFDS files and TFT's output are there and agree, as phrases."""
    checks = (
        ("features.json", _FEATURES, _features_problems),
        ("dataset_info.json", _DATASET_INFO, _dataset_info_problems),
    )
    for name, form, check in checks:
        try:
            yield from check(loads(storage.read(storage.join(directory, name)), form), manifest)
        except FileNotFoundError:
            yield f"{name} is missing"
        except (OSError, ValueError) as e:
            yield f"{name} could not be read ({e})"
    yield from _croissant_problems(manifest, directory)
    for name in ("transform_fn", "transformed_metadata"):
        if not storage.is_folder(storage.join(directory, TRANSFORM_NAME, name)):
            yield f"{TRANSFORM_NAME}/{name} is missing"


def _croissant_problems(manifest: Mapping[str, Any], directory: str) -> Iterator[str]:
    """Where `croissant.json`, which data sets of older versions lack, lists other shards."""
    try:
        content = loads(storage.read(storage.join(directory, CROISSANT_NAME)), _CROISSANT)
        listed = {one["@id"]: one["sha256"] for one in content["distribution"] if "sha256" in one}
    except FileNotFoundError:
        return
    except (OSError, ValueError) as e:
        yield f"{CROISSANT_NAME} could not be read ({e})"
        return
    if listed != {shard["file"]: shard["sha256"] for _, shard in shards_of(manifest)}:
        yield f"{CROISSANT_NAME} and manifest.json differ in the shards"


def _features_problems(content: Any, manifest: Mapping[str, Any]) -> Iterator[str]:
    names = content["featuresDict"]["features"].keys()
    for name in sorted(names ^ manifest["features"].keys()):
        where = "features.json" if name in names else "manifest.json"
        yield f"feature {name!r} is in {where} alone"


def _dataset_info_problems(content: Any, manifest: Mapping[str, Any]) -> Iterator[str]:
    lengths = {
        split["name"]: [int(length) for length in split["shardLengths"]]
        for split in content["splits"]
    }
    for name in sorted(lengths.keys() | manifest["splits"].keys()):
        shards = manifest["splits"].get(name, {}).get("shards", [])
        if lengths.get(name) != [shard["num_records"] for shard in shards]:
            yield f"dataset_info.json and manifest.json differ in the shards of split {name!r}"


def _repeated(values: Iterable[int]) -> set[int]:
    seen: set[int] = set()
    twice: set[int] = set()
    for value in values:
        if value in seen:
            twice.add(value)
        elif value:
            seen.add(value)
    return twice


def names_in(folder: str) -> list[str]:
    """What a folder holds, sorted; nothing if it cannot be read."""
    try:
        return [entry.name for entry in storage.list_folder(folder)]
    except OSError:
        return []
