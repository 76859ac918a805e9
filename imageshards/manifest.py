"""`manifest.json`, the contract between the two programs: its names, how it is written and read.

A data set is a folder with shards and, written last, this file. What its keys mean stands in
ARCHITECTURE.md; they are fixed by `format_version`, and more may be added.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from imageshards import storage, tfrecord
from imageshards.errors import DamagedManifestError, LeaseLostError, UserError
from imageshards.form import (
    Form,
    FormError,
    anything,
    flag,
    keyed,
    listed,
    loads,
    mapped,
    nullable,
    number,
    one_of,
    such,
    text,
    whole,
)
from imageshards.records_root import check_folders, is_outside

FORMAT_VERSION = 1

# Files and folders of a data set.
MANIFEST_NAME = "manifest.json"
TRANSFORM_NAME = "transform"
QUARANTINE_NAME = "quarantine"
REJECTS_NAME = "rejects.jsonl"
REPORT_NAME = "report"
INDEX_NAME = "index"
CROISSANT_NAME = "croissant.json"
DUPLICATES_NAME = "duplicates"
PAGE_NAME = "index.html"  # in the report's folder
# Of one that is being built.
STAGING_NAME = ".staging"
LOCK_NAME = "lock"  # in there: of the job that writes
REPLACED_NAME = "replaced"  # in there: the data set that a build replaces

# Usual names of a split: who asks for one of them means any. None to validate on is called test:
# what was chosen by it, such as the best epoch, is not measured by it any more.
TRAIN_NAMES = ("train", "training")
VALIDATION_NAMES = ("validation", "val", "valid")
# What folders and files of a split are called.
SPLIT_NAMES = {
    *TRAIN_NAMES, *VALIDATION_NAMES, "dev", "eval", "evaluation", "test", "testing",
}  # fmt: skip

# A split's name becomes part of file names.
SPLIT_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")
SHARD_NAME = re.compile(r"(\w+)-(\d{5})-of-(\d{5})\.tfrecord")
"""Split, number, number of shards."""

IMAGE_FEATURE = "image/encoded"
LABEL_FEATURE = "image/class/label"
LABELS_FEATURE = "image/class/labels"
CLASS_FEATURE = "image/class/text"
FILENAME_FEATURE = "image/filename"
SHA256_FEATURE = "image/key/sha256"

# How many labels an image has: `--label` of a build.
ONE, NONE, SEVERAL = "one", "none", "several"

# What every record with one label holds, whatever its extra columns.
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
# Instead of its label and class. A shape of null is a variable length.
_LABEL_FEATURES: dict[str, dict[str, dict[str, Any]]] = {
    NONE: {},
    SEVERAL: {
        LABELS_FEATURE: {"dtype": "int64", "shape": None},
        CLASS_FEATURE: {"dtype": "string", "shape": None},
    },
}
RECORD_NAMES = frozenset({*RECORD_FEATURES, LABELS_FEATURE})
"""Features that no extra column can be."""
DTYPES = ("int64", "float32", "string")

# Columns below this name hold one entry per box: its class, and its four sides, 0..1.
OBJECT_PREFIX = "image/object/"
BOX_CLASS_FEATURE = f"{OBJECT_PREFIX}class/text"
BOX_LABEL_FEATURE = f"{OBJECT_PREFIX}class/label"
BOX_FEATURES = tuple(f"{OBJECT_PREFIX}bbox/{side}" for side in ("xmin", "xmax", "ymin", "ymax"))

_BUILD_AGAIN = "build the data set again with imageshards build and --overwrite"
FRAME_BYTES = 16  # of an empty record
# Of a name with what is added to it while it is written; file systems end at 255.
_MAX_NAME_BYTES = 200
_MAX_SIDE_PX = 65_535  # JPEG's own
_MAX_VALUES = 2**31 - 1  # of a feature: a protobuf message ends at 2 GiB
_MAX_DIMENSIONS = 32
# What stands beside the shards, or below them.
_NOT_SHARDS = (TRANSFORM_NAME, QUARANTINE_NAME, REPORT_NAME, INDEX_NAME)
_NOT_SHARDS_SUFFIXES = (".json", ".txt")


def _is_plain(name: str) -> bool:
    """Whether a name leads to nothing but a file of its folder that has it."""
    is_one = re.fullmatch(r"[^./\\][^/\\]*", name) is not None and name.isprintable()
    return is_one and len(name.encode()) <= _MAX_NAME_BYTES


# What is read, written beside it or replaced stays in the folder.
_file_name = such(
    lambda name: (
        _is_plain(name) and name not in _NOT_SHARDS and not name.endswith(_NOT_SHARDS_SUFFIXES)
    ),
    "the plain name of a shard in the data set's folder",
    text(),
)
_index_name = such(
    lambda name: name.startswith(f"{INDEX_NAME}/") and _is_plain(name.partition("/")[2]),
    f"a file in {INDEX_NAME}/",
    text(),
)
_folder_name = such(
    lambda name: "\0" not in name and not {".", ".."} & {*name.split("/")},
    "a folder, without . and ..",
    text(),
)
_below = such(
    lambda name: all(map(_is_plain, name.split("/"))), "a file in the data set's folder", text()
)
_shape = such(
    lambda shape: len(shape) <= _MAX_DIMENSIONS and math.prod(shape) <= _MAX_VALUES,
    "a shape that fits into a record",
    listed(whole()),
)
_side = whole(_MAX_SIDE_PX, 1)
_classes = such(lambda names: len({*names}) == len(names), "each class once", listed(text()))


def _size(value: Any) -> None:
    if type(value) is int:
        _side(value)
    else:
        such(lambda sides: len(sides) == 2, "one side or two, in pixels", listed(_side))(value)


_COUNTS = mapped(whole())
_SHA256 = text("[0-9a-f]{64}", "64 hexadecimal digits")
_FILE = keyed({"num_bytes": whole(), "sha256": _SHA256})
_SHARD = keyed(
    {
        "file": _file_name,
        "num_records": whole(),
        "num_bytes": whole(),
        "index": keyed({"file": _index_name, "num_bytes": whole(), "sha256": _SHA256}),
    },
    {
        "sha256": _SHA256,
        "classes": _COUNTS,
        # Of one that `imageshards adopt` left where it was: below the data set, or where the user
        # allows (`records_root`).
        "folder": _folder_name,
    },
)
_MANIFEST = keyed(
    {
        "format_version": one_of(FORMAT_VERSION),
        "splits": mapped(
            keyed({"num_records": whole(), "shards": listed(_SHARD)}),
            text(SPLIT_NAME.pattern, "the name of a split: letters, digits and underscores"),
        ),
        "classes": _classes,
        "features": mapped(keyed({"dtype": one_of(*DTYPES), "shape": nullable(_shape)})),
        "image": keyed(
            {},
            {
                "size": nullable(_size),
                "mode": text(),
                "filter": text(),
                "channels": one_of(1, 3),
                "background": listed(whole(255)),
                "only_shrink": flag,
                "mean": nullable(listed(number)),
                "std": nullable(listed(number)),
            },
        ),
        "listed": whole(),
        "rejects": _COUNTS,
        "fingerprint": text(),
    },
    {
        # What lies beside shards and index.
        "files": mapped(_FILE, _below),
        "skipped": _COUNTS,
        "copies": _COUNTS,
        "source": keyed({}, {"formats": _COUNTS, "notes": _COUNTS, "missing": _COUNTS}),
        "inputs": listed(
            keyed({"path": text(), "num_records": whole(), "fingerprint": nullable(text())})
        ),
        "options": keyed(
            {},
            {
                "input": keyed(
                    {},
                    {
                        "group_column": nullable(text()),
                        "columns": nullable(listed(keyed({}, {"scale": text()}))),
                    },
                ),
                "plan": keyed({}, {"splits": mapped(number), "salt": text()}),
                "columns_as_given": flag,
            },
        ),
        "versions": mapped(anything),
        "warnings": listed(text()),
    },
)
# Of what others wrote: which features of its records are which.
_ADOPTED = keyed(
    {
        "adopted": keyed(
            {"image": text()},
            {
                "label": nullable(text()),
                # Features of 0s and 1s, one for each class, in place of the label.
                "hot": listed(text()),
                "labels": one_of(ONE, SEVERAL, NONE),
                "filename": nullable(text()),
                "text": nullable(text()),
            },
        )
    },
    {"first_label": whole()},
)
_NOTHING = such(lambda _: False, "no such key in what a build wrote")
_OWN = keyed(
    {"splits": mapped(keyed({"shards": listed(keyed({}, {"folder": _NOTHING}))}))},
    {"first_label": _NOTHING},
)
# Of one that a check, a report or a build of its records goes through.
_COUNTED = keyed(
    {
        "splits": mapped(keyed({"shards": listed(keyed({"sha256": _SHA256, "classes": _COUNTS}))})),
        "files": anything,
    }
)
_SCALAR = such(lambda shape: shape == [], "[], a single value")
_VARIABLE = such(lambda shape: shape is None, "null, a variable length")


def record_features(label: str) -> dict[str, dict[str, Any]]:
    """What every record holds, by how many labels it has."""
    if label == ONE:
        return RECORD_FEATURES
    others = (LABEL_FEATURE, CLASS_FEATURE)
    kept = {name: spec for name, spec in RECORD_FEATURES.items() if name not in others}
    return kept | _LABEL_FEATURES[label]


def _complete(label: str) -> Form:
    shapes = {True: _VARIABLE, False: _SCALAR}
    features = {
        name: keyed({"dtype": one_of(spec["dtype"]), "shape": shapes[spec["shape"] is None]})
        for name, spec in record_features(label).items()
    }
    image = keyed({"size": _size, "mode": text()})
    return keyed({"features": keyed(features), "image": image})


_REJECT = keyed(
    dict.fromkeys(("key", "uri", "label", "split", "reason", "stage", "message"), text())
)


def load_manifest(
    directory: str | os.PathLike[str],
    argument: str = "directory",
    *,
    complete: bool = False,
    adopted: bool = False,
    records_root: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Reads and checks `directory/manifest.json`: whoever has it may rely on its form.

    Whoever wrote it: each file that it names is one of the folder, or of a place that the caller
    names; each number is a count; and its content is what was written.

    Args:
        directory: The data set, on this machine or in a store.
        argument: What received it, for messages: `--data`.
        complete: Whether it must have all that a build writes of shards, features and pictures;
            a reader of records needs less.
        adopted: Whether it may describe records that others wrote, which are only read.
        records_root: The folder, or place in a store, where such records may lie besides the
            dataset's own folder.

    Raises:
        DamagedManifestError: It is damaged.
        UserError: There is none, it cannot be read, or another version wrote it; its store cannot
            be used; or it leads to a place that is not allowed.
    """
    directory = storage.place(argument, directory)
    received = f"{argument} received {directory!r}"
    manifest = _read(directory, received)
    try:
        check_form(manifest)
        if "adopted" in manifest and not adopted:
            raise UserError(
                f"{received}, TFRecords that others wrote, with a manifest of imageshards adopt: "
                "they can be trained and evaluated on, and checked; expected what imageshards "
                "build wrote."
            )
        if complete:
            _COUNTED(manifest)
            (anything if "adopted" in manifest else _complete(label_of(manifest)))(manifest)
    except FormError as e:
        raise _damaged(received, f", in whose {MANIFEST_NAME} {e}", manifest) from e
    if manifest.get("digest") != digest_of(manifest):
        wrong = f", whose {MANIFEST_NAME} does not have the digest of its content; expected the "
        raise _damaged(received, f"{wrong}file as it was written, without any change", manifest)
    check_folders(received, manifest, records_root)
    return manifest


