"""The order of the records: an endless stream to train on, or one pass to evaluate with.

The order of the stream is a pure function of (seed, epoch). It depends neither on the number
of threads or replicas, nor on TensorFlow's global seed, nor on where records are cached.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.dataset.spec import Reading, Selected
from trainer.reader import cache
from trainer.reader.resample import choose
from trainer.reader.sources import LOOK_RECORDS, Source, file_source, number_source, read_in_turn

SHUFFLE_BUFFER_BYTES = 64 * 1024 * 1024
COUNTED_AT_ONCE = 4096


def training_records(
    selected: Selected, reading: Reading, seed: int, start: int = 0
) -> tf.data.Dataset:
    """The passes 0, 1, 2, … one after the other without end.

    Args:
        selected: What is read; `num_records` of it in each pass.
        reading: How.
        seed: Of the order; at least 0, below 2**31.
        start: How many records of the stream were read before: the first one of the dataset
            is record `start` of the endless stream.

    Returns:
        A dataset of (serialized string, record int64): the record's number within the split.
        A shard that holds more or fewer records than counted raises
        `tf.errors.FailedPreconditionError`, a garbled one `tf.errors.DataLossError`.
    """
    source = open_source(selected, reading)
    stream = training_elements(source, selected, reading, seed, start)
    return _fetched(stream, source)


def ordered_records(selected: Selected, reading: Reading) -> tf.data.Dataset:
    """One pass over the different records of `selected`, always in the same order.

    Returns:
        Like `training_records`, of known cardinality; records are not repeated, whatever
        `selected.sampling` says.
    """
    selected = without_copies(selected)
    source = open_source(selected, reading)
    stream = ordered_elements(source, selected, reading)
    return _fetched(stream, source)


def without_copies(selected: Selected) -> Selected:
    """The same records, each of them once."""
    if not selected.sampling or selected.class_counts is None:
        return selected
    return dataclasses.replace(selected, sampling=False, num_records=sum(selected.class_counts))


def open_source(selected: Selected, reading: Reading) -> Source:
    """The shards, or where `reading` keeps them nearer.

    Raises:
        UserError: There is no room for the cache.
    """
    selected = cache.on_disk(selected, reading)
    return (
        cache.memory_source(selected, reading)
        if reading.cache == "memory"
        else file_source(selected)
    )


def training_elements(
    source: Source, selected: Selected, reading: Reading, seed: int, start: int
) -> tf.data.Dataset:
    """`training_records` before records are fetched: a dataset of elements of `source`."""
    first, offset = divmod(start, selected.num_records)

    def passes(source: Source, epochs: tf.data.Dataset, skipped: int) -> tf.data.Dataset:
        # Resumed here, on serialized records: nothing that is skipped is parsed or decoded.
        return epochs.flat_map(
            lambda epoch: _epoch(source, selected, reading, seed, epoch).skip(skipped)
        )

    epochs = tf.data.Dataset.range(first, tf.int64.max)
    if offset == 0:
        stream = passes(source, epochs, 0)
    else:
        resumed = _without_what_was_read(source, selected, reading, seed, start)
        stream = passes(resumed, epochs.take(1), offset).concatenate(
            passes(source, epochs.skip(1), 0)
        )
    return stream.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def _without_what_was_read(
    source: Source, selected: Selected, reading: Reading, seed: int, start: int
) -> Source:
    """`source`, in whose first pass those shards are not even opened that are behind `start`.

    The order does not depend on what is in the records. So it is gone through with their
    numbers alone, which is far quicker than with their bytes, or with a bucket's.
    """
    if source.unread is None or source.look is not None or reading.fast_order:
        return source
    numbers = number_source(selected)
    offset = start % selected.num_records
    stream = training_elements(numbers, selected, reading, seed, start - offset).take(offset)
    was_read = np.zeros(selected.split.num_records, bool)
    for (read,) in stream.batch(COUNTED_AT_ONCE).as_numpy_iterator():
        was_read[read] = True
    ends = [*selected.split.starts[1:], selected.split.num_records]
    shards = zip(selected.split.starts, ends, strict=True)
    behind = [k for k, (begin, end) in enumerate(shards) if was_read[begin:end].all()]
    return source.unread(behind)


def ordered_elements(source: Source, selected: Selected, reading: Reading) -> tf.data.Dataset:
    """`ordered_records` before records are fetched: a dataset of elements of `source`."""
    # Nothing is learned here, so nothing needs shuffling.
    shards = tf.data.Dataset.range(len(selected.split.shards))
    elements = read_in_turn(source, shards, selected, reading, ordered=True)
    elements = choose(elements, source, selected)
    return elements.apply(tf.data.experimental.assert_cardinality(selected.num_records))


def shuffle_records(selected: Selected) -> int:
    """Records in the shuffle buffer: the whole pass, or as many as fit into its bytes."""
    split = selected.split
    mean_bytes = max(1, split.num_bytes // max(1, split.num_records))
    return max(1, min(selected.num_records, SHUFFLE_BUFFER_BYTES // mean_bytes))


def _fetched(elements: tf.data.Dataset, source: Source) -> tf.data.Dataset:
    fetch = source.fetch
    if fetch is None:
        return elements
    # In batches: a function called for each record costs more than all that is before it.
    batches = elements.batch(LOOK_RECORDS)
    return batches.map(lambda *element: (fetch(*element), element[-1])).unbatch()


def _epoch(
    source: Source, selected: Selected, reading: Reading, seed: int, epoch: Any
) -> tf.data.Dataset:
    # ShuffleDataset mixes the graph's seed into its own; set by whoever called
    # `keras.utils.set_random_seed`, it would make the order depend on more than
    # (seed, epoch), and a zero there breaks seeds that are tensors.
    tf.compat.v1.get_default_graph().seed = None
    shard_key, record_key = tf.unstack(
        tf.random.split(tf.stack([tf.constant(seed, tf.int64), epoch]), 2)
    )
    # First whole shards are permuted: free, and it reaches further than any buffer.
    numbers = tf.range(len(selected.split.shards), dtype=tf.int64)
    shards = tf.data.Dataset.from_tensor_slices(
        tf.random.experimental.stateless_shuffle(numbers, shard_key)
    )
    # Then a few are read in turn, which tears neighbours within a shard apart.
    elements = read_in_turn(source, shards, selected, reading, ordered=not reading.fast_order)
    # Before the shuffle, so that its buffer holds only what is read, and spreads copies.
    elements = choose(elements, source, selected)
    # Shuffled while they are still JPEG: the same memory holds some ten times the records.
    record_seed = tf.random.stateless_uniform([], record_key, 1, 2**31 - 1, tf.int64)
    elements = elements.shuffle(
        shuffle_records(selected), record_seed, reshuffle_each_iteration=False
    )
    return elements.apply(tf.data.experimental.assert_cardinality(selected.num_records))
