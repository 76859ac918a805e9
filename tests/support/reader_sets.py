"""Tiny data sets for the reader's tests: any records in any shards, pictures of one colour."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from imageshards.manifest import IMAGE_FEATURE, LABEL_FEATURE
from imageshards.tfrecord import write_records
from tests.support.external_sets import example
from tests.support.pictures import saved
from tests.support.trainer_data import index_entry, write_manifest
from trainer.dataset.spec import (
    DataSet,
    FeatureSpec,
    ImageSpec,
    ModelInputs,
    ReadOptions,
    Shard,
    Split,
    Subset,
)
from trainer.dataset.subset import select

SIDE_PX = 8
CLASSES = ("ant", "bee", "cat")
IMAGE = ImageSpec((SIDE_PX, SIDE_PX), False, 3, (0.5,) * 3, (0.25,) * 3)
MODEL = ModelInputs((SIDE_PX, SIDE_PX), IMAGE)
READ_OPTIONS = ReadOptions(threads=2)
FEATURES = {
    IMAGE_FEATURE: FeatureSpec("string", ()),
    LABEL_FEATURE: FeatureSpec("int64", ()),
    "age": FeatureSpec("float32", ()),
    "box": FeatureSpec("float32", (4,)),
    "tokens": FeatureSpec("int64", None),
    "text": FeatureSpec("string", ()),
    "number": FeatureSpec("int64", ()),
}


def value_of(record: int) -> int:
    """The brightness of a record's picture."""
    return 20 + (record * 13) % 200


def jpeg(value: int, size: tuple[int, int] = (SIDE_PX, SIDE_PX)) -> bytes:
    """A picture of one brightness."""
    return saved(Image.fromarray(np.full((*size, 3), value, np.uint8)), quality=95)


def record_of(record: int, label: int) -> bytes:
    """The record of this number: every feature tells it."""
    return example(
        {
            IMAGE_FEATURE: jpeg(value_of(record)),
            LABEL_FEATURE: label,
            "age": record / 2,
            "box": [0.0, 0.25, float(record), 1.0],
            "tokens": list(range(1, record % 5 + 1)),
            "text": f"record {record}".encode(),
            "number": record,
        }
    )


def make_set(
    folder: pathlib.Path,
    shards: Sequence[Sequence[int]],
    *,
    empty: Sequence[int] = (),
    **changes: Any,
) -> DataSet:
    """Writes one split `train` whose shards hold records of the given labels.

    `empty` are the numbers of records that are written without anything in them. `changes` are
    attributes of the `DataSet`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written, entries, number = [], [], 0
    features = {
        name: {"dtype": spec.dtype, "shape": None if spec.shape is None else [*spec.shape]}
        for name, spec in FEATURES.items()
    }
    for k, labels in enumerate(shards):
        path = folder / f"train-{k:05d}"
        numbered = enumerate(labels, number)
        records = {i: record_of(i, label) for i, label in numbered}
        write_records(str(path), [b"" if i in empty else r for i, r in records.items()])
        classes = {name: list(labels).count(c) for c, name in enumerate(CLASSES)}
        written.append(Shard(str(path), len(labels), path.stat().st_size, classes))
        number += len(labels)
        index = index_entry(folder, "train", path.name, [*records.values()], features, CLASSES)
        # Of the records before they broke, as the index has it: 16 bytes frame each.
        size = sum(len(record) + 16 for record in records.values())
        counts = {"num_records": len(labels), "num_bytes": size, "classes": classes}
        entries.append({"file": path.name, **counts, "sha256": "0" * 64, "index": index})
    splits = {"train": {"num_records": number, "shards": entries}}
    image = {"size": SIDE_PX, "mode": "crop", "channels": 3}
    told = {"splits": splits, "image": image, "shard_by": "balanced"}
    write_manifest(folder, features=features, classes=list(CLASSES), **told)
    dataset = DataSet(
        data=str(folder),
        splits={"train": Split("train", tuple(written))},
        classes=CLASSES,
        image=IMAGE,
        shard_by="balanced",
        features=FEATURES,
        filename_feature=None,
        fingerprint="f" * 64,
    )
    return dataclasses.replace(dataset, **changes)


def choose(
    dataset: DataSet,
    classes: Sequence[str] | None = None,
    filters: Sequence[str] = (),
    balance: str = "none",
) -> Subset:
    """`select` on the split `train`."""
    split = dataset.splits["train"]
    return select(dataset, split, classes=classes, filters=filters, balance=balance)
