"""Finds the record that made reading fail: its file, number, byte offset, key, and the reason.

A record is whole if the reader's own functions can parse and decode it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from imageshards import storage
from imageshards.errors import UserError
from imageshards.index import read_shard_index
from imageshards.tfrecord import RecordError
from trainer.dataset.source import RecordSource
from trainer.dataset.spec import DatasetSpec, ModelInputs
from trainer.dataset.subset import Subset
from trainer.reader.broken_records import BrokenRecord
from trainer.reader.plan import Array

if TYPE_CHECKING:
    import tensorflow as tf

# The check decodes pictures of varying sizes into this size, as any size shows whether it works.
_ANY_SIZE = (64, 64)


def find_unreadable(
    subset: Subset, records: Array, inputs: ModelInputs | None = None
) -> BrokenRecord | None:
    """Returns the first of `records` that cannot be parsed or decoded; None if all can be.

    `records` are numbers within the split. The check parses `inputs` in addition to the label.
    Damaged records are skipped, because the reader replaces them by empty records.
    """
    source, check = RecordSource(subset.dataset, subset.split), make_check(subset.dataset, inputs)

    def examined(number: int) -> BrokenRecord | None:
        with contextlib.suppress(RecordError, FileNotFoundError):
            path, record = source.stored(number)
            if reason := check(record.payload):
                return BrokenRecord(path, record.number, number, record.offset_bytes, reason)
        return None

    found = storage.map_concurrently(examined, np.unique(records).tolist())
    return next(filter(None, found), None)


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
            f"({_last_line(error)}), though no record is broken",
            remedy=f"look with imageshards verify {dataset.data}, look at memory, disk, network or "
            "store, then run the same command again",
        )
    if dataset.adopted:
        remedy = "write its shard again without the record, then run imageshards adopt again"
    else:
        import pyarrow as pa

        # The key is only in the index, at the number of the record within its shard.
        shard = subset.split.shards[subset.split.paths.index(found.path)]
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


def _last_line(error: BaseException) -> str:
    # TensorFlow names nodes of its graph before the reason, and behind it.
    lines = str(getattr(error, "message", error)).partition("\n\t [[")[0].split("\n")
    return lines[-1][:300] or "no reason given"


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
        except UnicodeDecodeError:
            return "it is no tf.train.Example"
        except tf.errors.InvalidArgumentError as e:
            return _reason(dataset, e)
        return ""

    return check


def _reason(dataset: DatasetSpec, error: tf.errors.InvalidArgumentError) -> str:
    """Returns the reason that the parser gave; TensorFlow's own names kernels."""
    message = str(error.message)
    _, is_ours, said = message.partition("assertion failed: [")
    if is_ours:
        return ": ".join(part.strip("[] ") for part in said.splitlines()[0].split("] ["))
    if "Could not parse example" in message:
        return "it is no tf.train.Example"
    if found := re.search(r"(?:Key|Feature): (.+?)(?:, Index: | \(data type: )", message):
        return f"its {found[1]} is missing, or has another type or length than it should"
    if not dataset.image.varies and ("nsure" in message or "ncompatible shape" in message):
        return f"its picture is not of {'x'.join(map(str, dataset.image.size or ()))} px"
    return f"its picture cannot be decoded ({_last_line(error)})"