def _read(directory: str, received: str) -> dict[str, Any]:
    """Returns what a manifest holds, in whatever form, of a format that this release knows."""
    try:
        data = storage.read(storage.join(directory, MANIFEST_NAME))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{received}, {_why_no_data_set(directory)}.") from None
    except OSError as e:
        # TensorFlow quotes a store's whole answer.
        reason = (e.strerror or str(e)).strip().splitlines()[0].rstrip(". ")
        raise UserError(
            f"{received}, whose {MANIFEST_NAME} could not be read ({reason}); expected a file that "
            "may be read: fix its permissions, or try again."
        ) from e
    try:
        manifest: dict[str, Any] = loads(data, anything)
    except ValueError as e:
        wrong = f", whose {MANIFEST_NAME} could not be read ({e}); expected the JSON that a build "
        raise _damaged(received, f"{wrong}writes") from e
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if type(version) is int and version > FORMAT_VERSION:
        raise UserError(
            f"{received}, whose {MANIFEST_NAME} has format_version {version}; this release reads "
            f"up to {FORMAT_VERSION}: upgrade imageshards."
        )
    return manifest


def _damaged(received: str, wrong: str, manifest: Any = None) -> DamagedManifestError:
    """The error for a damaged manifest, with the remedy."""
    is_adopted = isinstance(manifest, dict) and "adopted" in manifest
    remedy = "write it again by imageshards adopt" if is_adopted else _BUILD_AGAIN
    return DamagedManifestError(f"{received}{wrong}: copy it again, or {remedy}.")


