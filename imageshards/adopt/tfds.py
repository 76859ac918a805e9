"""What a directory written by TensorFlow Datasets says of itself.

The layout is https://www.tensorflow.org/datasets/external_tfrecord; only its JSON is read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from imageshards import storage
from imageshards.errors import UserError
from imageshards.text import counted

INFO_FILE = "dataset_info.json"
_FEATURES_FILE = "features.json"
_DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_VERSION = re.compile(r"^\d+\.\d+\.\d+$")


@dataclasses.dataclass(frozen=True)
class TfdsFolder:
    """A TFDS data set.

    Attributes:
        splits: For each split (path, records) of every shard.
        image_feature, label_feature: Its Image and its ClassLabel, None without one.
        channels: Of its pictures; None where they are not fixed.
        classes: Names in the order of the ids, None without a ClassLabel.
    """

    splits: Mapping[str, tuple[tuple[str, int], ...]]
    image_feature: str | None
    label_feature: str | None
    channels: int | None
    classes: tuple[str, ...] | None


def find_folder(data: str) -> str | None:
    """The folder with `dataset_info.json`: `data`, or its latest version; None without one.

    Raises:
        UserError: There are several configurations to choose from.
        OSError: A folder cannot be listed.
    """
    if any(c in data for c in "*?[") or not storage.is_folder(data):
        return None
    found = _latest(data)
    if found is not None:
        return found
    configurations = {
        entry.name: below
        for entry in storage.list_folder(data)
        if entry.is_folder and (below := _latest(entry.path)) is not None
    }
    if len(configurations) > 1:
        raise UserError(
            f"DIR received {data!r}, which holds several TFDS configurations "
            f"({', '.join(configurations)}); expected one of these folders."
        )
    return next(iter(configurations.values()), None)


def open_tfds(folder: str) -> TfdsFolder:
    """Reads `dataset_info.json`, `features.json` and the names of the labels.

    Raises:
        UserError: They are missing, or say something this reader does not know.
    """
    try:
        info = json.loads(_read_text(os.path.join(folder, INFO_FILE)))
        features = json.loads(_read_text(os.path.join(folder, _FEATURES_FILE)))
        fields = dict(_walk("", features))
        image, label = _image_and_label(info, fields)
        channels = _channels(fields[image]["image"]) if image else None
        classes = _classes(folder, label, fields[label]["classLabel"]) if label else None
        splits = {str(raw["name"]): _shards(folder, info, raw) for raw in info["splits"]}
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as e:
        raise UserError(
            f"DIR received {folder!r}, whose {INFO_FILE} or {_FEATURES_FILE} is not what "
            f"TensorFlow Datasets writes ({type(e).__name__}: {e}); prepare the data set again, "
            "or name its files by --split."
        ) from e
    file_format = info.get("fileFormat", "tfrecord")
    if file_format != "tfrecord":
        raise UserError(
            f"DIR received {folder!r}, whose fileFormat is {file_format}; expected tfrecord: "
            "prepare it with file_format='tfrecord'."
        )
    return TfdsFolder(splits, image, label, channels, classes)


def _latest(folder: str) -> str | None:
    entries = storage.list_folder(folder)
    if _has_info(entries):
        return folder
    versions = sorted(
        (entry for entry in entries if entry.is_folder and _VERSION.match(entry.name)),
        key=lambda entry: [int(n) for n in entry.name.split(".")],
        reverse=True,
    )
    return next((e.path for e in versions if _has_info(storage.list_folder(e.path))), None)


def _has_info(entries: list[storage.Entry]) -> bool:
    return any(entry.name == INFO_FILE and not entry.is_folder for entry in entries)


def _read_text(path: str) -> str:
    return storage.read(path).decode()


def _walk(name: str, feature: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every leaf of the tree of features, under its name in the records."""
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
    """The supervised pair if that is what it holds, else the first of each kind."""
    pair = info.get("supervisedKeys", {}).get("tuple", {}).get("items", [])
    keys = [str(item.get("featureKey")) for item in pair]
    found: list[str | None] = []
    for kind in ("image", "classLabel"):
        named = [name for name in keys if kind in fields.get(name, {})]
        found.append(next(iter(named + [name for name, f in fields.items() if kind in f]), None))
    return found[0], found[1]


def _channels(image: dict[str, Any]) -> int | None:
    sides = [int(side) for side in image.get("shape", {}).get("dimensions", [])]
    return sides[2] if len(sides) == 3 and sides[2] > 0 else None


def _classes(folder: str, label: str, raw: dict[str, Any]) -> tuple[str, ...]:
    path = os.path.join(folder, f"{label.replace('/', '.')}.labels.txt")
    try:
        names = tuple(_read_text(path).split("\n"))
    except FileNotFoundError:
        return tuple(str(i) for i in range(int(raw["numClasses"])))
    while names and not names[-1]:
        names = names[:-1]
    expected = int(raw.get("numClasses", len(names)))
    if len(names) != expected:
        raise ValueError(f"{path} has {counted(len(names), 'name')}, expected {expected}")
    return names


def _shards(
    folder: str, info: dict[str, Any], split: dict[str, Any]
) -> tuple[tuple[str, int], ...]:
    lengths = [int(length) for length in split.get("shardLengths", [])]
    template = split.get("filepathTemplate") or _DEFAULT_TEMPLATE
    shards = []
    for index, length in enumerate(lengths):
        words = {
            "DATASET": info["name"],
            "SPLIT": split["name"],
            "FILEFORMAT": "tfrecord",
            "SHARD_INDEX": f"{index:05d}",
            "NUM_SHARDS": f"{len(lengths):05d}",
            "SHARD_X_OF_Y": f"{index:05d}-of-{len(lengths):05d}",
        }
        shards.append((os.path.join(folder, template.format_map(words)), length))
    return tuple(shards)
