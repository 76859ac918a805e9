"""Where records come from: the shards, a few of them open at a time and interleaved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.config import is_remote
from trainer.dataset.spec import ReadOptions, Subset
from trainer.reader.shard_cache import cache_on_disk

# Shards read at once: enough to mix neighbours, few enough to keep reads long.
OPEN_SHARDS = 16
# Where a shard holds one class, only as many open shards as there are classes mix them.
OPEN_CLASS_SHARDS = 256
# TensorFlow's own default for local files; a remote one answers in tens of milliseconds, so
# it is asked for more at a time.
READ_BUFFER_BYTES = 256 * 1024
REMOTE_READ_BUFFER_BYTES = 4 * 1024 * 1024
# Classes are looked up for this many records at a time.
INSPECT_RECORDS = 256


@dataclasses.dataclass(frozen=True)
class Source:
    """Records by shard: elements (serialized string, int64 number within the split).

    They are passed to functions as `tf.data` passes them: one argument each.

    Attributes:
        shard: int64 scalar, the number of a shard → a dataset of its elements, in order.
        classes: Of every record of the split its class of the model, -1 where it is not read,
            int32 [records]; None where every record is read once.
        parallel: Whether reading `shard` is worth a thread.
    """

    shard: Callable[[Any], tf.data.Dataset]
    classes: Any
    parallel: bool


def file_source(subset: Subset, read_options: ReadOptions) -> Source:
    """The shards of a split, or the copies of them that `read_options` asks for.

    Raises:
        UserError: There is no room for the copies.
    """
    subset = cache_on_disk(subset, read_options)
    shards = subset.split.shards
    paths = tf.constant([shard.path for shard in shards])
    starts = tf.constant(subset.split.starts, tf.int64)
    counts = tf.constant([shard.num_records for shard in shards], tf.int64)
    buffer_bytes = read_buffer_bytes(subset)

    def shard(k: Any) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(paths[k], buffer_size=buffer_bytes)
        # One number more than counted: a surplus record is not cut off but found.
        numbers = tf.data.Dataset.range(starts[k], starts[k] + counts[k] + 1)
        numbered = tf.data.Dataset.zip(records, numbers)
        return numbered.apply(tf.data.experimental.assert_cardinality(counts[k]))

    return Source(
        shard,
        None if subset.is_whole else tf.constant(subset.record_classes, tf.int32),
        # Threads pay off where reading waits for a store; elsewhere they only cost, and the order
        # is the same.
        parallel=_is_remote(subset),
    )


def interleave(source: Source, shards: tf.data.Dataset, subset: Subset) -> tf.data.Dataset:
    """Numbers of shards → their elements, one of each open shard in turn."""
    cycle = open_shards(subset)
    return shards.interleave(
        source.shard,
        cycle_length=cycle,
        block_length=1,
        # Fixed: autotuning is unsteady on few cores. Threads only read ahead.
        num_parallel_calls=min(OPEN_SHARDS, cycle) if source.parallel else None,
        deterministic=True if source.parallel else None,
    )


def open_shards(subset: Subset) -> int:
    """How many shards of a split are read at once."""
    by_class = subset.dataset.shard_by == "class"
    most = OPEN_CLASS_SHARDS if by_class else OPEN_SHARDS
    return max(1, min(most, len(subset.split.shards)))


def read_buffer_bytes(subset: Subset) -> int:
    """What is read of a shard at a time."""
    return REMOTE_READ_BUFFER_BYTES if _is_remote(subset) else READ_BUFFER_BYTES


def _is_remote(subset: Subset) -> bool:
    return any(is_remote(shard.path) for shard in subset.split.shards)
