"""Several data sets as one: their splits one after the other, their classes joined by name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from imageshards.errors import UserError
from imageshards.manifest import TRAIN_NAMES, VALIDATION_NAMES
from trainer.config import ReadConfig
from trainer.dataset.spec import DataSet, FeatureSpec, ImageSpec, Split
from trainer.dataset.subset import parse_filters

# How pictures were made, as far as a model or a served file would see the difference.
_IMAGE_OPTIONS = ("size", "mode", "filter", "only_shrink", "background")
_MAX_NAMES = 8
_REBUILD = "build them with the same options of imageshards build"
_APART = "read them one at a time, or build one of all with imageshards build"


def join_datasets(config: ReadConfig, datasets: Sequence[DataSet]) -> DataSet:
    """One data set of all records of several.

    A split is the splits of this name one after the other; `train` is the same as `training`, and
    `validation` as `val` and `valid`. The classes are those of all, in the order in which they
    occur. Labels are translated where they are read; picture and label are found under the names
    that each data set has for them. Other features are those that all have in the same form. Mean
    and standard deviation are those of all pictures together.

    Args:
        config: How they were opened; `image_size` stands in for a size that is not known.
        datasets: At least two.

    Raises:
        UserError: Their records cannot be read by one reader, or show differently made pictures.
    """
    parts = tuple(_with_common_splits(datasets))
    first = parts[0]
    _check_records(config, parts)
    names = dict.fromkeys(name for part in parts for name in part.splits)
    roles = {(part.image_feature, part.label_feature) for part in parts}
    # Where they differ they are nobody's columns.
    hidden = {name for pair in roles for name in pair} if len(roles) > 1 else set()
    same_features = {
        name: spec
        for name, spec in first.features.items()
        if name not in hidden and all(part.features.get(name) == spec for part in parts)
    }
    prints = json.dumps([part.fingerprint for part in parts])
    return dataclasses.replace(
        first,
        data=config.data,
        splits={name: _joined_split(name, parts) for name in names},
        classes=tuple(dict.fromkeys(name for part in parts for name in part.classes)),
        image=_joined_image(config, parts),
        shard_by="class" if any(part.shard_by == "class" for part in parts) else "balanced",
        features=same_features,
        filename_feature=_common(parts, lambda part: part.filename_feature),
        text_feature=_common(parts, lambda part: part.text_feature),
        fingerprint=hashlib.sha256(prints.encode()).hexdigest(),
        adopted=any(part.adopted for part in parts),
        has_index=False,
        parts=parts,
    )


def check_same_classes(dataset: DataSet) -> None:
    """Refuses joined data sets with different classes, unless it is said which are meant.

    Raises:
        UserError: One of them lacks a class of another; all that are missing are listed.
    """
    lacking = {
        part.data: [name for name in dataset.classes if name not in part.classes]
        for part in dataset.parts
    }
    differences = [f"{data} lacks {_listed(names)}" for data, names in lacking.items() if names]
    if differences:
        numbered = any(
            part.adopted and all(name.isdecimal() for name in part.classes)
            for part in dataset.parts
        )
        remedy = "name them by --class_names of imageshards adopt, or " * numbered
        raise UserError(
            f"⟦--data⟧ received {dataset.data!r}, whose classes differ: {'; '.join(differences)}; "
            f"expected the same classes in each: {remedy}say by ⟦--classes⟧ which of them to read."
        )


def check_features(dataset: DataSet, flag: str, names: Sequence[str]) -> None:
    """Refuses features that joined data sets do not have in the same form.

    Raises:
        UserError: One of `names` is such a feature; the sentence tells two forms of it.
    """
    for name in names:
        forms = [_form(part.features.get(name)) for part in dataset.parts]
        remedy = f"leave it out of {flag}, or {_REBUILD}"
        _refuse_different(f"{flag} received {name!r}, which", dataset.parts, forms, remedy)


def check_filters(dataset: DataSet, filters: Sequence[str]) -> None:
    """Refuses conditions that would not mean the same in each of joined data sets.

    Raises:
        UserError: One is wrong, or compares a feature that has not the same form in all, or
            class ids that stand for other classes in each.
    """
    known = {name: spec for part in dataset.parts for name, spec in part.features.items()}
    names = [one.feature for one in parse_filters(filters if dataset.parts else (), known)]
    check_features(dataset, "⟦--where⟧", names)
    meanings = {(part.label_offset, part.classes) for part in dataset.parts}
    if dataset.label_feature in names and len(meanings) > 1:
        raise UserError(
            f"⟦--where⟧ received a condition on {dataset.label_feature}, whose numbers are other "
            f"classes in each data set of {dataset.data!r}; expected names of classes: say by "
            "⟦--classes⟧ which to read."
        )


def _with_common_splits(datasets: Sequence[DataSet]) -> list[DataSet]:
    """The data sets with `training` called `train` where others call it so, and the like."""
    renamed = list(datasets)
    for usual in (TRAIN_NAMES, VALIDATION_NAMES):
        known = [[name for name in usual if name in dataset.splits] for dataset in datasets]
        target = next((names[0] for names in known if names), None)
        for index, names in enumerate(known):
            if target is not None and names and target not in names:
                splits = dict(renamed[index].splits)
                splits[target] = Split(target, splits.pop(names[0]).shards)
                renamed[index] = dataclasses.replace(renamed[index], splits=splits)
    return renamed


def _joined_split(name: str, parts: Sequence[DataSet]) -> Split:
    return Split(
        name, tuple(s for part in parts if name in part.splits for s in part.splits[name].shards)
    )


def _check_records(config: ReadConfig, parts: Sequence[DataSet]) -> None:
    """Everything in which the records of all data sets have to agree."""
    received = f"⟦--data⟧ received {config.data!r}, where"
    channels = [part.image.channels for part in parts]
    _refuse_different(f"{received} the number of channels", parts, channels, _REBUILD)
    for name in dict.fromkeys(n for p in parts for n in (p.image_feature, p.label_feature)):
        owners = [part for part in parts if name in part.features]
        dtypes = [part.features[name].dtype for part in owners]
        _refuse_different(f"{received} {name}", owners, dtypes, _APART)
    built = [part for part in parts if not part.adopted]
    for option in _IMAGE_OPTIONS:
        values = [part.image.options.get(option) for part in built]
        _refuse_different(f"{received} the picture option {option}", built, values, _REBUILD)


def _refuse_different(
    intro: str, parts: Sequence[DataSet], values: Sequence[object], remedy: str
) -> None:
    for part, value in zip(parts, values, strict=True):
        if value != values[0]:
            raise UserError(
                f"{intro} is {values[0]} in {parts[0].data} and {value} in {part.data}; expected "
                f"the same in every data set: {remedy}."
            )


def _joined_image(config: ReadConfig, parts: Sequence[DataSet]) -> ImageSpec:
    images = [part.image for part in parts]
    size = _common(parts, lambda part: part.image.size)
    # Mean and deviation of what others wrote are not known: they do not count.
    known = [part for part in parts if not part.adopted] or parts
    weights = [sum(split.num_records for split in part.splits.values()) for part in known]
    moments = [(part.image.mean, part.image.std) for part in known]
    mean, std = _pooled(moments, weights)
    return ImageSpec(
        size=size or config.image_size,
        varies=size is None or any(image.varies for image in images),
        channels=images[0].channels,
        mean=mean,
        std=std,
        options={**known[0].image.options, "mean": mean, "std": std} if known else {},
    )


def _pooled(
    moments: Sequence[tuple[Sequence[float], Sequence[float]]], weights: Sequence[int]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of everything, from those of its parts: the law of total variance."""
    total = sum(weights) or 1
    means, stds = [], []
    for channel in range(len(moments[0][0])):
        pairs = [(of_mean[channel], of_std[channel]) for of_mean, of_std in moments]
        mean = sum(m * w for (m, _), w in zip(pairs, weights, strict=True)) / total
        square = sum((s * s + m * m) * w for (m, s), w in zip(pairs, weights, strict=True)) / total
        means.append(mean)
        stds.append(math.sqrt(max(0.0, square - mean * mean)))
    return tuple(means), tuple(stds)


def _common(parts: Sequence[DataSet], value_of: Callable[[DataSet], Any]) -> Any:
    """What is the same in all data sets; None where it is not."""
    values = [value_of(part) for part in parts]
    return values[0] if all(value == values[0] for value in values) else None


def _form(spec: FeatureSpec | None) -> str:
    if spec is None:
        return "no feature"
    if spec.shape == ():
        return spec.dtype
    length = "variable length" if spec.shape is None else f"shape {list(spec.shape)}"
    return f"{spec.dtype} of {length}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")
