"""Where records are broken: file, number, byte offset and reason of each."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from imageshards import storage
from imageshards.tfrecord import Record, RecordError, scan_file
from trainer.dataset.spec import FeatureSpec, Shard, Subset
from trainer.reader.broken_check import Check, make_check

_BATCH_RECORDS = 64


@dataclasses.dataclass(frozen=True)
class BrokenRecord:
    """One record that cannot be read, or all that a shard holds beyond its count.

    Attributes:
        path: The shard.
        number: Of the record within the shard, from 0.
        record: Of the record within the split; for what is beyond the count, below 0 and
            different for each shard.
        offset_bytes: Where it begins in the shard, or where it should; within the
            decompressed bytes for gzip.
        reason: What was found, without a full stop.
    """

    path: str
    number: int
    record: int
    offset_bytes: int
    reason: str


def wrong_files(subset: Subset) -> list[str]:
    """Shards that are missing, or have another size than they should."""
    shards = subset.split.shards
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        sizes = list(pool.map(_size_bytes, shards))
    return [s.path for s, size in zip(shards, sizes, strict=True) if size != s.num_bytes]


def find(
    subset: Subset,
    records: Sequence[int] | None = None,
    *,
    framing: bool = False,
    inputs: Mapping[str, FeatureSpec] | None = None,
) -> list[BrokenRecord]:
    """Looks for broken records.

    A shard that is looked at is read whole: missing records, wrong checksums and records
    beyond its count are always found in it.

    Args:
        subset: The split.
        records: Numbers within the split of records to parse and decode as the reader does;
            None for all. Shards without any of them are looked at only for `framing`.
        framing: Whether to look at every shard.
        inputs: Features besides picture and label that have to be there.

    Returns:
        In the order of the split.

    Raises:
        OSError: A shard is there but cannot be read.
    """
    check = make_check(subset.dataset, inputs or {})
    found: list[BrokenRecord] = []
    for index, (shard, start) in enumerate(
        zip(subset.split.shards, subset.split.starts, strict=True)
    ):
        wanted = None
        if records is not None:
            wanted = {r - start for r in records if start <= r < start + shard.num_records}
        if wanted is None or wanted or framing:
            compression = subset.dataset.compression
            found += _look_through(shard, index, start, compression, wanted, check)
    return found


def _size_bytes(shard: Shard) -> int | None:
    try:
        found = storage.stat(shard.path)
    except OSError:
        return None
    return None if found is None else found.size_bytes


def _look_through(
    shard: Shard,
    index: int,
    start: int,
    compression: str,
    wanted: set[int] | None,
    check: Check,
) -> list[BrokenRecord]:
    found: list[BrokenRecord] = []
    place = _Place()

    def note(number: int, offset_bytes: int, reason: str) -> None:
        found.append(BrokenRecord(shard.path, number, start + number, offset_bytes, reason))

    def flush(records: list[Record]) -> None:
        reasons = check([record.payload for record in records])
        for record, reason in zip(records, reasons, strict=True):
            if reason:
                note(record.number, record.offset_bytes, reason)
        records.clear()

    waiting: list[Record] = []
    # Beyond the count nothing is decoded: it is not read for training, either.
    for record in _records(shard.path, compression, place):
        if record.number >= shard.num_records:
            if record.number == shard.num_records:
                place.surplus_offset_bytes = record.offset_bytes
        elif isinstance(record, RecordError):
            note(record.number, record.offset_bytes, record.reason)
        elif wanted is None or record.number in wanted:
            waiting.append(record)
        if len(waiting) == _BATCH_RECORDS:
            flush(waiting)
    flush(waiting)
    found += _missing(shard, start, place)
    found.sort(key=lambda broken: broken.number)
    return [*found, *_surplus(shard, index, place)]


@dataclasses.dataclass
class _Place:
    """How far a shard was read: its last record, and where that and the next one begin."""

    number: int = -1
    offset_bytes: int = 0
    next_offset_bytes: int = 0
    surplus_offset_bytes: int = 0
    is_there: bool = True


def _records(path: str, compression: str, place: _Place) -> Iterator[Record | RecordError]:
    try:
        for record in scan_file(path, compression):
            place.number, place.offset_bytes = record.number, record.offset_bytes
            place.next_offset_bytes = record.next_offset_bytes or record.offset_bytes
            yield record
    except FileNotFoundError:
        place.is_there = False


def _missing(shard: Shard, start: int, place: _Place) -> Iterator[BrokenRecord]:
    held = place.number + 1
    reason = f"the file ends after {held} of {shard.num_records} records"
    if not place.is_there:
        reason = "the file is missing"
    elif held and place.next_offset_bytes == place.offset_bytes:
        reason = f"lost behind the damage to record {place.number}"
    for number in range(held, shard.num_records):
        offset_bytes = place.next_offset_bytes
        yield BrokenRecord(shard.path, number, start + number, offset_bytes, reason)


def _surplus(shard: Shard, index: int, place: _Place) -> Iterator[BrokenRecord]:
    surplus = place.number + 1 - shard.num_records
    if surplus > 0:
        reason = f"the file goes on after the {shard.num_records} records it should have"
        yield BrokenRecord(
            shard.path,
            shard.num_records,
            -1 - index,
            place.surplus_offset_bytes,
            f"{reason}, for {surplus} more",
        )
