"""Reads the description that TensorFlow Datasets (TFDS) writes beside its TFRecords.

The layout is https://www.tensorflow.org/datasets/external_tfrecord; only its JSON is read.
"""

from __future__ import annotations

import dataclasses
import glob
import json
from collections.abc import Mapping
from typing import Any

from imageshards import storage
from imageshards.errors import Arg, UserError

INFO_FILE = "dataset_info.json"
_FEATURES_FILE = "features.json"
_DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


@dataclasses.dataclass(frozen=True)
class TfdsFolder:
    """A dataset of TFDS.

    Attributes:
        splits: Split → path of each shard → number of records.
        image_feature, label_feature: Name of the Image and of the ClassLabel; None without one.
        channels: Channels of the pictures; None if they vary.
        classes: Class names in the order of the ids; None without a ClassLabel.
    """

    splits: Mapping[str, Mapping[str, int]]
    image_feature: str | None
    label_feature: str | None
    channels: int | None
    classes: tuple[str, ...] | None


def _find_folder(directory: str) -> str | None:
    """Returns `directory` or its only version, whichever TFDS wrote; None if there is none."""
    if storage.exists(storage.join(directory, INFO_FILE)):
        return directory
    below = [
        storage.parent_of(path)
        for version in ("*", "*/*")  # name/version, name/configuration/version
        for path in storage.glob(storage.join(glob.escape(directory), version, INFO_FILE))
    ]
    if len(below) > 1:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, which holds several datasets of TFDS ({', '.join(below)})",
            expected="one of these folders",
        )
    return next(iter(below), None)


def open_tfds(directory: str) -> TfdsFolder | None:
    """Reads the description in `directory` or its only version; None if there is none.

    Raises:
        UserError: There are several versions or configurations, or the description is incomplete
            or of an unknown form.
    """
    if (folder := _find_folder(directory)) is None:
        return None
    try:
        info = json.loads(storage.read(storage.join(folder, INFO_FILE)))
        features = json.loads(storage.read(storage.join(folder, _FEATURES_FILE)))
        fields = dict(_walk("", features))
        image, label = _image_and_label(info, fields)
        channels = _channels(fields[image]["image"]) if image else None
        classes = _classes(folder, label, fields[label]["classLabel"]) if label else None
        splits = {str(raw["name"]): _shards(folder, info, raw) for raw in info["splits"]}
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as e:
        raise UserError(
            argument="DIR",
            received=f"{folder!r}, whose {INFO_FILE} or {_FEATURES_FILE} is not what TensorFlow "
            f"Datasets writes ({type(e).__name__}: {e})",
            remedy="prepare the dataset again, or name its files by " + Arg("split"),
        ) from e
    file_format = info.get("fileFormat", "tfrecord")
    if file_format != "tfrecord":
        raise UserError(
            argument="DIR",
            received=f"{folder!r}, whose fileFormat is {file_format}",
            expected="tfrecord",
            remedy="prepare it with file_format='tfrecord'",
        )
    return TfdsFolder(splits, image, label, channels, classes)


def _walk(name: str, feature: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Flattens the tree of features; returns each leaf with its name in the records."""
    if "featuresDict" not in feature:
        return [(name, feature)]
    inner = feature["featuresDict"]["features"]
    return [
        leaf
        for key, value in inner.items()
        for leaf in _walk(f"{name}/{key}" if name else key, value)
    ]


def _image_and_label(
    info: dict[str, Any], fields: dict[str, dict[str, Any]]
) -> tuple[str | None, str | None]:
    """Returns the names of the supervised pair, else of the first feature of each kind."""
    pair = info.get("supervisedKeys", {}).get("tuple", {}).get("items", [])
    keys = [str(item.get("featureKey")) for item in pair]

    def first(kind: str) -> str | None:
        named = [name for name in (*keys, *fields) if kind in fields.get(name, {})]
        return next(iter(named), None)

    return first("image"), first("classLabel")


def _channels(image: dict[str, Any]) -> int | None:
    sides = [int(side) for side in image.get("shape", {}).get("dimensions", [])]
    # TFDS writes an unknown side as -1.
    return sides[2] if len(sides) == 3 and sides[2] > 0 else None


def _classes(folder: str, label: str, raw: dict[str, Any]) -> tuple[str, ...]:
    try:
        names = storage.read(storage.join(folder, f"{label.replace('/', '.')}.labels.txt"))
    except FileNotFoundError:  # A ClassLabel without names has a number of classes only.
        return tuple(str(i) for i in range(int(raw["numClasses"])))
    return tuple(names.decode().rstrip("\n").split("\n"))


def _shards(folder: str, info: dict[str, Any], split: dict[str, Any]) -> dict[str, int]:
    lengths = [int(length) for length in split.get("shardLengths", [])]
    template = split.get("filepathTemplate") or _DEFAULT_TEMPLATE
    shards = {}
    for index, length in enumerate(lengths):
        words = {
            "DATASET": info["name"],
            "SPLIT": split["name"],
            "FILEFORMAT": "tfrecord",
            "SHARD_INDEX": f"{index:05d}",
            "NUM_SHARDS": f"{len(lengths):05d}",
            "SHARD_X_OF_Y": f"{index:05d}-of-{len(lengths):05d}",
        }
        name = template.format_map(words)
        # The description may come from a stranger and must not lead out of its folder.
        if storage.name_of(name) != name:
            raise ValueError(f"the file {name!r} would be in another folder")
        shards[storage.join(folder, name)] = length
    return shards
