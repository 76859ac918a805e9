"""The data sets of a mix: of one form, each with its share of what is trained on."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

from imageshards.errors import UserError
from trainer.config import ReadConfig
from trainer.dataset.spec import DataSet, MixPart, Split, Subset, describe
from trainer.dataset.subset import balancing_weights, pass_counts, select

# How pictures were made, as far as a model or a served file would see the difference.
_IMAGE_OPTIONS = ("size", "mode", "filter", "only_shrink", "background")


def one_of_all(parts: Sequence[DataSet]) -> str:
    """The command that makes one data set of several, for people."""
    if any(part.adopted for part in parts):  # a build does not copy records of others
        return (
            f"imageshards adopt {parts[0].data} --output ALL, with --split NAME=PLACE for each "
            "split of each (records stay where they are)"
        )
    inputs = " ".join(f"--input {part.data}" for part in parts)
    return f"imageshards build {inputs} --output ALL (records are copied)"


def data_set_of_mix(config: ReadConfig, datasets: Sequence[DataSet]) -> DataSet:
    """What is read and evaluated of several data sets: their splits one after the other.

    It has the first data set's form with the features that all have, the mean and deviation of all
    pictures together, and `datasets` as its `parts`.

    Raises:
        UserError: Their records or classes differ.
    """
    parts, first = tuple(datasets), datasets[0]
    _check_same_form(config, parts)
    names = dict.fromkeys(name for part in parts for name in part.splits)
    prints = json.dumps([part.fingerprint for part in parts])
    mean, std = _pooled(parts)
    image = dataclasses.replace(
        first.image,
        varies=any(part.image.varies for part in parts),
        mean=mean,
        std=std,
        formats=tuple(sorted({name for part in parts for name in part.image.formats})),
        options={**first.image.options, "mean": mean, "std": std},
    )
    return dataclasses.replace(
        first,
        data=config.data,
        splits={name: _joined_split(name, parts) for name in names},
        image=image,
        features={
            name: spec
            for name, spec in first.features.items()
            if all(part.features.get(name) == spec for part in parts)
        },
        fingerprint=hashlib.sha256(prints.encode()).hexdigest(),
        adopted=any(part.adopted for part in parts),
        manifest={},
        parts=parts,
    )


def mixed(config: ReadConfig, subset: Subset) -> Subset:
    """`subset` of several data sets, each read by its share; refuses one with nothing left."""
    chosen = [
        select(part, split, classes=config.classes, filters=config.where, balance=config.balance)
        for part, split in subset.dataset.by_part(subset.split)
    ]
    parts = tuple(MixPart(*pair) for pair in zip(chosen, config.mix_shares, strict=True))
    subset = dataclasses.replace(subset, mix=parts)
    counts = pass_counts(subset)
    if counts is None or subset.class_weights is None:
        return subset
    return dataclasses.replace(subset, class_weights=balancing_weights(counts))


def _check_same_form(config: ReadConfig, parts: Sequence[DataSet]) -> None:
    """Everything in which the records of all data sets have to agree."""
    first = _form(parts[0])
    for part in parts[1:]:
        for what, value in _form(part).items():
            if value != first[what]:
                raise UserError(
                    f"⟦--data⟧ received {config.data!r}, where the {what} is {first[what]} in "
                    f"{parts[0].data} and {value} in {part.data}; expected the same in every data "
                    f"set: make one of all by {one_of_all(parts)}."
                )


def _form(part: DataSet) -> dict[str, Any]:
    options = part.image.options
    return {
        "classes": ", ".join(part.classes) or "none",
        "first class id": part.label_offset,
        "number of channels": part.image.channels,
        "feature of the picture": part.image_feature,
        "feature of the class": part.label_feature,
        "kind of the label": describe(part),
        "form of the class": getattr(part.features.get(part.label_feature), "dtype", "none"),
        **{f"picture option {name}": options.get(name) for name in _IMAGE_OPTIONS},
    }


def _joined_split(name: str, parts: Sequence[DataSet]) -> Split:
    owned = [part.splits[name].shards for part in parts if name in part.splits]
    return Split(name, tuple(itertools.chain(*owned)))


def _pooled(parts: Sequence[DataSet]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of all pictures, from those of each data set: the law of total variance.

    Those of others' records are not known: they do not count.
    """
    known = [part for part in parts if not part.adopted] or list(parts)
    weights = [sum(split.num_records for split in part.splits.values()) for part in known]
    total = sum(weights) or 1
    means, stds = [], []
    for channel in range(parts[0].image.channels):
        pairs = [(part.image.mean[channel], part.image.std[channel]) for part in known]
        mean = sum(m * w for (m, _), w in zip(pairs, weights, strict=True)) / total
        square = sum((s * s + m * m) * w for (m, s), w in zip(pairs, weights, strict=True)) / total
        means.append(mean)
        stds.append(math.sqrt(max(0.0, square - mean * mean)))
    return tuple(means), tuple(stds)