def digest_of(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of all that a manifest says but its `digest`, as JSON without spaces, keys sorted."""
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_form(manifest: Any) -> None:
    """Raises FormError where a manifest has not the form that who reads it relies on."""
    _MANIFEST(manifest)
    (_ADOPTED if "adopted" in manifest else _OWN)(manifest)
    _check_shards(manifest)


def _check_shards(manifest: Mapping[str, Any]) -> None:
    """Checks what no shard tells alone: its name is its own, and its size can hold its records."""
    names: set[str] = set()
    for _, shard in shards_of(manifest):
        file = shard["file"]
        if shard_name(shard) in names:
            raise FormError(file, "each shard once").within("file")
        names.add(shard_name(shard))
        if shard["num_records"] * FRAME_BYTES > shard["num_bytes"]:
            expected = f"no more than {shard['num_bytes']} bytes can hold"
            raise FormError(shard["num_records"], expected).within("num_records")


def _why_no_data_set(directory: str) -> str:
    """What is wrong with a folder without a manifest, and what to do, as a phrase."""
    if storage.is_local(directory) and not os.path.isdir(directory):
        what = "is a file" if os.path.lexists(directory) else "does not exist"
        return (
            f"which {what}; expected the folder that a build wrote: fix the path, or build a data "
            "set there with imageshards build --input PHOTOS --output FOLDER"
        )
    try:
        remedy = _how_to_build(directory)
    except OSError:
        remedy = "name another folder, or build it again"
    return (
        f"where there is no {MANIFEST_NAME}; a directory without a manifest is not a data set: "
        f"{remedy}"
    )


def _how_to_build(directory: str) -> str:
    """What to do about a missing data set: nothing is built into a folder with other files."""
    staging = storage.join(directory, STAGING_NAME)
    if storage.is_folder(staging):
        before = storage.join(staging, REPLACED_NAME)
        is_there = storage.exists(storage.join(before, MANIFEST_NAME))
        kept = f", and the data set before it is in {before}" if is_there else ""
        return f"its build has not ended{kept}; wait for it, or run it again if it was stopped"
    some = [found.path for found in itertools.islice(storage.files_below(directory), 1000)]
    if any(tfrecord.FILE_NAME.search(storage.name_of(path)) for path in some):
        return f"these are TFRecords, which need one: write it by imageshards adopt {directory}"
    photos = directory.rstrip("/") if some else "PHOTOS"
    if storage.name_of(photos) in ("", ".", ".."):  # no name to which something could be added
        photos = os.path.abspath(directory)
    output = f"{photos}-shards" if some else directory
    beside = "if these are the photos, " if some else ""
    return f"{beside}build one with imageshards build --input {photos} --output {output}"


def read_rejects(directory: str) -> Iterator[dict[str, str]]:
    """The lines of `quarantine/rejects.jsonl`: key, uri, label, split, reason, stage, message.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read.
        ValueError: A line is not what a build writes.
    """
    with storage.open_read(storage.join(directory, QUARANTINE_NAME, REJECTS_NAME)) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield loads(line, _REJECT)
            except ValueError as e:
                raise ValueError(f"line {number}: {e}") from e


def publish_manifest(directory: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Writes `directory/manifest.json`, whole or not at all: from then on it is a data set.

    No manifest is replaced. One of the same data set may be there: Beam may run a step again.

    Returns:
        The manifest with the digest of its content.

    Raises:
        LeaseLostError: The manifest of another data set is there.
    """
    written = {**manifest, "digest": digest_of(manifest)}
    if not storage.write_new(storage.join(directory, MANIFEST_NAME), to_json(written)):
        if load_manifest(directory)["fingerprint"] != manifest["fingerprint"]:
            raise LeaseLostError(
                f"another process has put a data set into {directory!r} meanwhile, so this one "
                "publishes nothing; choose another folder, or give the command again when no other "
                "process writes there."
            )
    storage.sync(directory)
    return written


def to_json(value: Any) -> str:
    """JSON as all our files have it: readable, and the same bytes for the same content."""
    return json.dumps(value, indent=1, sort_keys=False, ensure_ascii=False) + "\n"


def label_of(manifest: Mapping[str, Any]) -> str:
    """How many labels its records have each: `ONE`, `NONE` or `SEVERAL`."""
    features = manifest["features"]
    if "adopted" in manifest:
        return str(manifest["adopted"].get("labels", ONE))
    if LABEL_FEATURE in features:
        return ONE
    if LABELS_FEATURE in features:
        return SEVERAL
    return ONE if manifest["classes"] else NONE


def roles_of(manifest: Mapping[str, Any]) -> Mapping[str, str | None]:
    """Which features of its records are `image`, `label`, `filename` and `text`."""
    label = label_of(manifest)
    own = {
        "image": IMAGE_FEATURE,
        "label": {ONE: LABEL_FEATURE, SEVERAL: LABELS_FEATURE}.get(label),
        "filename": FILENAME_FEATURE,
        "text": None if label == NONE else CLASS_FEATURE,
    }
    return {name: manifest.get("adopted", own).get(name) for name in own}


def hot_features_of(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the features of adopted records that hold a 0 or 1 for each class; () for ids."""
    return tuple(manifest.get("adopted", {}).get("hot", ()))


def first_label_of(manifest: Mapping[str, Any]) -> int:
    """The label that records of the first class have: their label minus this is the class id."""
    return manifest.get("first_label", 0)


def shards_of(manifest: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every (split, entry of a shard) of a manifest, in its order."""
    for split, entry in manifest["splits"].items():
        for shard in entry["shards"]:
            yield split, shard


def shard_name(shard: Mapping[str, Any]) -> str:
    """What tells a shard from all others of its data set: its file, with a folder of its own."""
    folder = shard.get("folder", "")
    return storage.join(folder, shard["file"]) if folder else shard["file"]


def shard_path(directory: str, shard: Mapping[str, Any]) -> str:
    """Where a shard of the data set in `directory` lies."""
    return path_of(directory, shard_name(shard))


def path_of(directory: str, name: str) -> str:
    """Where the shard of this `shard_name` lies."""
    return name if is_outside(name) else storage.join(directory, name)


def find_split(name: str, splits: Collection[str], argument: str) -> str:
    """The split of that name, else one whose name usually means the same: `val` for `validation`.

    Messages name the argument that received the name.

    Raises:
        UserError: There is no such split.
    """
    names = next((names for names in (TRAIN_NAMES, VALIDATION_NAMES) if name in names), ())
    found = next((one for one in (name, *names) if one in splits), None)
    if found is None:
        known = ", ".join(splits) or "none"
        raise UserError(f"{argument} received {name!r}; expected one of {known}.")
    return found


def without_index(splits: Mapping[str, Any]) -> dict[str, Any]:
    """The splits of a manifest for a fingerprint: an index follows from its shard, but for PyArrow.

    So data sets with the same shards have the same fingerprint, wherever they lie.
    """
    return {
        name: {
            **split,
            "shards": [
                {key: value for key, value in shard.items() if key not in ("index", "folder")}
                for shard in split["shards"]
            ],
        }
        for name, split in splits.items()
    }
