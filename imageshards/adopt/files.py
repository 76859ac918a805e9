"""Finds existing TFRecord files and the split of each.

TensorFlow Datasets (TFDS) writes a description beside its TFRecords. Its layout is
https://www.tensorflow.org/datasets/external_tfrecord; only its JSON is read.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.manifest import SPLIT_NAMES
from imageshards.tfrecord import FILE_NAME, HEADER_BYTES, is_header

_INFO_FILE = "dataset_info.json"
_FEATURES_FILE = "features.json"
_DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_ENDINGS = "*.tfrec, *.tfrecord, *.tfrecords, *.record or NAME-00000-of-00008"

_GZIP_MAGIC = b"\x1f\x8b"
# Text before the number, number, total, rest of the file name.
_PART = re.compile(r"(.*)-(\d+)-of-(\d+)([^/]*)$")


def find_splits(directory: str, given: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Returns the files of every split: of the `given` (split, place) pairs, else of the directory.

    Raises:
        UserError: A place has no files, a series is incomplete, or a file is given twice.
    """
    if not given:
        return split_files(directory, list_files("DIR", directory))
    splits: dict[str, list[str]] = defaultdict(list)
    for name, place in given:
        splits[name] += list_files("split", place)
    times = Counter(path for paths in splits.values() for path in paths)
    twice = [path for path, count in times.items() if count > 1]
    if twice:
        raise UserError(
            argument="split",
            received=f"the file {twice[0]} twice",
            expected="every file in one split",
            remedy="name the files by globs",
        )
    return dict(splits)


def list_files(argument: str, place: str) -> list[str]:
    """Lists the TFRecord files of a file, a glob, or everything below a folder, sorted.

    Raises:
        UserError: There are no files, or a folder lacks a part of a numbered series.
        OSError: A folder cannot be listed.
    """
    if any(c in place for c in "*?["):
        paths = storage.glob(place)
    elif storage.is_folder(place):
        start = len(place.rstrip("/"))
        # A file is left out if any part of its path below the folder is hidden.
        paths = [
            file.path for file in storage.files_below(place)
            if FILE_NAME.search(file.name) and not re.search(r"/[._]", file.path[start:])
        ]  # fmt: skip
        # Only a folder is checked, because a glob may mean a part of a series.
        _check_series(argument, place, paths)
    else:
        paths = [place] if storage.exists(place) else []
    if not paths:
        raise UserError(
            argument=argument,
            received=f"{place!r}, which does not exist or holds no TFRecords",
            expected=f"files called {_ENDINGS}",
            remedy="name files by " + Arg("split", "train=GLOB") + ", or build a dataset of "
            "images with imageshards build --input PHOTOS --output FOLDER",
        )
    return paths


def _check_series(argument: str, place: str, paths: Sequence[str]) -> None:
    """Refuses a folder that was copied only in part: `…-00000-of-00008` needs all eight files."""
    series: dict[tuple[str, int], set[int]] = defaultdict(set)
    for path in paths:
        if found := _PART.match(path):
            series[f"{found[1]}-*-of-{found[3]}{found[4]}", int(found[3])].add(int(found[2]))
    for (pattern, total), numbers in series.items():
        if missing := sorted({*range(total)} - numbers):
            raise UserError(
                argument=argument,
                received=f"{place!r}, where of {os.path.basename(pattern)} {len(missing)} of "
                f"{total} files are missing (the first is number {missing[0]})",
                expected="all of them",
                remedy="copy the folder again, or choose files by " + Arg("split", "NAME=GLOB"),
            )


def split_files(directory: str, paths: Sequence[str]) -> dict[str, list[str]]:
    """Groups files by split: by the name of their folder, else by a word of their own name.

    All files are `train` if no name contains a split.

    Raises:
        UserError: Only some of the names contain a split.
    """
    splits: dict[str, list[str]] = defaultdict(list)
    nameless: list[str] = []
    for path in paths:
        name = split_of(path)
        (splits[name] if name else nameless).append(path)
    if nameless and splits:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, where {os.path.basename(nameless[0])} belongs to no split, "
            f"but {os.path.basename(next(iter(splits.values()))[0])} to {next(iter(splits))}",
            expected="train, validation or test in every name or in none",
            remedy="name the files of every split, for example "
            + Arg("split", f"train={directory}/a*"),
        )
    return dict(splits) if splits else {"train": nameless}


def split_of(path: str) -> str | None:
    """Returns the split that a path names: `validation-00000-of-00128` → `validation`."""
    folder, name = os.path.split(path)
    folder = os.path.basename(folder).lower()
    if folder in SPLIT_NAMES:
        return folder
    words = re.split(r"[^a-z]+", name.lower())
    return next((word for word in words if word in SPLIT_NAMES), None)


def folder_from(output: str, path: str) -> str:
    """Returns a file's folder for a manifest in `output`: relative if below, else absolute."""
    folder, output = storage.parent_of(path), output.rstrip("/")
    if folder.rstrip("/") == output:
        return ""
    return folder.removeprefix(f"{output}/")


def check_plain(paths: Sequence[str]) -> None:
    """Refuses files that are gzipped as a whole, because readers cannot seek in them."""
    heads = storage.map_concurrently(lambda p: storage.read_range(p, 0, HEADER_BYTES), paths)
    for path, head in zip(paths, heads, strict=True):
        # The length of a record, the first bytes of a plain file, may equal gzip's magic number.
        if head.startswith(_GZIP_MAGIC) and not is_header(head):
            raise UserError(
                argument="DIR",
                received=f"a dataset whose file {path} is compressed with gzip, so no record is "
                "found inside of it",
                expected="plain files",
                remedy="gunzip them first",
            )


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
    if storage.exists(storage.join(directory, _INFO_FILE)):
        return directory
    below = [
        storage.parent_of(path)
        for version in ("*", "*/*")  # name/version, name/configuration/version
        for path in storage.glob(storage.join(glob.escape(directory), version, _INFO_FILE))
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
        info = json.loads(storage.read(storage.join(folder, _INFO_FILE)))
        features = json.loads(storage.read(storage.join(folder, _FEATURES_FILE)))
        fields = dict(_walk("", features))
        # The names of the supervised pair come first, then those of all features.
        pair = info.get("supervisedKeys", {}).get("tuple", {}).get("items", [])
        names = [*(str(item.get("featureKey")) for item in pair), *fields]
        image, label = (
            next((name for name in names if kind in fields.get(name, {})), None)
            for kind in ("image", "classLabel")
        )
        # TFDS leaves out the sides of pictures, or writes an unknown side as -1.
        sides = fields[image]["image"].get("shape", {}).get("dimensions", []) if image else []
        channels = int(sides[2]) if len(sides) == 3 and int(sides[2]) > 0 else None
        classes = _classes(folder, label, fields[label]["classLabel"]) if label else None
        splits = {str(raw["name"]): _shards(folder, info, raw) for raw in info["splits"]}
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as e:
        raise UserError(
            argument="DIR",
            received=f"{folder!r}, whose {_INFO_FILE} or {_FEATURES_FILE} is not what TensorFlow "
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
