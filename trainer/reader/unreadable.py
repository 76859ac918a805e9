"""Finds the record that made reading fail: its file, number, byte offset, key, and the reason.

A record is whole if the reader's own functions can parse and decode it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from imageshards.errors import UserError
from imageshards.example import decode_example
from imageshards.index import read_shard_index
from imageshards.manifest import BOX_FEATURES
from imageshards.tfrecord import Record
from trainer.dataset.spec import DatasetSpec, ModelInputs, describe
from trainer.dataset.subset import Subset
from trainer.reader.broken_records import BrokenRecord
from trainer.reader.pieces import PieceReader
from trainer.reader.plan import Array

# The check decodes pictures of varying sizes into this size, as any size shows whether it works.
_ANY_SIZE = (64, 64)


def find_unreadable(
    subset: Subset, records: Array, inputs: ModelInputs | None = None
) -> BrokenRecord | None:
    """Returns the first of `records` that cannot be parsed or decoded; None if all can be.

    `records` are numbers within the split. The check parses `inputs` in addition to the label.
    Damaged records are skipped, because the reader replaces them by empty records.
    """
    reader, pieces = PieceReader(subset), subset.pieces
    check = make_check(subset.dataset, inputs)
    numbers = np.unique(records)
    of_record = np.searchsorted(pieces.first, numbers, side="right") - 1
    for piece in np.unique(of_record).tolist():
        path = subset.split.shards[int(pieces.shard[piece])].path
        places = reader.places(piece)
        for number in numbers[of_record == piece].tolist():
            one = places[number - int(pieces.first[piece])]
            if isinstance(one, Record) and (reason := check(one.payload)):
                return BrokenRecord(path, one.number, number, one.offset_bytes, reason)
    return None


def explain(
    error: BaseException, subset: Subset, records: Array, inputs: ModelInputs | None = None
) -> UserError:
    """Returns the error for a person, which names the unreadable record and a remedy.

    `records`, numbers within the split, may be unreadable according to TensorFlow's `error`. The
    model has `inputs`, or None for the picture alone.
    """
    dataset, found = subset.dataset, find_unreadable(subset, records, inputs)
    if found is None:
        return UserError(
            argument="data",
            received=f"{dataset.data!r}, whose split {subset.split.name} cannot be read "
            f"({_first_line(error)}), though no record is broken",
            remedy=f"look with imageshards verify {dataset.data}, look at memory, disk, network or "
            "store, then run the same command again",
        )
    if dataset.adopted:
        remedy = "write its shard again without the record, then run imageshards adopt again"
    else:
        import pyarrow as pa

        # The key is only in the index, at the number of the record within its shard.
        number = [shard.path for shard in subset.split.shards].index(found.path)
        shard = dataset.manifest.splits[subset.split.name].shards[number]
        index = read_shard_index(dataset.data, shard, pa.schema([("key", pa.string())]))
        key = str(index["key"][found.number])
        remedy = (
            f"leave the record out by imageshards build --input {dataset.data} --exclude KEYS "
            f"--output NEW, where KEYS is a text file with the line {key}"
        )
    return UserError(
        argument="data",
        received=f"{dataset.data!r}, which has an unreadable record in {found}",
        remedy=remedy,
    )


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "message", error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # TensorFlow begins some messages with the names of nodes of its graph.
    reasons = (line for line in lines if not line.startswith("Detected at"))
    return next(reasons, "no reason given")[:300]


def make_check(dataset: DatasetSpec, inputs: ModelInputs | None = None) -> Callable[[bytes], str]:
    """Returns a function from payload to the reason why the record is unreadable, "" for none."""
    import tensorflow as tf

    from trainer.augment.decode import batch_pictures
    from trainer.dataset.parse import batch_parser

    size = dataset.image.size or _ANY_SIZE
    parse = batch_parser(dataset, inputs or ModelInputs(size, dataset.image))
    pictures = batch_pictures(dataset.image, size)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def read(serialized: tf.Tensor) -> tf.Tensor:
        parsed = parse(serialized)
        # The parser's checks run only if the graph uses the values, which nothing else does here.
        values = tf.nest.flatten((parsed.label, parsed.boxes, parsed.weight))
        used = [tf.identity(one) for one in values if one is not None]
        with tf.control_dependencies(used):
            return tf.shape(pictures(parsed.encoded, tf.range(1, dtype=tf.int64)))

    def check(payload: bytes) -> str:
        try:
            with tf.device("CPU"):
                read(tf.constant([payload], tf.string))
        # TensorFlow quotes a record that is not a tf.train.Example; Python cannot decode its bytes.
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as e:
            return _reason(dataset, payload, str(getattr(e, "message", e)))
        return ""

    return check


def _reason(dataset: DatasetSpec, payload: bytes, message: str) -> str:
    """Returns a readable reason; TensorFlow's own names kernels, and may quote the picture."""
    name, labels, weight = dataset.image_feature, dataset.label_features, dataset.weight_feature
    try:
        features = decode_example(payload, {name, *labels, *BOX_FEATURES, weight or name})
    except ValueError as e:
        return str(e)
    # TensorFlow's message does not name the feature, so each feature is checked once more here.
    for one in dataset.targets:
        found = [value for label in one.label_features for value in features.get(label, [])]
        if one.label_features and (problem := _label_problem(one, found)):
            return problem
    if "of its boxes" in message:
        counts = ", ".join(f"{len(features.get(side, []))} {side}" for side in BOX_FEATURES)
        return f"its boxes have sides or labels of different numbers ({counts})"
    own = features.get(weight or "", [])
    if weight and not (len(own) == 1 and 0 <= float(own[0]) < math.inf):
        said = ", ".join(map(str, own)) or "missing"
        return f"its weight {weight} is {said}, expected a number of at least 0"
    encoded = features.get(name, [])
    if len(encoded) != 1 or not encoded[0]:
        return f"it has no picture in {name}"
    if "Name: <unknown>" in message or "parse" in message:
        return "a feature is missing, or has another type or length than it should"
    if not dataset.image.varies and ("nsure" in message or "ncompatible shape" in message):
        return f"its picture is not of {'x'.join(map(str, dataset.image.size or ()))} px"
    first = encoded[0][:4] if isinstance(encoded[0], bytes) else b""
    return f"its picture cannot be decoded (it begins with {first.hex(' ')})"


