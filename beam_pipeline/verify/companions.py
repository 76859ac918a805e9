"""What stands beside the shards: the quarantine, the TFDS files, the exported transform."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from beam_pipeline.verify.data_set import SHARD_NAME, has_folder, names_in
from imageshards import storage
from imageshards.tfrecord import RecordError, read_records


def accounting_problems(manifest: Mapping[str, Any], directory: str) -> Iterator[str]:
    """Whether every listed image became a record or a reject, as phrases."""
    records = sum(entry["num_records"] for entry in manifest["splits"].values())
    rejects = sum(manifest["rejects"].values())
    if manifest["listed"] != records + rejects:
        yield (
            f"manifest.json: {manifest['listed']} images were listed, but {records} records + "
            f"{rejects} rejects = {records + rejects}"
        )
    yield from _quarantine_problems(manifest["rejects"], directory, rejects)


def _quarantine_problems(listed: Mapping[str, int], directory: str, total: int) -> Iterator[str]:
    folder = storage.join(directory, "quarantine")
    reasons: Counter[str] = Counter()
    try:
        with storage.open_read(storage.join(folder, "rejects.jsonl")) as file:
            reasons.update(json.loads(line)["reason"] for line in file if line.strip())
    except FileNotFoundError:
        if total:
            yield f"quarantine/rejects.jsonl is missing, but the manifest counts {total} rejects"
            return
    except (OSError, ValueError, KeyError, TypeError) as e:
        yield f"quarantine/rejects.jsonl could not be read ({type(e).__name__}: {e})"
        return
    for reason in sorted(reasons.keys() | listed.keys()):
        if reasons[reason] != listed.get(reason, 0):
            yield (
                f"quarantine/rejects.jsonl holds {reasons[reason]} rejects for {reason!r}; "
                f"the manifest says {listed.get(reason, 0)}"
            )
    names = sorted(n for n in names_in(folder) if SHARD_NAME.fullmatch(n))
    count = 0
    for name in names:
        compression = "gzip" if name.endswith(".gz") else "none"
        try:
            count += sum(1 for _ in read_records(storage.join(folder, name), compression))
        except RecordError as e:
            yield f"quarantine/{name}, record {e.number} at byte {e.offset_bytes}: {e.what}"
            return
    if names and count != total:
        yield f"the quarantine holds {count} records; the manifest says {total} rejects"


def metadata_problems(manifest: Mapping[str, Any], directory: str) -> Iterator[str]:
    """Whether the TFDS files and TFT's output are there and agree, as phrases."""
    for name in ("features.json", "dataset_info.json"):
        try:
            content = json.loads(storage.read(storage.join(directory, name)))
        except FileNotFoundError:
            yield f"{name} is missing"
            continue
        except (OSError, ValueError) as e:
            yield f"{name} could not be read ({e})"
            continue
        check = _features_problems if name == "features.json" else _dataset_info_problems
        yield from check(content, manifest)
    for name in ("transform_fn", "transformed_metadata"):
        if not has_folder(storage.join(directory, "transform", name)):
            yield f"transform/{name} is missing"


def _features_problems(content: Any, manifest: Mapping[str, Any]) -> Iterator[str]:
    try:
        names = set(content["featuresDict"]["features"])
    except (KeyError, TypeError) as e:
        yield f"features.json has no valid features ({type(e).__name__}: {e})"
        return
    for name in sorted(names ^ manifest["features"].keys()):
        where = "features.json" if name in names else "manifest.json"
        yield f"feature {name!r} is in {where} alone"


def _dataset_info_problems(content: Any, manifest: Mapping[str, Any]) -> Iterator[str]:
    try:
        lengths = {
            split["name"]: [int(length) for length in split["shardLengths"]]
            for split in content["splits"]
        }
    except (KeyError, TypeError, ValueError) as e:
        yield f"dataset_info.json has no valid splits ({type(e).__name__}: {e})"
        return
    for name in sorted(lengths.keys() | manifest["splits"].keys()):
        shards = manifest["splits"].get(name, {}).get("shards", [])
        if lengths.get(name) != [shard["num_records"] for shard in shards]:
            yield f"dataset_info.json and manifest.json differ in the shards of split {name!r}"
