"""Tiny datasets for the reader's tests: any records in any shards, pictures of one colour."""

import msgspec
import numpy as np
from PIL import Image

from imageshards.manifest import IMAGE_FEATURE, LABEL_FEATURE
from tests.support.external_sets import example
from tests.support.pictures import saved
from tests.support.trainer_data import write_manifest, write_shard
from trainer.config import ReadConfig
from trainer.dataset import spec
from trainer.dataset.manifest import load_manifest
from trainer.dataset.subset import Subset, select
from trainer.reader.batches import TrainingData
from trainer.strengths import NONE

SIDE_PX = 8
CLASSES = ("ant", "bee", "cat")
IMAGE = spec.ImageSpec((SIDE_PX, SIDE_PX), False, 3, (0.5,) * 3, (0.25,) * 3)
MODEL = spec.ModelInputs((SIDE_PX, SIDE_PX), IMAGE)
READ_OPTIONS = spec.ReadOptions(threads=2)
FEATURES = {
    IMAGE_FEATURE: spec.FeatureSpec("string", ()),
    LABEL_FEATURE: spec.FeatureSpec("int64", ()),
    "age": spec.FeatureSpec("float32", ()),
    "box": spec.FeatureSpec("float32", (4,)),
    "tokens": spec.FeatureSpec("int64", None),
    "text": spec.FeatureSpec("string", ()),
    "number": spec.FeatureSpec("int64", ()),
}


def training_data(
    subset, batch_size, *, read_options=READ_OPTIONS, seed=3, inputs=MODEL, augmentation=None,
    skip_broken=0,
) -> TrainingData:  # fmt: skip
    """What is trained on, not augmented, or by the functions that are given."""
    data = TrainingData(subset, read_options, inputs, batch_size, seed, NONE, "host", skip_broken)
    if augmentation is not None:
        vars(data)["augmentation"] = augmentation
    return data


def value_of(record: int) -> int:
    return 20 + (record * 13) % 200


def jpeg(value: int, size: tuple[int, int] = (SIDE_PX, SIDE_PX)) -> bytes:
    return saved(Image.fromarray(np.full((*size, 3), value, np.uint8)), quality=95)


def record_of(record: int, label: int) -> bytes:
    """The record of this number: every feature tells it."""
    columns = {"age": record / 2, "text": f"record {record}", "number": record}
    lists = {"box": [0.0, 0.25, float(record), 1.0], "tokens": [*range(1, record % 5 + 1)]}
    picture = {IMAGE_FEATURE: jpeg(value_of(record)), LABEL_FEATURE: label}
    return example(picture | columns | lists)


def make_set(folder, shards, *, empty=()) -> spec.DatasetSpec:
    """Writes one split `train` whose shards hold records of the given labels.

    `empty` are the numbers of records that are written without anything in them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries, number = [], 0
    features = msgspec.to_builtins(FEATURES)
    for k, labels in enumerate(shards):
        records = [record_of(i, label) for i, label in enumerate(labels, number)]
        written = [b"" if i in empty else record for i, record in enumerate(records, number)]
        named = folder, "train", f"train-{k:05d}"
        entry = write_shard(*named, records, features, CLASSES, written=written)
        entries.append(entry | {"classes": {c: [*labels].count(i) for i, c in enumerate(CLASSES)}})
        number += len(labels)
    image = {"size": SIDE_PX, "mode": "crop", "channels": 3}
    splits = {"train": {"num_records": number, "shards": entries}}
    write_manifest(folder, features=features, classes=[*CLASSES], splits=splits, image=image)
    return load_manifest(str(folder))


def choose(dataset, classes=None, filters=(), balance="none") -> Subset:
    classes = None if classes is None else tuple(classes)
    read = {"classes": classes, "where": tuple(filters), "balance": balance}
    config = ReadConfig(dataset.data, batch_size=1, **read)
    return select(config, dataset, dataset.splits["train"], training=balance != "none")
