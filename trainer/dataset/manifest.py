"""Converts a checked `manifest.json` to the trainer's dataset: splits, classes, features, image."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence

from imageshards import manifest, storage
from imageshards.errors import UserError
from imageshards.jpeg import FORMATS
from imageshards.manifest import (
    NONE,
    ONE,
    SEVERAL,
    VALIDATION_NAMES,
    Image,
    Manifest,
)
from imageshards.manifest import file as manifest_file
from imageshards.manifest.file import fingerprint_of, shard_path
from imageshards.text import counted
from trainer.dataset.spec import DatasetSpec, FeatureSpec, ImageSpec, Split

# Resize modes after which every picture has the size in the manifest.
_EXACT_SIZE_MODES = ("crop", "stretch", "pad", "exact")


def find_split(
    dataset: DatasetSpec, argument: str, name: str | None, usual: Sequence[str]
) -> Split | None:
    """Returns the split `name`, or several as one (`named_split`); None if it has no records.

    Without a name it is the first with one of the `usual` names; None if there is none.
    """
    if name is None:
        name = next((one for one in usual if one in dataset.splits), None)
    if name is None:
        return None
    split = named_split(dataset, argument, name)
    return split if split.num_records else None


def named_split(dataset: DatasetSpec, argument: str, names: str) -> Split:
    """Returns the splits of `find_splits` as one split, which may have no record."""
    found = manifest_file.find_splits(names, dataset.splits, argument)
    return Split.joined([dataset.splits[name] for name in found])


def needed_split(
    dataset: DatasetSpec, argument: str, name: str | None, usual: Sequence[str]
) -> Split:
    """Returns the split of `find_split`; refuses a split that is absent or without records."""
    found = find_split(dataset, argument, name, usual)
    if found is not None:
        return found
    filled = ", ".join(n for n, split in dataset.splits.items() if split.num_records) or "none"
    raise UserError(
        argument=argument,
        received=f"{name!r}, and {dataset.data!r} has no such split with records",
        expected=f"one of {filled} (without a name: {' or '.join(usual)})",
    )


def validation_split(dataset: DatasetSpec, name: str | None) -> Split | None:
    """Returns the split to validate on; None for the name `none`, or if no usual one has data."""
    return (
        None if name == "none" else find_split(dataset, "validation_split", name, VALIDATION_NAMES)
    )


def load_manifest(data: str, records_root: str | None = None) -> DatasetSpec:
    """Reads `data`/manifest.json; refuses a manifest without the facts that a trainer needs."""
    storage.check_bucket(data, "data", must_list=False)
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
    wanted = [shard.num_bytes for split in splits for shard in split.shards]
    paths = [path for split in splits for path in split.paths]
    sizes = storage.map_concurrently(_size_bytes, paths)
    wrong = [one for one in zip(paths, sizes, wanted, strict=True) if one[1] != one[2]]
    if not wrong:
        return
    path, size, expected = wrong[0]
    others = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    found = "is missing" if size is None else f"has {size} bytes"
    name = os.path.basename(path)
    made = "describe it by imageshards adopt" if dataset.adopted else "build it"
    raise dataset.refused(
        f"whose shard {name}{others} {found}",
        f"{expected} bytes as in its manifest",
        f"copy the dataset again, or {made} again",
    )


def _size_bytes(path: str) -> int | None:
    # A shard that cannot be looked at counts as missing.
    with contextlib.suppress(OSError):
        found = storage.stat(path)
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
    bits = sum(math.prod(spec.shape or ()) for spec in hot)
    if (
        not fits[kind]
        or any(spec.shape is None for spec in hot)
        or hot
        and bits != len(raw.classes)
    ):
        raise ValueError(
            f"adopted says {kind} for its labels, but its features for them do not fit"
        )


def _split(data: str, name: str, raw: manifest.Split) -> Split:
    paths = [shard_path(data, shard.name) for shard in raw.shards]
    split = Split(name, raw.shards, paths)
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
