"""Finds existing TFRecord files and the split of each.

TensorFlow Datasets (TFDS) writes a description beside its TFRecords. Its layout is
https://www.tensorflow.org/datasets/external_tfrecord; only its JSON is read.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from imageshards import storage
from imageshards.bounds import MAX_CLASSES, MAX_JSON_BYTES, MAX_SHARDS
from imageshards.errors import Arg, UserError
from imageshards.manifest import (
    SPLIT_NAMES,
    TFDS_FEATURES_NAME,
    TFDS_INFO_NAME,
    TRAIN_NAMES,
    is_plain,
    tfds_labels_name,
)
from imageshards.manifest.file import common_root
from imageshards.tfrecord import FILE_NAME
from imageshards.typed import decode_object

_DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_ENDINGS = "*.tfrec, *.tfrecord, *.tfrecords, *.record or NAME-00000-of-00008"

# Text before the number, number, total, rest of the file name.
_PART = re.compile(r"(.*)-(\d+)-of-(\d+)([^/]*)$")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def find_splits(
    directory: str, given: Sequence[tuple[str, str]] | Mapping[str, str]
) -> dict[str, list[str]]:
    """Returns the files of every split: of the `given` names and places, else of the directory.

    Raises:
        UserError: A place has no files, a series is incomplete, or a file occurs twice.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for name, place in given.items() if isinstance(given, Mapping) else given:
        found[name] += list_files("split", storage.absolute_place("split", place))
    found = found or split_files(directory, list_files("DIR", directory))
    seen: dict[str, str] = {}
    for path in itertools.chain(*found.values()):
        # A file and a link to the file hold the same records.
        real = os.path.realpath(path) if storage.is_local(path) else path
        if other := seen.get(real):
            raise UserError(
                argument="split" if given else "DIR",
                received=f"the file {path} twice, also as {other}",
                expected="every file in one split",
                remedy="name the files by globs, as in " + Arg("split", "train=GLOB"),
            )
        seen[real] = path
    return found


def list_files(argument: str, place: str) -> list[str]:
    """Lists the TFRecord files of a file, a glob, or everything below a folder, sorted.

    Raises:
        UserError: There are no files, or a folder lacks a part of a numbered series.
        OSError: A folder cannot be listed.
    """
    if storage.is_folder(place):
        start = len(place.rstrip("/"))
        # A file is left out if any part of its path below the folder is hidden.
        paths = [
            file.path for file in storage.files_below(place, lambda folder: True)
            if FILE_NAME.search(file.name) and not re.search(r"/[._]", file.path[start:])
        ]  # fmt: skip
        # Only a folder is checked, because a glob may mean a part of a series.
        _check_series(argument, place, paths)
    # The name of a file or folder may have brackets.
    elif storage.exists(place):
        paths = [place]
    else:
        paths = storage.glob(place)
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
        # The total is only a name's claim, so nothing of this size is made.
        if missing := total - sum(number < total for number in numbers):
            first = next(number for number in itertools.count() if number not in numbers)
            raise UserError(
                argument=argument,
                received=f"{place!r}, where of {os.path.basename(pattern)} {missing} of "
                f"{total} files are missing (the first is number {first})",
                expected="all of them",
                remedy="copy the folder again, or choose files by " + Arg("split", "NAME=GLOB"),
            )


def root_of(directory: str, paths: Iterable[str]) -> str:
    """Returns the directory if all files are below it, else the lowest folder above all files."""
    folders = {storage.parent_of(path) for path in paths}
    root = directory.rstrip("/")
    is_above = all(f"{folder.rstrip('/')}/".startswith(f"{root}/") for folder in folders)
    return root if is_above else common_root(folders)


def split_files(directory: str, paths: Sequence[str]) -> dict[str, list[str]]:
    """Groups files by the split that their paths below the directory say (`split_of`).

    If no path says a split, all files belong to the split in the name of the directory, or to
    `train`.

    Raises:
        UserError: Only some of the paths say a split, or a name says two.
    """
    root = root_of(directory, paths)
    splits: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        splits[split_of(path.removeprefix(f"{root}/"))].append(path)
    for said, files in splits.items():
        if " and " in said or (not said and len(splits) > 1):
            raise UserError(
                argument="DIR",
                received=f"{directory!r}, where the name {files[0]} says {said or 'no split'}",
                expected="train, validation or test in every name or in none",
                remedy="name the files of every split, for example "
                + Arg("split", f"train={glob.escape(directory)}/a*"),
            )
    own = storage.name_of(root).lower()
    default = own if own in SPLIT_NAMES else TRAIN_NAMES[0]
    return {name or default: files for name, files in splits.items()}