def _label_problem(dataset: DatasetSpec, values: Sequence[bytes | int | float]) -> str:
    """Returns what is wrong with the label of a record, without a full stop; "" for nothing."""
    name, least = dataset.label_feature, dataset.label_offset
    if dataset.hot_features:
        ones = sum(value == 1 for value in values)
        are_bits = len(values) == len(dataset.classes) and {*values} <= {0, 1}
        is_right = are_bits and (ones == 1 or dataset.target == "labels")
        what = "a 0 or 1 for each class" + ", and one 1" * (dataset.target == "class")
        return "" if is_right else f"it has no feature {name} with {what}"
    count = {"class": 1, "values": dataset.num_outputs}.get(dataset.target, len(values))
    is_float = bool(values) and isinstance(values[0], float)
    if len(values) != count or (values and is_float != (dataset.target == "values")):
        what = "one value" if dataset.target == "class" else describe(dataset)
        return f"it has no feature {name} with {what}"
    greatest = least + len(dataset.classes) - 1
    for value in values:
        if isinstance(value, float):
            if not math.isfinite(value):
                return f"its {name} is {value}, expected a number"
            continue
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        if isinstance(value, bytes) or dataset.label_values:
            if text not in dataset.classes:
                return f"its {name} is {text!r}, which is no class"
        elif not least <= value <= greatest:
            return f"its {name} is {value}, expected {least} to {greatest} (see label_offset)"
    return ""
