"""Converts a checked `manifest.json` to the trainer's dataset: splits, classes, features, image."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence

from imageshards import manifest, storage
from imageshards.errors import Arg, UserError
from imageshards.jpeg import FORMATS
from imageshards.manifest import (
    NONE,
    ONE,
    SEVERAL,
    TRAIN_NAMES,
    VALIDATION_NAMES,
    Image,
    Manifest,
)
from imageshards.manifest import file as manifest_file
from imageshards.manifest.file import fingerprint_of, shard_path
from imageshards.text import counted
from trainer.dataset.spec import DatasetSpec, FeatureSpec, ImageSpec, Shard, Split

# Resize modes after which every picture has the size in the manifest.
_EXACT_SIZE_MODES = ("crop", "stretch", "pad", "exact")


def train_split(dataset: DatasetSpec, name: str | None) -> Split:
    """Returns the split `name`, or the first usual one, to train on; refuses an empty split."""
    split = _find(dataset, "train_split", name, TRAIN_NAMES)
    if split is None or not split.num_records:
        names = ", ".join(n for n, s in dataset.splits.items() if s.num_records) or "none"
        expected = "one called train, or its name by " + Arg("train_split")
        raise dataset.refused(f"whose splits with records are {names}", expected)
    return split


def validation_split(dataset: DatasetSpec, name: str | None) -> Split | None:
    """Returns the split to validate on; None for the name `none`, or if no usual one has data."""
    if name == "none":
        return None
    split = _find(dataset, "validation_split", name, VALIDATION_NAMES)
    return split if split is not None and split.num_records else None


def find_split(dataset: DatasetSpec, argument: str, name: str) -> Split:
    """Returns the split called `name`, or by another usual word for it."""
    return dataset.splits[manifest_file.find_split(name, dataset.splits, argument)]


def _find(
    dataset: DatasetSpec, argument: str, name: str | None, usual: tuple[str, ...]
) -> Split | None:
    if name is None:
        return next((dataset.splits[n] for n in usual if n in dataset.splits), None)
    return find_split(dataset, argument, name)


def load_manifest(data: str, records_root: str | None = None) -> DatasetSpec:
    """Reads `data`/manifest.json; refuses a manifest without the facts that a trainer needs."""
    raw = manifest_file.load_manifest(data, "data", records_root=records_root)
    try:
        return _dataset(data, raw)
    except ValueError as e:
        raise UserError(
            argument="data",
            received=f"{data!r}, whose manifest.json is none to train on ({e})",
            remedy="build the dataset again with imageshards build",
        ) from e


def check_shards(dataset: DatasetSpec, splits: Sequence[Split]) -> None:
    """Refuses shards that are missing, or have another size than in the manifest."""
    shards = [shard for split in splits for shard in split.shards]
    sizes = storage.map_concurrently(_size_bytes, shards)
    wrong = [(s, size) for s, size in zip(shards, sizes, strict=True) if size != s.num_bytes]
    if not wrong:
        return
    shard, size = wrong[0]
    others = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    found = "is missing" if size is None else f"has {size} bytes"
    name = os.path.basename(shard.path)
    made = "describe it by imageshards adopt" if dataset.adopted else "build it"
    raise dataset.refused(
        f"whose shard {name}{others} {found}",
        f"{shard.num_bytes} bytes as in its manifest",
        f"copy the dataset again, or {made} again",
    )


def _size_bytes(shard: Shard) -> int | None:
    # A shard that cannot be looked at counts as missing.
    with contextlib.suppress(OSError):
        found = storage.stat(shard.path)
        return None if found is None else found.size_bytes
    return None


def _dataset(data: str, raw: Manifest) -> DatasetSpec:
    features, adopted, roles, hot = raw.features, raw.adopted, raw.roles, raw.roles.hot
    # A build writes JPEGs only. An older `adopt` did not record formats, so any format may occur.
    formats = (raw.source.formats or FORMATS) if adopted else ("JPEG",)
    image, label, filename = roles.image, roles.label or "", roles.filename
    # A build of pictures without labels names its label feature all the same.
    if not adopted and label not in features:
        label = ""
    if (label or hot) and not raw.classes:
        raise ValueError("it names no class; expected labelled pictures")
    labels = ("int64", "string") if adopted else ("int64",)
    wanted = [(image, ("string",)), *[(label, labels)] * bool(label)]
    for name, dtypes in (*wanted, *((name, ("int64", "float32")) for name in hot)):
        if name not in features:
            raise ValueError(f"the features lack {name!r}")
        if features[name].dtype not in dtypes:
            raise ValueError(f"{name} is {features[name].dtype}, not {' or '.join(dtypes)}")
    if adopted:
        _check_adopted(raw, [features[name] for name in hot], bool(label))
    return DatasetSpec(
        data=data,
        splits={name: _split(data, name, split) for name, split in raw.splits.items()},
        classes=tuple(raw.classes),
        image=_image(raw.image, tuple(formats)),
        features=features,
        image_feature=image,
        label_feature=", ".join(hot) or label,
        hot_features=hot,
        filename_feature=filename if filename in features else None,
        label_offset=raw.first_label or 0,
        target="labels" if raw.label == SEVERAL else "class",
        fingerprint=fingerprint_of(raw),
        adopted=adopted is not None,
        manifest=raw,
    )


def _check_adopted(raw: Manifest, hot: Sequence[FeatureSpec], has_label: bool) -> None:
    """Raises ValueError if the label features of an adopted dataset do not fit its labels."""
    kind, has_hot = raw.label, bool(hot)
    fits = {
        ONE: has_label != has_hot,
        SEVERAL: has_hot and not has_label,
        NONE: not has_hot and not has_label,
    }
    if not fits[kind]:
        raise ValueError(f"adopted says {kind} for its labels, but names other features for them")
    if any(spec.shape is None for spec in hot):
        raise ValueError("a feature of 0s and 1s has a variable length")
    counts = [math.prod(spec.shape or ()) for spec in hot]
    if hot and sum(counts) != len(raw.classes):
        raise ValueError(f"{counted(sum(counts), 'feature')} of 0s and 1s are not its classes")


def _split(data: str, name: str, raw: manifest.Split) -> Split:
    shards = tuple(
        Shard(shard_path(data, shard.name), shard.num_records, shard.num_bytes, shard.classes)
        for shard in raw.shards
    )
    split = Split(name, shards)
    if split.num_records != raw.num_records:
        raise ValueError(
            f"split {name} counts {counted(raw.num_records, 'record')}, its shards "
            f"{split.num_records}"
        )
    return split


def _image(raw: Image, formats: tuple[str, ...]) -> ImageSpec:
    height, width = (raw.size, raw.size) if isinstance(raw.size, int) else raw.size or (0, 0)
    size = (height, width) if height else None
    channels = raw.channels or 3
    # A dataset without measured pixels has null here, and gets the middle of the range.
    mean = raw.mean or (0.5,) * channels
    std = raw.std or (0.25,) * channels
    if len(mean) != channels or len(std) != channels:
        raise ValueError(f"image.mean and image.std are not {channels} numbers each")
    # With only_shrink small pictures keep their size, so sizes vary.
    varies = raw.mode not in _EXACT_SIZE_MODES or bool(raw.only_shrink)
    return ImageSpec(size, varies, channels, mean, std, raw, formats)
