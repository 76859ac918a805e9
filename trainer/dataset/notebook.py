"""Describes a dataset in notebooks, by figures, classes and pictures."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from imageshards import storage
from imageshards.errors import UserError
from imageshards.manifest import BOX_FEATURES, TRAIN_NAMES
from imageshards.page import draw_boxes, number, record_boxes, render, thumbnail
from imageshards.text import counted
from imageshards.tfrecord import RecordError
from trainer.dataset.spec import DatasetSpec, Split, shown_size
from trainer.dataset.subset import known_counts

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

MAX_CLASSES = 20
MAX_PICTURES = 8
THUMB_PX = 112
# Errors of a missing index, and of a shard that is missing, damaged or of another form. The
# notebook then shows everything else.
_FAILURES = (
    OSError, UserError, RecordError, ArithmeticError, AttributeError, ImportError, LookupError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip


def html_of(place: str, dataset: DatasetSpec) -> str:
    """Returns HTML without outside resources. Never raises because of the dataset's files.

    It shows the records of each split, the first classes with their records in each split, and the
    first pictures of the training split, or of the first split with records.
    """
    splits = dataset.splits
    facts = {name: counted(split.num_records, "record") for name, split in splits.items()}
    facts["pictures"] = shown_size(dataset.image.size) + " or others" * dataset.image.varies
    # A split whose shards count no classes has no column.
    known = {name: known_counts(dataset, split) for name, split in splits.items()}
    counts = {name: of_split for name, of_split in known.items() if of_split is not None}
    filled = [split for split in splits.values() if split.num_records]
    usual = [split for split in filled if split.name in TRAIN_NAMES]
    split = next(iter([*usual, *filled]), None)
    return render(
        "trainer.dataset",
        "notebook.jinja",
        title=f"Data {place!r}",
        thumb_px=THUMB_PX,
        facts=facts,
        columns=list(counts),
        classes=[
            (name, [number(of_split[i]) for of_split in counts.values()])
            for i, name in enumerate(dataset.classes[:MAX_CLASSES])
        ],
        more=len(dataset.classes) - MAX_CLASSES,
        pictures=_pictures(dataset, split) if split else [],
    )


def _pictures(dataset: DatasetSpec, split: Split) -> list[tuple[Image.Image, str]]:
    """Returns the first pictures with their captions, without pictures that cannot be read."""
    from trainer.dataset.source import RecordSource

    wanted = range(min(MAX_PICTURES, split.num_records))
    labels = dataset.label_features if dataset.label_feature or dataset.hot_features else ()
    names = [dataset.image_feature, *labels, dataset.filename_feature or ""]
    names += [name for name in BOX_FEATURES if name in dataset.features]

    def picture(record: int) -> tuple[Image.Image, str] | None:
        try:
            found = source[record]
            (encoded,) = _values(found[dataset.image_feature])
            small = thumbnail(encoded, THUMB_PX)
            if small is None:
                return None
            return draw_boxes(small, record_boxes(found)), _caption(dataset, found)
        except _FAILURES:
            return None

    try:
        # The source reads the index of all shards that it gets, so it gets no more than needed.
        shards = split.shards[: bisect.bisect_right(split.starts, wanted[-1])]
        known = list(dict.fromkeys(filter(None, names)))
        source = RecordSource(dataset, dataclasses.replace(split, shards=shards), known)
        return [one for one in storage.map_concurrently(picture, wanted) if one is not None]
    except _FAILURES:
        return []


def _caption(dataset: DatasetSpec, record: Mapping[str, Any]) -> str:
    """Returns the label of a record as text; without labels the name of its file."""
    if dataset.hot_features:
        values = [value for name in dataset.hot_features for value in _values(record[name])]
        return ", ".join(itertools.compress(dataset.classes, values)) or "no label"
    if not dataset.label_feature:
        filename = record.get(dataset.filename_feature or "", b"")
        return _text(_values(filename)[0]).rpartition("/")[2]
    values = _values(record[dataset.label_feature])
    return ", ".join(_label(dataset, value) for value in values) or "no label"


def _values(feature: np.ndarray | np.generic | bytes) -> list[Any]:
    """Returns the values of a feature as Python's own types."""
    return feature.ravel().tolist() if hasattr(feature, "ravel") else [feature]


def _label(dataset: DatasetSpec, value: int | float | bytes) -> str:
    if isinstance(value, int):  # a class id
        place = value - dataset.label_offset
        return dataset.classes[place] if 0 <= place < len(dataset.classes) else str(value)
    return number(value) if isinstance(value, float) else _text(value)


def _text(value: int | float | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
