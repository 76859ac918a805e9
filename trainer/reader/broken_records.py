"""Broken records: told in one sentence, and taken out without moving any other record."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from imageshards.errors import UserError
from imageshards.tfrecord import Record, scan_file, write_records
from trainer.dataset import counting
from trainer.dataset.spec import DataSet, Shard, Split, Subset
from trainer.dataset.subset import select
from trainer.reader.find_broken import BrokenRecord, find, wrong_files

__all__ = ["BrokenRecord", "describe", "explain", "find", "repair", "wrong_files"]

# What the reader takes for a record of weight 0.
PLACEHOLDER = b""


def describe(record: BrokenRecord) -> str:
    """File, record number, byte offset and reason, as part of a sentence."""
    return f"{record.path}, record {record.number} at byte {record.offset_bytes}: {record.reason}"


def explain(error: BaseException, subset: Subset, found: Sequence[BrokenRecord]) -> UserError:
    """What a person is told when reading has failed.

    Args:
        error: What TensorFlow said.
        subset: The split that was read.
        found: What `find` found; may be empty.
    """
    dataset = subset.dataset
    look = f"look with python -m beam_pipeline.verify {dataset.data}, " * dataset.has_manifest
    if not found:
        return UserError(
            f"--data received {dataset.data!r}, and reading its split {subset.split.name} failed "
            f"({_first_line(error)}), though no record of it is broken now; {look}or start again."
        )
    others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return UserError(
        f"--data received {dataset.data!r}, which is broken at {describe(found[0])}{others}; "
        f"{look}fix or copy the file, or leave such records out by --skip_broken {len(found)}."
    )


def repair(subset: Subset, found: Sequence[BrokenRecord], folder: str) -> Subset:
    """The same split with broken records replaced by empty ones, in copies of their shards.

    An empty record keeps the place of a broken or missing one and has weight 0; what a shard
    holds beyond its count is left out. Where every record is read, nothing else moves. Where
    records are selected, the empty ones are not, and `num_records` is counted anew.

    Args:
        subset: The split as it lies on disk.
        found: Everything that is broken in it.
        folder: Local; made where it is missing. Copies of an earlier call are replaced.

    Returns:
        `subset` with other paths and sizes.

    Raises:
        UserError: `folder` cannot be written.
    """
    numbers: dict[str, set[int]] = defaultdict(set)
    for record in found:
        numbers[record.path].add(record.number)
    shards = tuple(
        _copy(subset, index, shard, numbers[shard.path], folder) if shard.path in numbers else shard
        for index, shard in enumerate(subset.split.shards)
    )
    split = Split(subset.split.name, shards)
    if subset.is_whole:
        return dataclasses.replace(subset, split=split)
    return _select_again(subset, split)


def _copy(subset: Subset, index: int, shard: Shard, broken: set[int], folder: str) -> Shard:
    dataset = subset.dataset
    name = f"{subset.split.name}-{index:05d}-{os.path.basename(shard.path)}"
    path = os.path.join(folder, name)
    classes: Counter[str] = Counter()

    def payloads() -> Iterator[bytes]:
        for payload in _kept(shard, dataset.compression, broken):
            if payload and shard.classes is not None:
                classes.update(_class_name(dataset, payload))
            yield payload

    try:
        os.makedirs(folder, exist_ok=True)
        num_bytes = write_records(path, payloads(), dataset.compression)
    except OSError as e:
        raise UserError(
            f"--output received a place where {path}, a copy of a shard without its broken "
            f"records, cannot be written ({e.strerror or e}); expected {shard.num_bytes} bytes of "
            "room in a folder that may be written."
        ) from e
    known = dict(classes) if shard.classes is not None else None
    return Shard(path, shard.num_records, num_bytes, known)


def _kept(shard: Shard, compression: str, broken: set[int]) -> Iterator[bytes]:
    """As many payloads as the shard should hold."""
    number = 0
    try:
        for record in scan_file(shard.path, compression):
            if record.number >= shard.num_records:
                return
            whole = isinstance(record, Record) and record.number not in broken
            yield record.payload or PLACEHOLDER if whole else PLACEHOLDER
            number += 1
    except FileNotFoundError:
        pass
    for _ in range(number, shard.num_records):
        yield PLACEHOLDER


def _class_name(dataset: DataSet, payload: bytes) -> list[str]:
    # A record that is broken in a way nobody has met yet: it counts when it is met.
    try:
        return [dataset.classes[counting.class_id(dataset, payload)]]
    except counting.RecordProblem:
        return []


def _select_again(subset: Subset, split: Split) -> Subset:
    def count() -> tuple[int, ...]:
        anything = split.num_records
        return counting.class_counts(subset.dataset, split, subset.filters, anything)

    balance = "weights" if subset.class_weights else "none"
    return select(
        subset.dataset,
        split,
        classes=None if subset.class_ids is None else subset.classes,
        filters=subset.filters,
        balance="sampling" if subset.sampling else balance,
        count=count,
    )


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "message", error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = (line for line in lines if not line.startswith("Detected at"))
    return next(told, "no reason given")[:300]
