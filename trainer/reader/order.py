"""The order of the records: an endless stream to train on, or one pass to evaluate with.

The order of the stream is a pure function of (seed, epoch). It depends neither on the number
of threads or replicas, nor on TensorFlow's global seed, nor on where records are cached.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.dataset.spec import ReadOptions, Subset
from trainer.reader import cache
from trainer.reader.resample import choose
from trainer.reader.sources import LOOK_RECORDS, Source, file_source, number_source, read_in_turn

SHUFFLE_BUFFER_BYTES = 64 * 1024 * 1024
COUNTED_AT_ONCE = 4096


def training_records(
    subset: Subset, read_options: ReadOptions, seed: int, start: int = 0
) -> tf.data.Dataset:
    """The passes 0, 1, 2, … one after the other without end.

    Args:
        subset: What is read; `num_records` of it in each pass.
        read_options: How.
        seed: Of the order; at least 0, below 2**31.
        start: How many records of the stream were read before: the first one of the dataset
            is record `start` of the endless stream.

    Returns:
        A dataset of (serialized string, record int64): the record's number within the split.
        A shard that holds more or fewer records than counted raises
        `tf.errors.FailedPreconditionError`, a garbled one `tf.errors.DataLossError`.
    """
    source = open_source(subset, read_options)
    stream = training_elements(source, subset, read_options, seed, start)
    return _fetched(stream, source)


def ordered_records(subset: Subset, read_options: ReadOptions) -> tf.data.Dataset:
    """One pass over the different records of `subset`, always in the same order.

    Returns:
        Like `training_records`, of known cardinality; records are not repeated, whatever
        `subset.sampling` says.
    """
    subset = without_copies(subset)
    source = open_source(subset, read_options)
    stream = ordered_elements(source, subset, read_options)
    return _fetched(stream, source)


def without_copies(subset: Subset) -> Subset:
    """The same records, each of them once."""
    if not subset.sampling or subset.class_counts is None:
        return subset
    return dataclasses.replace(subset, sampling=False, num_records=sum(subset.class_counts))


def open_source(subset: Subset, read_options: ReadOptions) -> Source:
    """The shards, or where `read_options` keeps them nearer.

    Raises:
        UserError: There is no room for the cache.
    """
    subset = cache.on_disk(subset, read_options)
    return (
        cache.memory_source(subset, read_options)
        if read_options.cache == "memory"
        else file_source(subset)
    )


def training_elements(
    source: Source, subset: Subset, read_options: ReadOptions, seed: int, start: int
) -> tf.data.Dataset:
    """`training_records` before records are fetched: a dataset of elements of `source`."""
    first, offset = divmod(start, subset.num_records)

    def passes(source: Source, epochs: tf.data.Dataset, skipped: int) -> tf.data.Dataset:
        # Resumed here, on serialized records: nothing that is skipped is parsed or decoded.
        return epochs.flat_map(
            lambda epoch: _epoch(source, subset, read_options, seed, epoch).skip(skipped)
        )

    epochs = tf.data.Dataset.range(first, tf.int64.max)
    if offset == 0:
        stream = passes(source, epochs, 0)
    else:
        resumed = _without_what_was_read(source, subset, read_options, seed, start)
        stream = passes(resumed, epochs.take(1), offset).concatenate(
            passes(source, epochs.skip(1), 0)
        )
    return stream.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def _without_what_was_read(
    source: Source, subset: Subset, read_options: ReadOptions, seed: int, start: int
) -> Source:
    """`source`, in whose first pass those shards are not even opened that are behind `start`.

    The order does not depend on what is in the records. So it is gone through with their
    numbers alone, which is far quicker than with their bytes, or with a bucket's.
    """
    if source.unread is None or source.look is not None or read_options.fast_order:
        return source
    numbers = number_source(subset)
    offset = start % subset.num_records
    stream = training_elements(numbers, subset, read_options, seed, start - offset).take(offset)
    was_read = np.zeros(subset.split.num_records, bool)
    for (read,) in stream.batch(COUNTED_AT_ONCE).as_numpy_iterator():
        was_read[read] = True
    ends = [*subset.split.starts[1:], subset.split.num_records]
    shards = zip(subset.split.starts, ends, strict=True)
    behind = [k for k, (begin, end) in enumerate(shards) if was_read[begin:end].all()]
    return source.unread(behind)


def ordered_elements(source: Source, subset: Subset, read_options: ReadOptions) -> tf.data.Dataset:
    """`ordered_records` before records are fetched: a dataset of elements of `source`."""
    # Nothing is learned here, so nothing needs shuffling.
    shards = tf.data.Dataset.range(len(subset.split.shards))
    elements = read_in_turn(source, shards, subset, read_options, ordered=True)
    elements = choose(elements, source, subset)
    return elements.apply(tf.data.experimental.assert_cardinality(subset.num_records))


def shuffle_records(subset: Subset) -> int:
    """Records in the shuffle buffer: the whole pass, or as many as fit into its bytes."""
    split = subset.split
    mean_bytes = max(1, split.num_bytes // max(1, split.num_records))
    return max(1, min(subset.num_records, SHUFFLE_BUFFER_BYTES // mean_bytes))


def _fetched(elements: tf.data.Dataset, source: Source) -> tf.data.Dataset:
    fetch = source.fetch
    if fetch is None:
        return elements
    # In batches: a function called for each record costs more than all that is before it.
    batches = elements.batch(LOOK_RECORDS)
    return batches.map(lambda *element: (fetch(*element), element[-1])).unbatch()


def _epoch(
    source: Source, subset: Subset, read_options: ReadOptions, seed: int, epoch: Any
) -> tf.data.Dataset:
    # ShuffleDataset mixes the graph's seed into its own; set by whoever called
    # `keras.utils.set_random_seed`, it would make the order depend on more than
    # (seed, epoch), and a zero there breaks seeds that are tensors.
    tf.compat.v1.get_default_graph().seed = None
    shard_key, record_key = tf.unstack(
        tf.random.split(tf.stack([tf.constant(seed, tf.int64), epoch]), 2)
    )
    # First whole shards are permuted: free, and it reaches further than any buffer.
    numbers = tf.range(len(subset.split.shards), dtype=tf.int64)
    shards = tf.data.Dataset.from_tensor_slices(
        tf.random.experimental.stateless_shuffle(numbers, shard_key)
    )
    # Then a few are read in turn, which tears neighbours within a shard apart.
    elements = read_in_turn(
        source, shards, subset, read_options, ordered=not read_options.fast_order
    )
    # Before the shuffle, so that its buffer holds only what is read, and spreads copies.
    elements = choose(elements, source, subset)
    # Shuffled while they are still JPEG: the same memory holds some ten times the records.
    record_seed = tf.random.stateless_uniform([], record_key, 1, 2**31 - 1, tf.int64)
    elements = elements.shuffle(
        shuffle_records(subset), record_seed, reshuffle_each_iteration=False
    )
    return elements.apply(tf.data.experimental.assert_cardinality(subset.num_records))
