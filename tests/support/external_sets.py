"""TFRecords as others write them, for tests: examples, files, and what damages them."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from imageshards.example import encode_example
from imageshards.tfrecord import Record, read_records
from tests.support.pictures import saved
from tests.support.trainer_data import draw_shape
from trainer.dataset.spec import DatasetSpec
from trainer.dataset.subset import Subset


def jpeg(kind: int = 0, seed: int = 0, size_px: tuple[int, int] = (32, 40)) -> bytes:
    """An encoded picture of class `kind`, 0 to 2."""
    return saved(draw_shape(kind, np.random.default_rng(seed), size_px))


def example(features: Mapping[str, Any]) -> bytes:
    """A serialized `tf.train.Example`; ints, floats, bytes and texts, or lists of them."""
    listed = {n: v if isinstance(v, list) else [v] for n, v in features.items()}
    return encode_example(
        {n: [v.encode() if isinstance(v, str) else v for v in vs] for n, vs in listed.items()}
    )


def flip_byte(path: pathlib.Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def records_of(path: pathlib.Path | str) -> list[Record]:
    return list(read_records(str(path)))


def whole_split(dataset: DatasetSpec, split: str = "train") -> Subset:
    found = dataset.splits[split]
    return Subset(dataset, found, dataset.classes, None, (), found.num_records, None)
