"""Renders a dataset, or the batches read from it, for notebooks: figures, classes, pictures."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageshards import storage
from imageshards.errors import UserError
from imageshards.manifest import BOX_FEATURES
from imageshards.page import draw_boxes, number, record_boxes, render, thumbnail
from imageshards.text import counted
from imageshards.tfrecord import RecordError
from trainer.dataset.spec import DatasetSpec, Split, described_target
from trainer.dataset.subset import known_counts

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from trainer.reader.batches import EvaluationData, TrainingData

MAX_CLASSES = 20
MAX_PICTURES = 8
THUMB_PX = 112
# Errors of a missing index, and of a shard that is missing, damaged or of another form. The
# notebook then shows everything else.
_FAILURES = (
    OSError, UserError, RecordError, ArithmeticError, AttributeError, ImportError, LookupError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip

# The name of each class, and its number of records in each column; None if it is not known.
ClassRows = Sequence[tuple[str, Sequence[int | None]]]


def html_of(
    title: str,
    facts: Mapping[str, str],
    columns: Sequence[str],
    classes: ClassRows,
    dataset: DatasetSpec,
    split: Split | None,
    records: Iterable[int],
) -> str:
    """Returns HTML without outside resources. Never raises because of the dataset's files.

    `facts` are the rows of a table and `columns` the headings of the counts in `classes`. The first
    classes, and the pictures of the first `records` of `split`, are shown.
    """
    # A split whose shards count no classes has no column.
    known = [any(counts[i] is not None for _, counts in classes) for i in range(len(columns))]
    return render(
        "trainer.dataset",
        "notebook.jinja",
        title=title,
        thumb_px=THUMB_PX,
        facts=facts,
        columns=list(itertools.compress(columns, known)),
        classes=[
            (name, ["" if n is None else number(n) for n in itertools.compress(counts, known)])
            for name, counts in classes[:MAX_CLASSES]
        ],
        more=len(classes) - MAX_CLASSES,
        pictures=_pictures(dataset, split, records) if split else [],
    )


def facts_of(data: TrainingData | EvaluationData) -> dict[str, str]:
    """Returns facts about the batches, for people."""
    subset, inputs = data.subset, data.model_inputs
    found = {"records": f"{data.num_records:,}"}
    if not subset.classes or subset.dataset.outputs:
        found["target"] = described_target(subset.dataset)
    found |= {"batch size": f"{data.batch_size:,}", "pictures": pixels(inputs.size)}
    if len(inputs.names) > 1:
        found["further inputs"] = ", ".join(inputs.names[1:])
    return found


def one_line(data: TrainingData | EvaluationData, facts: Mapping[str, str]) -> str:
    """Returns the `repr` of a description of batches."""
    subset = data.subset
    shown = [counted(data.num_records, "record")]
    shown += [counted(len(subset.classes), "class")] if subset.classes else []
    shown += [f"{name} {value}" for name, value in facts.items() if name != "records"]
    where = f"{subset.dataset.data!r} {subset.split.name}"
    return f"<imageshards {type(data).__name__} {where}: {', '.join(shown)}>"


def html_of_batches(data: TrainingData | EvaluationData, facts: Mapping[str, str]) -> str:
    """Returns the HTML of a description of batches, see `html_of`."""
    subset = data.subset
    counts = subset.class_counts or (None,) * len(subset.classes)
    records: Iterable[int] = range(subset.split.num_records)
    if subset.record_classes is not None:
        records = (subset.record_classes >= 0).nonzero()[0].tolist()
    return html_of(
        f"{type(data).__name__} of {subset.dataset.data!r}, split {subset.split.name}",
        facts,
        ["records"],
        [(name, [count]) for name, count in zip(subset.classes, counts, strict=True)],
        subset.dataset,
        subset.split,
        records,
    )


def counts_of(dataset: DatasetSpec) -> ClassRows:
    """Returns each class of a dataset with its number of records in each split."""
    counts = [known_counts(dataset, split) for split in dataset.splits.values()]
    return [
        (name, [None if of_split is None else of_split[i] for of_split in counts])
        for i, name in enumerate(dataset.classes)
    ]


def pixels(size: tuple[int, int] | None) -> str:
    """Returns the size of a picture, for people."""
    return "of any size" if size is None else f"{size[0]} x {size[1]} pixels"


def _pictures(
    dataset: DatasetSpec, split: Split, records: Iterable[int]
) -> list[tuple[Image.Image, str]]:
    """Returns the first pictures with their captions, without pictures that cannot be read."""
    from trainer.dataset.source import RecordSource

    wanted = list(itertools.islice(records, MAX_PICTURES))
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
        shards = split.shards[: bisect.bisect_right(split.starts, max(wanted, default=0))]
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
    # A whole number is a class id unless the column's own numbers are the labels.
    if isinstance(value, int) and dataset.target != "values" and not dataset.label_values:
        place = value - dataset.label_offset
        return dataset.classes[place] if 0 <= place < len(dataset.classes) else str(value)
    return number(value) if isinstance(value, int | float) else _text(value)


def _text(value: int | float | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
