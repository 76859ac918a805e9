"""`manifest.json`, the contract between the two programs: its names, how it is written and read.

A data set is a folder with shards and, written last, this file. What its keys mean stands in
ARCHITECTURE.md; they are fixed by `format_version`, and more may be added.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from imageshards import storage
from imageshards.errors import DamagedManifestError, UserError

FORMAT_VERSION = 1

# Files and folders of a data set.
MANIFEST_NAME = "manifest.json"
TRANSFORM_NAME = "transform"
QUARANTINE_NAME = "quarantine"
REJECTS_NAME = "rejects.jsonl"
REPORT_NAME = "report"
INDEX_NAME = "index"
CROISSANT_NAME = "croissant.json"
PAGE_NAME = "index.html"  # in the report's folder
# Of one that is being built.
STAGING_NAME = ".staging"
LOCK_NAME = "lock"  # in there: of the job that writes
REPLACED_NAME = "replaced"  # in there: the data set that a build reads and replaces
REMOVAL_NAME = "removal.json"  # in there: what `beam_pipeline.remove` is about to put in place

# Usual names of a split: who asks for one of them means any. None to validate on is called test:
# what was chosen by it, such as the best epoch, is not measured by it any more.
TRAIN_NAMES = ("train", "training")
VALIDATION_NAMES = ("validation", "val", "valid")

SHARD_NAME = re.compile(r"(\w+)-(\d{5})-of-(\d{5})\.tfrecord(\.gz)?")
"""Split, number, number of shards, and `.gz` where they are compressed."""

IMAGE_FEATURE = "image/encoded"
LABEL_FEATURE = "image/class/label"
CLASS_FEATURE = "image/class/text"
FILENAME_FEATURE = "image/filename"
SHA256_FEATURE = "image/key/sha256"

# What every record holds, whatever its extra columns. A shape of null is a variable length.
RECORD_FEATURES: dict[str, dict[str, Any]] = {
    IMAGE_FEATURE: {"dtype": "string", "shape": []},
    "image/format": {"dtype": "string", "shape": []},
    "image/height": {"dtype": "int64", "shape": []},
    "image/width": {"dtype": "int64", "shape": []},
    "image/channels": {"dtype": "int64", "shape": []},
    "image/colorspace": {"dtype": "string", "shape": []},
    LABEL_FEATURE: {"dtype": "int64", "shape": []},
    CLASS_FEATURE: {"dtype": "string", "shape": []},
    FILENAME_FEATURE: {"dtype": "string", "shape": []},
    SHA256_FEATURE: {"dtype": "string", "shape": []},
}
DTYPES = ("int64", "float32", "string")
COMPRESSIONS = ("none", "gzip")

# Columns below this name hold one entry per box; these four are the sides of the boxes, 0..1.
OBJECT_PREFIX = "image/object/"
BOX_FEATURES = tuple(f"{OBJECT_PREFIX}bbox/{side}" for side in ("xmin", "xmax", "ymin", "ymax"))

_KEYS: dict[str, type] = {
    "format_version": int,
    "splits": dict,
    "classes": list,
    "features": dict,
    "image": dict,
    "listed": int,
    "rejects": dict,
    "fingerprint": str,
}
_SHARD_KEYS: dict[str, type] = {"file": str, "num_records": int, "num_bytes": int}
# No reader needs these two, but `verify` does.
_MORE_SHARD_KEYS: dict[str, type] = {"sha256": str, "classes": dict}
_INDEX_KEYS: dict[str, type] = {"file": str, "num_bytes": int, "sha256": str}
_JSON_NAMES = {int: "a whole number", str: "a text", list: "an array", dict: "an object"}
_REMEDY = "build the data set again with imageshards build and --overwrite"


def load_manifest(directory: str, argument: str = "directory") -> dict[str, Any]:
    """Reads and checks `directory/manifest.json`: whoever has it may rely on its form.

    Args:
        directory: The data set, on this machine or in a store.
        argument: What received it, for messages: `--data`.

    Raises:
        DamagedManifestError: It is damaged.
        UserError: There is none, it cannot be read, or a newer version wrote it; or its store
            cannot be used.
    """
    manifest = read_manifest(directory, argument)
    for problem in form_problems(manifest):
        raise DamagedManifestError(
            f"{argument} received {directory!r}, in whose {MANIFEST_NAME} {problem}; {_REMEDY}."
        )
    return manifest


def read_manifest(directory: str, argument: str = "directory") -> dict[str, Any]:
    """As `load_manifest`, but checks only that the fixed keys are there."""
    received = f"{argument} received {directory!r}"
    try:
        manifest = json.loads(storage.read(storage.join(directory, MANIFEST_NAME)))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{received}, {_why_no_data_set(directory)}.") from None
    except OSError as e:
        # TensorFlow quotes a store's whole answer.
        reason = (e.strerror or str(e)).strip().splitlines()[0].rstrip(". ")
        raise UserError(
            f"{received}, whose {MANIFEST_NAME} could not be read ({reason}); expected a file that "
            "may be read: fix its permissions, or try again."
        ) from e
    except ValueError as e:
        raise DamagedManifestError(
            f"{received}, whose {MANIFEST_NAME} could not be read ({e}); expected the JSON that a "
            f"build writes; {_REMEDY}."
        ) from e
    _check_keys(manifest, received)
    return dict(manifest)


def has_stopped_removal(directory: str) -> bool:
    """Whether a folder is a data set that a stopped `beam_pipeline.remove` left in the middle."""
    staging = storage.join(directory, STAGING_NAME)
    return storage.exists(storage.join(staging, REMOVAL_NAME)) and not storage.exists(
        storage.join(directory, MANIFEST_NAME)
    )


def how_to_finish_removal(directory: str) -> str:
    """The remedy where there is a stopped removal, as a phrase."""
    return (
        f"a removal was stopped: run imageshards remove {directory} --keys KEYS again to finish it"
    )


def _why_no_data_set(directory: str) -> str:
    """What is wrong with a folder without a manifest, and what to do, as a phrase."""
    if storage.is_local(directory) and not os.path.isdir(directory):
        if os.path.lexists(directory):
            return "which is a file; expected the folder that a build wrote: name that"
        build = f"imageshards build --input PHOTOS --output {directory}"
        return (
            "which does not exist; expected the folder that a build wrote: fix the path, or build "
            f"a data set there with {build}"
        )
    return (
        f"where there is no {MANIFEST_NAME}; a directory without a manifest is not a data set: "
        f"{_how_to_build(directory)}"
    )


def _how_to_build(directory: str) -> str:
    """What to do about a missing data set: nothing is built into a folder with other files."""
    try:
        if has_stopped_removal(directory):
            return how_to_finish_removal(directory)
        if storage.is_folder(storage.join(directory, STAGING_NAME)):
            if holder := storage.lock_holder(storage.join(directory, STAGING_NAME, LOCK_NAME)):
                return f"it is being built now by {holder}; wait until that has ended"
            return "its build has not ended; run that again to finish it"
        is_new = next(iter(storage.files_below(directory)), None) is None
    except OSError:
        is_new = True
    if is_new:
        return f"build one with imageshards build --input PHOTOS --output {directory}"
    beside = f"{directory.rstrip('/')}-shards"
    return (
        "if these are the photos, build one beside them with imageshards build --input "
        f"{directory.rstrip('/')} --output {beside}, and give {beside} instead"
    )


def _check_keys(manifest: Any, received: str) -> None:
    if not isinstance(manifest, Mapping):
        raise DamagedManifestError(
            f"{received}, whose {MANIFEST_NAME} holds a {type(manifest).__name__}; expected a JSON "
            f"object; {_REMEDY}."
        )
    version = manifest.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UserError(
            f"{received}, whose {MANIFEST_NAME} has format_version {version}; this release reads "
            f"up to {FORMAT_VERSION}: upgrade imageshards."
        )
    for key, kind in _KEYS.items():
        if not isinstance(manifest.get(key), kind):
            found = f"has {key} = {manifest[key]!r}" if key in manifest else f"lacks {key!r}"
            raise DamagedManifestError(
                f"{received}, whose {MANIFEST_NAME} {found}; expected {_JSON_NAMES[kind]}; "
                f"{_REMEDY}."
            )


def form_problems(manifest: Mapping[str, Any], *, complete: bool = False) -> Iterator[str]:
    """What of a manifest has the wrong form, as phrases; what reads it may trip over it.

    Args:
        manifest: What `read_manifest` returns.
        complete: Whether to look for what only the check of a data set needs, too.
    """
    for split, entry in manifest["splits"].items():
        if not isinstance(entry, dict) or not isinstance(entry.get("shards"), list):
            yield f"split {split!r} has no list of shards"
            continue
        if not isinstance(entry.get("num_records"), int):
            yield f"split {split!r} has no num_records"
        for number, shard in enumerate(entry["shards"]):
            yield from _shard_problems(f"shard {number} of split {split!r}", shard, complete)
    for name, spec in manifest["features"].items():
        yield from _feature_problems(name, spec)
    compression = manifest.get("compression", "none")
    if first_label_of(manifest) not in (0, 1):
        yield f"first_label is {first_label_of(manifest)!r}, not 0 or 1"
    if compression not in COMPRESSIONS:
        yield f"the compression is {compression!r}, not {' or '.join(COMPRESSIONS)}"
    if complete:
        for name, spec in RECORD_FEATURES.items():
            if manifest["features"].get(name) != spec:
                yield f"feature {name!r} is not declared as {spec}"
        for key in ("size", "mode"):
            if key not in manifest["image"]:
                yield f"'image' has no {key!r}"


def _shard_problems(where: str, shard: Any, complete: bool) -> Iterator[str]:
    for key, kind in (_SHARD_KEYS | _MORE_SHARD_KEYS).items():
        wanted = complete or key in _SHARD_KEYS
        value = shard.get(key) if isinstance(shard, dict) else None
        if not isinstance(value, kind) and (wanted or value is not None):
            yield f"{where} has no valid {key!r}"
    index = shard.get("index") if isinstance(shard, dict) else None  # older versions made none
    if index is not None and not (
        isinstance(index, dict)
        and all(isinstance(index.get(key), kind) for key, kind in _INDEX_KEYS.items())
    ):
        yield f"{where} has no valid 'index'"


def _feature_problems(name: str, spec: Any) -> Iterator[str]:
    if not isinstance(spec, dict) or "shape" not in spec or "dtype" not in spec:
        yield f"feature {name!r} has no dtype and shape"
    elif spec["dtype"] not in DTYPES:
        yield f"feature {name!r} is {spec['dtype']}, not int64, float32 or string"
    elif spec["shape"] is not None and not (
        isinstance(spec["shape"], list) and all(isinstance(n, int) for n in spec["shape"])
    ):
        yield f"feature {name!r} has the shape {spec['shape']!r}, neither whole numbers nor null"


def write_manifest(directory: str, manifest: Mapping[str, Any]) -> None:
    """Writes `directory/manifest.json`, whole or not at all: from then on it is a data set."""
    storage.write(storage.join(directory, MANIFEST_NAME), to_json(manifest))
    storage.sync(directory)


def to_json(value: Any) -> str:
    """JSON as all our files have it: readable, and the same bytes for the same content."""
    return json.dumps(value, indent=1, sort_keys=False, ensure_ascii=False) + "\n"


def first_label_of(manifest: Mapping[str, Any]) -> int:
    """The label that records of the first class have: their label minus this is the class id."""
    return manifest.get("first_label", 0)


def shards_of(manifest: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every (split, entry of a shard) of a manifest, in its order."""
    for split, entry in manifest["splits"].items():
        for shard in entry["shards"]:
            yield split, shard


def find_split(name: str, splits: Collection[str], argument: str, where: str = "") -> str:
    """The split of that name, else one whose name usually means the same: `val` for `validation`.

    Args:
        name: What was asked for.
        splits: Those there are.
        argument: What received the name, for messages.
        where: Whose splits they are, for messages, if that is not plain.

    Raises:
        UserError: There is no such split.
    """
    names = next((names for names in (TRAIN_NAMES, VALIDATION_NAMES) if name in names), ())
    found = next((one for one in (name, *names) if one in splits), None)
    if found is None:
        known = ", ".join(splits) or "none"
        raise UserError(f"{argument} received {name!r}; expected one of {known}{where}.")
    return found


def without_index(splits: Mapping[str, Any]) -> dict[str, Any]:
    """The splits of a manifest for a fingerprint: an index follows from its shard, but for PyArrow.

    So data sets with the same shards have the same fingerprint, with an index or without.
    """
    return {
        name: {
            **split,
            "shards": [
                {key: value for key, value in shard.items() if key != "index"}
                for shard in split["shards"]
            ],
        }
        for name, split in splits.items()
    }
