"""Where records come from: the shards, a few of them open at a time and interleaved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.config import is_remote
from trainer.dataset.spec import Subset
from trainer.dataset.subset import subset_filter

# Shards read at once: enough to mix neighbours, few enough to keep reads long.
OPEN_SHARDS = 16
# Where a shard holds one class, only as many open shards as there are classes mix them.
OPEN_CLASS_SHARDS = 256
# TensorFlow's own default for local files; a remote one answers in tens of milliseconds, so
# it is asked for more at a time.
READ_BUFFER_BYTES = 256 * 1024
REMOTE_READ_BUFFER_BYTES = 4 * 1024 * 1024
# Labels and filtered features are parsed for this many records at a time.
INSPECT_RECORDS = 256


@dataclasses.dataclass(frozen=True)
class Source:
    """Records by shard, in whatever form suits the stages that only need their order.

    An element is a tuple of scalars; the last one is the record's int64 number within the
    split. They are passed to functions as `tf.data` passes them: one argument each.

    Attributes:
        shard: int64 scalar, the number of a shard → a dataset of its elements, in order.
        inspect: A batch of elements → (classes int64 [b] of the model, keep bool [b], present
            bool [b], False for a placeholder); None where every record is read once.
        fetch: A batch of elements → their serialized records, string [b]; None where that is
            the first part of an element already.
        placeholder: One element without a record.
        parallel: Whether reading `shard` is worth a thread.
        skip_shards: Numbers of shards → the same source, in which these are not opened: their
            elements come with empty records. None where opening them costs nothing.
    """

    shard: Callable[[Any], tf.data.Dataset]
    inspect: Callable[..., tuple[Any, Any, Any]] | None
    fetch: Callable[..., Any] | None
    placeholder: tuple[Any, ...]
    parallel: bool
    skip_shards: Callable[[Sequence[int]], Source] | None = None


def file_source(subset: Subset, skipped: Sequence[int] = ()) -> Source:
    """The shards of a split as they lie on disk; those in `skipped` are not opened.

    Its elements are (serialized string, record int64).
    """
    shards = subset.split.shards
    paths = tf.constant([shard.path for shard in shards])
    starts = tf.constant(subset.split.starts, tf.int64)
    counts = tf.constant([shard.num_records for shard in shards], tf.int64)
    buffer_bytes = read_buffer_bytes(subset)
    classify = subset_filter(subset)
    closed = frozenset(skipped)
    is_read = tf.constant([k not in closed for k in range(len(shards))])

    def shard(k: Any) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(
            tf.boolean_mask([paths[k]], [is_read[k]]),
            compression_type=subset.dataset.compression_type,
            buffer_size=buffer_bytes,
        )
        if skipped:
            missing = counts[k] * tf.cast(~is_read[k], tf.int64)
            nothing = tf.data.Dataset.from_tensor_slices(tf.fill([missing], b""))
            records = records.concatenate(nothing)
        # One number more than counted: a surplus record is not cut off but found.
        numbers = tf.data.Dataset.range(starts[k], starts[k] + counts[k] + 1)
        numbered = tf.data.Dataset.zip(records, numbers)
        return numbered.apply(tf.data.experimental.assert_cardinality(counts[k]))

    def inspect(serialized: Any, record: Any) -> tuple[Any, Any, Any]:
        classes, keep = classify(serialized)  # type: ignore[misc]
        return classes, keep, tf.strings.length(serialized) > 0

    return Source(
        shard,
        None if classify is None else inspect,
        None,
        (tf.constant(b""), tf.constant(-1, tf.int64)),
        parallel=True,
        skip_shards=lambda shards: file_source(subset, shards),
    )


def number_source(subset: Subset) -> Source:
    """The numbers of the records alone: to find out their order, or to cache their contents."""
    starts = tf.constant(subset.split.starts, tf.int64)
    counts = tf.constant([shard.num_records for shard in subset.split.shards], tf.int64)

    def shard(k: Any) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(starts[k], starts[k] + counts[k])
        return tf.data.Dataset.zip((numbers,))

    return Source(shard, None, None, (tf.constant(-1, tf.int64),), parallel=False)


def interleave(
    source: Source, shards: tf.data.Dataset, subset: Subset, *, deterministic: bool
) -> tf.data.Dataset:
    """Numbers of shards → their elements, one of each open shard in turn.

    Args:
        source: Whose shards.
        shards: int64 scalars.
        subset: Says how many shards have to be open to mix the classes.
        deterministic: False lets whichever shard is ready go first.
    """
    cycle = open_shards(subset)
    if not source.parallel:
        return shards.interleave(source.shard, cycle_length=cycle, block_length=1)
    return shards.interleave(
        source.shard,
        cycle_length=cycle,
        block_length=1,
        # Fixed: autotuning is unsteady on few cores. If deterministic, threads only read ahead.
        num_parallel_calls=min(OPEN_SHARDS, cycle),
        deterministic=deterministic,
    )


def open_shards(subset: Subset) -> int:
    """How many shards of a split are read at once."""
    by_class = subset.dataset.shard_by == "class"
    most = OPEN_CLASS_SHARDS if by_class else OPEN_SHARDS
    return max(1, min(most, len(subset.split.shards)))


def read_buffer_bytes(subset: Subset) -> int:
    """What is read of a shard at a time."""
    remote = any(is_remote(shard.path) for shard in subset.split.shards)
    return REMOTE_READ_BUFFER_BYTES if remote else READ_BUFFER_BYTES