def split_of(path: str) -> str:
    """Returns the split that a path below an input says; "" without one, "A and B" for two.

    A word of the file's own name comes first, then a folder with the name of a split, then a word
    in the name of a folder.

    >>> [split_of(path) for path in ("test/val-1.tfrec", "train/part1/a.tfrec", "seg_Test/a")]
    ['val', 'train', 'test']
    """
    *folders, name = path.split("/")
    named = [folder for folder in folders if folder.lower() in SPLIT_NAMES]
    return _split_in([name]) or _split_in(named) or _split_in(folders)


def _split_in(names: Iterable[str]) -> str:
    words = (word.lower() for name in names for word in _WORD.findall(name))
    return " and ".join(dict.fromkeys(word for word in words if word in SPLIT_NAMES))


class TfdsFolder(NamedTuple):
    """A dataset of TFDS; without its files, all is empty.

    Attributes:
        splits: Split → path of each shard → number of records.
        image_feature, label_feature: Name of the Image and of the ClassLabel; None without one.
        channels: Channels of the pictures; None if they vary.
        classes: Class names in the order of the ids; None without a ClassLabel.
    """

    splits: Mapping[str, Mapping[str, int]] = {}
    image_feature: str | None = None
    label_feature: str | None = None
    channels: int | None = None
    classes: tuple[str, ...] | None = None


def _find_folder(directory: str) -> str | None:
    """Returns `directory` or its only version, whichever TFDS wrote; None if there is none."""
    if storage.exists(storage.join(directory, TFDS_INFO_NAME)):
        return directory
    below = [
        storage.parent_of(path)
        for version in ("*", "*/*")  # name/version, name/configuration/version
        for path in storage.glob(storage.join(glob.escape(directory), version, TFDS_INFO_NAME))
    ]
    if len(below) > 1:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, which holds several datasets of TFDS ({', '.join(below)})",
            expected="one of these folders",
        )
    return next(iter(below), None)


def open_tfds(directory: str) -> TfdsFolder:
    """Reads the description in `directory` or its only version, if there is one.

    Raises:
        UserError: There are several versions or configurations, or the description is incomplete
            or of an unknown form.
    """
    if (folder := _find_folder(directory)) is None:
        return TfdsFolder()
    try:
        info, features = (
            decode_object(storage.read(storage.join(folder, name), MAX_JSON_BYTES + 1))
            for name in (TFDS_INFO_NAME, TFDS_FEATURES_NAME)
        )
        if (file_format := info.get("fileFormat", "tfrecord")) != "tfrecord":
            raise ValueError(f"the fileFormat is {file_format}")
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
            received=f"{folder!r}, whose {TFDS_INFO_NAME} or {TFDS_FEATURES_NAME} is not what "
            f"TensorFlow Datasets writes ({type(e).__name__}: {e})",
            remedy="prepare it again with file_format='tfrecord', or name its files by "
            + Arg("split"),
        ) from e
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
        names = storage.read(storage.join(folder, tfds_labels_name(label)))
    except FileNotFoundError:  # A ClassLabel without names has a number of classes only.
        if (count := int(raw["numClasses"])) > MAX_CLASSES:
            raise ValueError(f"numClasses is {count}") from None
        return tuple(map(str, range(count)))
    return tuple(names.decode().rstrip("\n").split("\n"))


def _shards(folder: str, info: dict[str, Any], split: dict[str, Any]) -> dict[str, int]:
    lengths = [int(length) for length in split.get("shardLengths", [])]
    if len(lengths) > MAX_SHARDS:
        raise ValueError(f"a split has {len(lengths)} shards")
    template = split.get("filepathTemplate") or _DEFAULT_TEMPLATE
    shards = {}
    for index, length in enumerate(lengths):
        words: dict[str, Any] = {
            "DATASET": info["name"],
            "SPLIT": split["name"],
            "FILEFORMAT": "tfrecord",
            "SHARD_INDEX": f"{index:05d}",
            "NUM_SHARDS": f"{len(lengths):05d}",
            "SHARD_X_OF_Y": f"{index:05d}-of-{len(lengths):05d}",
        }
        # The description may come from a stranger, and `format` knows more than names.
        name = re.sub(r"\{(.*?)\}", lambda found, words=words: str(words[found[1]]), template)
        if not is_plain(name):
            raise ValueError(f"{name!r} is no name of a file in its folder")
        shards[storage.join(folder, name)] = length
    return shards
