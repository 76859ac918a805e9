"""The order of the records: an endless stream to train on, or one pass to evaluate with.

The order of the stream is a pure function of (seed, epoch). It depends neither on the number
of threads or replicas, nor on TensorFlow's global seed, nor on where records are cached.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.dataset.shard_cache import cache_on_disk
from trainer.dataset.spec import ReadOptions, Subset
from trainer.reader.memory_cache import memory_source
from trainer.reader.sources import INSPECT_RECORDS, Source, file_source, interleave, number_source

SHUFFLE_BUFFER_BYTES = 64 * 1024 * 1024
_NUMBERS_PER_BATCH = 4096


def training_records(
    subset: Subset, read_options: ReadOptions, seed: int, start: int = 0
) -> tf.data.Dataset:
    """Passes 0, 1, 2, … one after the other without end.

    Args:
        subset: What is read; each pass has `num_records` records.
        read_options: How.
        seed: Of the order; at least 0, below 2**31.
        start: The position in the stream of the first record that is returned.

    Returns:
        A dataset of (serialized string, record number within the split, int64). A shard with
        more or fewer records than its count raises `tf.errors.FailedPreconditionError`, a
        damaged one `tf.errors.DataLossError`.
    """
    source = open_source(subset, read_options)
    return _fetch(training_elements(source, subset, read_options, seed, start), source)


def ordered_records(subset: Subset, read_options: ReadOptions) -> tf.data.Dataset:
    """One pass over the records of `subset` without copies, always in the same order.

    Returns:
        Like `training_records`, of known cardinality.
    """
    subset = without_copies(subset)
    source = open_source(subset, read_options)
    return _fetch(ordered_elements(source, subset), source)


def without_copies(subset: Subset) -> Subset:
    """The same records, each of them once."""
    if not subset.sampling or subset.class_counts is None:
        return subset
    return dataclasses.replace(subset, sampling=False, num_records=sum(subset.class_counts))


def open_source(subset: Subset, read_options: ReadOptions) -> Source:
    """The shards, or the cache that `read_options` asks for.

    Raises:
        UserError: There is no room for the cache.
    """
    subset = cache_on_disk(subset, read_options)
    if read_options.cache == "memory":
        return memory_source(subset, read_options)
    return file_source(subset)


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
        resumed = _without_finished_shards(source, subset, read_options, seed, start)
        stream = passes(resumed, epochs.take(1), offset).concatenate(
            passes(source, epochs.skip(1), 0)
        )
    return stream.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def ordered_elements(source: Source, subset: Subset) -> tf.data.Dataset:
    """`ordered_records` before records are fetched: a dataset of elements of `source`."""
    # Not shuffled: the order of an evaluation changes nothing.
    shards = tf.data.Dataset.range(len(subset.split.shards))
    elements = interleave(source, shards, subset, deterministic=True)
    elements = filter_and_resample(elements, source, subset)
    return elements.apply(tf.data.experimental.assert_cardinality(subset.num_records))


def shuffle_records(subset: Subset) -> int:
    """Records in the shuffle buffer: the whole pass, or as many as fit into its bytes."""
    split = subset.split
    mean_bytes = max(1, split.num_bytes // max(1, split.num_records))
    return max(1, min(subset.num_records, SHUFFLE_BUFFER_BYTES // mean_bytes))


def filter_and_resample(
    elements: tf.data.Dataset, source: Source, subset: Subset
) -> tf.data.Dataset:
    """Keeps the records that `subset` asks for, each as often as it asks for.

    With `subset.sampling` a record of class c comes floor(max/n_c) times and, if it is among
    the first max mod n_c of its class in this pass, once more: exactly max(n_c) of every class.

    A placeholder (an empty record in place of a broken one) has no class. It is left out, and
    placeholders at the end of the pass make up for what is missing because of it: a pass keeps
    its length.

    Args:
        elements: Elements of `source`, one pass.
        source: Says which class each of them has, and whether it passes the filters.
        subset: What is asked for.
    """
    inspect = source.inspect
    if inspect is None:
        return elements
    batches = elements.batch(INSPECT_RECORDS).map(lambda *e: (e, False))
    # An empty batch of its own marks the end of the pass.
    nothing = tuple(tf.zeros([0], value.dtype) for value in source.placeholder)
    batches = batches.concatenate(tf.data.Dataset.from_tensors((nothing, True)))
    inspected = batches.map(lambda e, last: (e, last, inspect(*e)))
    resampler = _Resampler(source, subset)
    kept = inspected.scan(resampler.start(), resampler.step)
    return kept.unbatch().take(subset.num_records)


class _Resampler:
    """A step of `tf.data.Dataset.scan`, and the state it begins with."""

    def __init__(self, source: Source, subset: Subset) -> None:
        self._placeholder = source.placeholder
        self._num_records = subset.num_records
        self._num_classes = len(subset.classes)
        self._sampling = subset.sampling
        self._copies, self._extra = [1] * self._num_classes, [0] * self._num_classes
        if subset.sampling and subset.class_counts:
            most = max(subset.class_counts)
            self._copies = [most // n for n in subset.class_counts]
            self._extra = [most % n for n in subset.class_counts]

    def start(self) -> Any:
        """(records emitted, placeholders seen, records of each class seen), all 0."""
        zero = tf.constant(0, tf.int64)
        return zero, zero, tf.zeros([self._num_classes], tf.int64)

    def step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        emitted, empty, seen = state
        elements, last, (classes, keep, present) = batch
        times, seen = self._times(classes, keep, seen)
        indices = tf.repeat(tf.range(tf.size(times)), times)
        emitted += tf.size(indices, tf.int64)
        empty += tf.math.count_nonzero(~present)
        missing = tf.minimum(self._num_records - emitted, empty * (max(self._copies) + 1))
        missing = tf.where(last, tf.maximum(missing, 0), 0)
        kept = tuple(
            tf.concat([tf.gather(values, indices), tf.repeat(one, missing)], 0)
            for values, one in zip(elements, self._placeholder, strict=True)
        )
        return (emitted, empty, seen), kept

    def _times(self, classes: Any, keep: Any, seen: Any) -> tuple[Any, Any]:
        """How often each record of a batch is read, and how many of each class were seen."""
        once = tf.cast(keep, tf.int64)
        if not self._sampling:
            return once, seen
        one_hot = tf.one_hot(tf.where(keep, classes, -1), self._num_classes, dtype=tf.int64)
        before = seen + tf.cumsum(one_hot, exclusive=True)
        is_extra = before < tf.constant(self._extra, tf.int64)
        times = one_hot * (tf.constant(self._copies, tf.int64) + tf.cast(is_extra, tf.int64))
        return tf.reduce_sum(times, 1), seen + tf.reduce_sum(one_hot, 0)


def _epoch(
    source: Source, subset: Subset, read_options: ReadOptions, seed: int, epoch: Any
) -> tf.data.Dataset:
    # ShuffleDataset mixes the graph's seed into its own. A seed that the caller set by
    # `keras.utils.set_random_seed` would make the order depend on more than (seed, epoch),
    # and breaks shuffle seeds that are tensors.
    tf.compat.v1.get_default_graph().seed = None
    shard_key, record_key = tf.unstack(
        tf.random.split(tf.stack([tf.constant(seed, tf.int64), epoch]), 2)
    )
    # First whole shards are permuted: it costs nothing, and reaches further than any buffer.
    numbers = tf.range(len(subset.split.shards), dtype=tf.int64)
    shards = tf.data.Dataset.from_tensor_slices(
        tf.random.experimental.stateless_shuffle(numbers, shard_key)
    )
    # Then a few of them are interleaved, which separates neighbours within a shard.
    elements = interleave(source, shards, subset, deterministic=not read_options.fast_order)
    # Before the shuffle, so that its buffer holds only what is read, and spreads copies.
    elements = filter_and_resample(elements, source, subset)
    # Shuffled while they are still JPEG: the same memory holds some ten times the records.
    record_seed = tf.random.stateless_uniform([], record_key, 1, 2**31 - 1, tf.int64)
    elements = elements.shuffle(
        shuffle_records(subset), record_seed, reshuffle_each_iteration=False
    )
    return elements.apply(tf.data.experimental.assert_cardinality(subset.num_records))


def _without_finished_shards(
    source: Source, subset: Subset, read_options: ReadOptions, seed: int, start: int
) -> Source:
    """`source` for the pass that is resumed: shards read in full before `start` stay closed.

    The order does not depend on what is in the records. So it is replayed with record numbers
    alone, which is far quicker than with their bytes, or with those of a bucket.
    """
    if source.skip_shards is None or source.inspect is not None or read_options.fast_order:
        return source
    numbers = number_source(subset)
    offset = start % subset.num_records
    stream = training_elements(numbers, subset, read_options, seed, start - offset).take(offset)
    was_read = np.zeros(subset.split.num_records, bool)
    for (read,) in stream.batch(_NUMBERS_PER_BATCH).as_numpy_iterator():
        was_read[read] = True
    ends = [*subset.split.starts[1:], subset.split.num_records]
    shards = zip(subset.split.starts, ends, strict=True)
    return source.skip_shards(
        [k for k, (begin, end) in enumerate(shards) if was_read[begin:end].all()]
    )


def _fetch(elements: tf.data.Dataset, source: Source) -> tf.data.Dataset:
    fetch = source.fetch
    if fetch is None:
        return elements
    # In batches: a function called for each record costs more than all stages before it.
    batches = elements.batch(INSPECT_RECORDS)
    return batches.map(lambda *element: (fetch(*element), element[-1])).unbatch()
