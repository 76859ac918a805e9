"""Where records come from: the shards, a few of them open at a time and interleaved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
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
    """Records by shard: elements (serialized string, int64 number within the split).

    They are passed to functions as `tf.data` passes them: one argument each.

    Attributes:
        shard: int64 scalar, the number of a shard → a dataset of its elements, in order.
        inspect: A batch of elements → (classes int64 [b] of the model, keep bool [b], present
            bool [b], False for a placeholder); None where every record is read once.
        placeholder: One element without a record.
        parallel: Whether reading `shard` is worth a thread.
    """

    shard: Callable[[Any], tf.data.Dataset]
    inspect: Callable[..., tuple[Any, Any, Any]] | None
    placeholder: tuple[Any, ...]
    parallel: bool


def file_source(subset: Subset) -> Source:
    """The shards of a split as they lie on disk.

    Its elements are (serialized string, record int64).
    """
    shards = subset.split.shards
    paths = tf.constant([shard.path for shard in shards])
    starts = tf.constant(subset.split.starts, tf.int64)
    counts = tf.constant([shard.num_records for shard in shards], tf.int64)
    buffer_bytes = read_buffer_bytes(subset)
    classify = subset_filter(subset)
    find_lost = _placeholder_lookup(subset.placeholders)

    def shard(k: Any) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(
            paths[k],
            buffer_size=buffer_bytes,
        )
        # One number more than counted: a surplus record is not cut off but found.
        numbers = tf.data.Dataset.range(starts[k], starts[k] + counts[k] + 1)
        numbered = tf.data.Dataset.zip(records, numbers)
        return numbered.apply(tf.data.experimental.assert_cardinality(counts[k]))

    def inspect(serialized: Any, record: Any) -> tuple[Any, Any, Any]:
        classes, keep = classify(serialized, record)  # type: ignore[misc]
        lost = find_lost(record)
        return tf.maximum(classes, lost), keep | (lost >= 0), tf.strings.length(serialized) > 0

    return Source(
        shard,
        None if classify is None else inspect,
        (tf.constant(b""), tf.constant(-1, tf.int64)),
        # Threads pay off where reading waits for a store; elsewhere they only cost, and the order
        # is the same.
        parallel=_is_remote(subset),
    )


def interleave(source: Source, shards: tf.data.Dataset, subset: Subset) -> tf.data.Dataset:
    """Numbers of shards → their elements, one of each open shard in turn.

    Args:
        source: Whose shards.
        shards: int64 scalars.
        subset: Says how many shards have to be open to mix the classes.
    """
    cycle = open_shards(subset)
    if not source.parallel:
        return shards.interleave(source.shard, cycle_length=cycle, block_length=1)
    return shards.interleave(
        source.shard,
        cycle_length=cycle,
        block_length=1,
        # Fixed: autotuning is unsteady on few cores. Threads only read ahead.
        num_parallel_calls=min(OPEN_SHARDS, cycle),
        deterministic=True,
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


def _placeholder_lookup(placeholders: Mapping[int, int]) -> Callable[[Any], Any]:
    """Numbers of records, int64 [b] → their class where `placeholders` has them, else -1."""
    if not placeholders:
        return lambda record: tf.fill(tf.shape(record), tf.constant(-1, tf.int64))
    numbers = tf.constant(sorted(placeholders), tf.int64)
    classes = tf.constant([placeholders[number] for number in sorted(placeholders)], tf.int64)

    def find(record: Any) -> Any:
        index = tf.minimum(tf.searchsorted(numbers, record), len(placeholders) - 1)
        return tf.where(tf.equal(tf.gather(numbers, index), record), tf.gather(classes, index), -1)

    return find
