"""How many records of each class a split holds, where nobody has said it."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from imageshards.errors import UserError
from imageshards.example import decode_example
from imageshards.tfrecord import Record, RecordError, scan_file
from trainer.dataset import counts_cache
from trainer.dataset.filters import filter_function
from trainer.dataset.spec import DataSet, Split

_BATCH_RECORDS = 512
_CACHE_VERSION = 1

# Payloads → the class id of each, None for one that does not count.
_Classify = Callable[[Sequence[bytes]], list[int | None]]


class RecordProblem(ValueError):
    """Why a record cannot be counted, without a full stop."""


@dataclasses.dataclass(frozen=True)
class _Bad:
    path: str
    number: int
    offset_bytes: int
    reason: str


def class_counts(
    dataset: DataSet, split: Split, filters: Sequence[str], skip_broken: int = 0
) -> tuple[int, ...]:
    """The records of `split` that pass `filters`, per class id of the data set.

    What was counted once is kept, see `trainer.dataset.counts_cache`. Empty records, the places of
    broken ones, do not count.

    Args:
        dataset: Where the split belongs.
        split: The split.
        filters: As `--where` gives them, see `trainer.dataset.filters`.
        skip_broken: How many records may be broken; they do not count, either.

    Raises:
        UserError: More records are broken, or have a label that is no class; it names file,
            record and byte offset. Or a condition is wrong.
    """
    shards = [[os.path.basename(s.path), s.num_records, s.num_bytes] for s in split.shards]
    key = {
        "version": _CACHE_VERSION,
        "fingerprint": dataset.fingerprint,
        "label": [dataset.label_feature, dataset.label_offset, list(dataset.classes)],
        "shards": shards,
        "where": sorted(filters),
    }

    def count() -> Any:
        counts, bad = _count(dataset, split, filters)
        # Before it is kept: what is broken may be repaired with no change in size.
        _check_bad(dataset, bad, skip_broken)
        return {"counts": counts, "bad": [dataclasses.astuple(one) for one in bad]}

    what = f"classes of {split.name} in {dataset.data}" + "".join(f", {text}" for text in filters)
    counted = counts_cache.cached(what, key, count)
    _check_bad(dataset, [_Bad(*one) for one in counted["bad"]], skip_broken)
    return tuple(counted["counts"])


def class_id(dataset: DataSet, payload: bytes) -> int:
    """The class id of a serialized record, found without TensorFlow.

    Raises:
        RecordProblem: It is no `tf.train.Example`, has no label, or one that is no class.
    """
    try:
        features = decode_example(payload, {dataset.label_feature})
    except ValueError as e:
        raise RecordProblem(str(e)) from e
    values = features.get(dataset.label_feature, [])
    if len(values) != 1:
        raise RecordProblem(f"it has no feature {dataset.label_feature} with one value")
    label = values[0]
    if isinstance(label, bytes):
        name = label.decode(errors="replace")
        if name in dataset.classes:
            return dataset.classes.index(name)
        raise RecordProblem(f"its {dataset.label_feature} is {name!r}, which is no class")
    least = dataset.label_offset
    greatest = least + len(dataset.classes) - 1
    if not isinstance(label, int) or not least <= label <= greatest:
        raise RecordProblem(
            f"its {dataset.label_feature} is {label}, expected {least} to {greatest} "
            "(see --label_offset)"
        )
    return label - least


def _count(dataset: DataSet, split: Split, filters: Sequence[str]) -> tuple[list[int], list[_Bad]]:
    classify = _matching(dataset, filters) if filters else _labelled(dataset)
    totals: Counter[int | None] = Counter()
    bad: list[_Bad] = []
    for shard in split.shards:
        for records in _batches(shard.path, dataset.compression, bad):
            totals.update(_classify_all(classify, records, shard.path, bad))
    return [totals[i] for i in range(len(dataset.classes))], bad


def _batches(path: str, compression: str, bad: list[_Bad]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    try:
        for record in scan_file(path, compression):
            if isinstance(record, RecordError):
                bad.append(_Bad(path, record.number, record.offset_bytes, record.reason))
            elif record.payload:
                batch.append(record)
            if len(batch) == _BATCH_RECORDS:
                yield batch
                batch = []
    except OSError as e:
        raise UserError(
            f"--data received a data set whose file {path} cannot be read ({e.strerror or e}); "
            "expected every file of it: copy it again."
        ) from e
    if batch:
        yield batch


def _classify_all(
    classify: _Classify, records: Sequence[Record], path: str, bad: list[_Bad]
) -> list[int | None]:
    """Classifies a batch; where that fails, its halves, down to the records at fault."""
    try:
        return classify([record.payload for record in records])
    except RecordProblem as e:
        if len(records) == 1:
            bad.append(_Bad(path, records[0].number, records[0].offset_bytes, str(e)))
            return []
    half = len(records) // 2
    return [
        *_classify_all(classify, records[:half], path, bad),
        *_classify_all(classify, records[half:], path, bad),
    ]


def _labelled(dataset: DataSet) -> _Classify:
    return lambda payloads: [class_id(dataset, payload) for payload in payloads]


def _matching(dataset: DataSet, filters: Sequence[str]) -> _Classify:
    """Conditions are left to the reader's own code: a float must compare as it will there."""
    import tensorflow as tf

    label_and_filter = filter_function(dataset, filters)

    def classify(payloads: Sequence[bytes]) -> list[int | None]:
        try:
            with tf.device("CPU"):
                labels, keep = label_and_filter(tf.constant(list(payloads), tf.string))
        # TensorFlow quotes a record that is no tf.train.Example, and stumbles over its bytes.
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as e:
            if len(payloads) == 1:
                class_id(dataset, payloads[0])
            raise RecordProblem(
                f"it has not the features that {' and '.join(filters)} needs"
            ) from e
        pairs = zip(labels.numpy().tolist(), keep.numpy().tolist(), strict=True)
        return [label if kept else None for label, kept in pairs]

    return classify


def _check_bad(dataset: DataSet, bad: Sequence[_Bad], skip_broken: int) -> None:
    if len(bad) <= skip_broken:
        return
    first = bad[0]
    others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    raise UserError(
        f"--data received {dataset.data!r}, whose file {first.path} is broken at record "
        f"{first.number}, byte {first.offset_bytes}: {first.reason}{others}; expected at most "
        f"{skip_broken} broken records: copy the file again, or allow them by --skip_broken "
        f"{len(bad)}."
    )
