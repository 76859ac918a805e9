"""Where records are broken: file, number, byte offset and reason of each.

A record is whole if it can be parsed and decoded by the reader's own functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from imageshards.example import Values, decode_example
from imageshards.text import counted
from imageshards.tfrecord import Record, RecordError, scan_file
from trainer.cluster.connection import note_work
from trainer.dataset.spec import DataSet, FeatureSpec, ModelInputs, Shard, Subset

_BATCH_RECORDS = 64
# Where pictures vary in size, any size will do to see whether they can be decoded.
_ANY_SIZE = (64, 64)

# Payloads → what is wrong with each, empty where nothing is.
_Check = Callable[[Sequence[bytes]], list[str]]


@dataclasses.dataclass(frozen=True)
class BrokenRecord:
    """One record that cannot be read, or all that a shard holds beyond its count.

    Attributes:
        path: The shard.
        number: Of the record within the shard, from 0.
        record: Of the record within the split; for what is beyond the count, below 0 and
            different for each shard.
        offset_bytes: Where it begins in the shard, or where it should.
        reason: What was found, without a full stop.
    """

    path: str
    number: int
    record: int
    offset_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, record {self.number} at byte {self.offset_bytes}: {self.reason}"


def find_broken(
    subset: Subset,
    records: Sequence[int] | None = None,
    inputs: Mapping[str, FeatureSpec] | None = None,
) -> list[BrokenRecord]:
    """Looks for broken records among `records`, numbers within the split; None for all.

    Those are parsed and decoded as the reader does, with `inputs` besides picture and label; shards
    without any of them are not looked at.

    A shard that is looked at is read whole: missing records, wrong checksums and records
    beyond its count are always found in it.

    Returns:
        In the order of the split.

    Raises:
        OSError: A shard is there but cannot be read.
    """
    found: list[BrokenRecord] = []
    check = _make_check(subset.dataset, inputs or {})
    places = zip(subset.split.shards, subset.split.starts, strict=True)
    for index, (shard, start) in enumerate(places):
        wanted = None
        if records is not None:
            wanted = {r - start for r in records if start <= r < start + shard.num_records}
        if wanted is None or wanted:
            found += _find_in_shard(shard, index, start, wanted, check)
    return found


def _find_in_shard(
    shard: Shard, index: int, start: int, wanted: set[int] | None, check: _Check
) -> list[BrokenRecord]:
    found: list[BrokenRecord] = []
    unchecked: list[Record] = []
    last: Record | RecordError | None = None
    surplus_at: int | None = None
    is_there = True

    def note(number: int, offset_bytes: int, reason: str) -> None:
        found.append(BrokenRecord(shard.path, number, start + number, offset_bytes, reason))

    def check_waiting() -> None:
        reasons = check([record.payload for record in unchecked])
        for record, reason in zip(unchecked, reasons, strict=True):
            if reason:
                note(record.number, record.offset_bytes, reason)
        unchecked.clear()

    try:
        for last in scan_file(shard.path):
            note_work()
            if last.number >= shard.num_records:
                # Not decoded: training reads no more records than the manifest counts.
                surplus_at = last.offset_bytes if surplus_at is None else surplus_at
            elif isinstance(last, RecordError):
                note(last.number, last.offset_bytes, last.reason)
            elif wanted is None or last.number in wanted:
                unchecked.append(last)
            if len(unchecked) == _BATCH_RECORDS:
                check_waiting()
    except FileNotFoundError:
        is_there = False
    check_waiting()
    held = 0 if last is None else last.number + 1
    end = 0 if last is None else last.next_offset_bytes or last.offset_bytes
    for number in range(held, shard.num_records):
        note(number, end, _why_missing(shard, last) if is_there else "the file is missing")
    found.sort(key=lambda broken: broken.number)
    if surplus_at is not None:
        expected = shard.num_records
        reason = (
            f"the file goes on after the {expected} records it should have, "
            f"for {held - expected} more"
        )
        found.append(BrokenRecord(shard.path, expected, -1 - index, surplus_at, reason))
    return found


def _why_missing(shard: Shard, last: Record | RecordError | None) -> str:
    if last is not None and last.next_offset_bytes is None:
        return f"lost behind the damage to record {last.number}"
    held = 0 if last is None else last.number + 1
    return f"the file ends after {held} of {counted(shard.num_records, 'record')}"


def _make_check(dataset: DataSet, inputs: Mapping[str, FeatureSpec]) -> _Check:
    import tensorflow as tf

    from trainer.augment.decode import batch_pictures
    from trainer.dataset.parse import batch_parser

    size = dataset.image.size or _ANY_SIZE
    parse = batch_parser(dataset, ModelInputs(size, dataset.image, inputs))
    pictures = batch_pictures(dataset.image, size)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def read(serialized: tf.Tensor) -> tf.Tensor:
        encoded = parse(serialized).encoded
        return tf.shape(pictures(encoded, tf.range(tf.size(encoded, tf.int64))))

    def check(payloads: Sequence[bytes]) -> list[str]:
        if not payloads:
            return []
        try:
            with tf.device("CPU"):
                read(tf.constant(list(payloads), tf.string))
        # TensorFlow quotes a record that is no tf.train.Example, and stumbles over its bytes.
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as e:
            if len(payloads) == 1:
                return [_reason(dataset, payloads[0], str(getattr(e, "message", e)))]
            half = len(payloads) // 2
            return [*check(payloads[:half]), *check(payloads[half:])]
        return ["" if payload else "it is empty" for payload in payloads]

    return check


def _reason(dataset: DataSet, payload: bytes, message: str) -> str:
    """A reason for people: TensorFlow's own names its kernels, and may quote the picture."""
    name, label = dataset.image_feature, dataset.label_feature
    try:
        features = decode_example(payload, {name, label})
    except ValueError as e:
        return str(e)
    if problem := _label_problem(dataset, features.get(label, [])):
        return problem
    encoded = features.get(name, [])
    if len(encoded) != 1 or not encoded[0]:
        return f"it has no picture in {name}"
    if "Name: <unknown>" in message or "parse" in message:
        return "a feature is missing, or has another type or length than it should"
    if not dataset.image.varies and ("nsure" in message or "ncompatible shape" in message):
        return f"its picture is not of {'x'.join(map(str, dataset.image.size or ()))} px"
    first = encoded[0][:4] if isinstance(encoded[0], bytes) else b""
    return f"its picture cannot be decoded (it begins with {first.hex(' ')})"


def _label_problem(dataset: DataSet, values: Values) -> str:
    """Why the label of a record is none, without a full stop; "" where it is one."""
    name, least = dataset.label_feature, dataset.label_offset
    value = values[0] if len(values) == 1 else None
    if isinstance(value, bytes):
        text = value.decode(errors="replace")
        return "" if text in dataset.classes else f"its {name} is {text!r}, which is no class"
    if not isinstance(value, int):
        return f"it has no feature {name} with one value"
    greatest = least + len(dataset.classes) - 1
    if least <= value <= greatest:
        return ""
    return f"its {name} is {value}, expected {least} to {greatest} (see label_offset)"
