"""The order of the records: an endless stream to train on, or one pass to evaluate with.

The order of the stream is a pure function of (seed, epoch) and of the data set as it was counted.
It depends neither on the number of threads or replicas, nor on TensorFlow's global seed, nor on
where records are cached, nor on which of them turned out to be broken.

An epoch is cut into sections of whole shards, each interleaved and shuffled for itself. While one
is read the next ones fill their shuffle buffers, so the stream pauses neither between sections nor
between epochs; and a resumed run goes straight to its section, whose records alone are skipped.

Data sets that are mixed by given shares each have such a stream, the one they would have alone;
whose turn it is at a position is a function of (seed, position).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import random_seed

from imageshards.text import counted
from trainer.dataset.spec import ReadOptions, Subset
from trainer.reader.mixing import CHUNK, Mixture
from trainer.reader.sources import (
    INSPECT_RECORDS,
    OPEN_SHARDS,
    Source,
    file_source,
    interleave,
    open_shards,
)

# Goes up whenever a stream of the same seed comes in another order. Runs are not resumed across
# versions: they would read some records twice and others never.
ORDER_VERSION = 2
SHUFFLE_BUFFER_BYTES = 64 * 1024 * 1024
# A section is this many shuffle buffers long: enough for buffers to do their work, few enough to
# skip in a moment.
SECTION_BUFFERS = 4
# A shuffle buffer that holds so much of a pass mixes it by itself; so many shards need none.
_SHUFFLED_SHARE = 0.25
_MIXING_SHARDS = 4 * OPEN_SHARDS
# The section that is read and those that TensorFlow opens ahead of it.
OPEN_SECTIONS = 3
# Records pass from section to batch in chunks: one by one, handing them on would cost more.
_CHUNK_RECORDS = 64


def training_records(
    subset: Subset, read_options: ReadOptions, seed: int, start: int = 0
) -> tf.data.Dataset:
    """Passes 0, 1, 2, … one after the other without end.

    Args:
        subset: What is read; each pass has `num_records` records. Of a mix each data set has
            passes of its own length, and `num_records` records of all are called a pass.
        read_options: How.
        seed: Of the order; at least 0, below 2**31.
        start: The position in the stream of the first record that is returned.

    Returns:
        A dataset of (serialized string, record number within the split, int64). A shard with
        more or fewer records than its count raises `tf.errors.FailedPreconditionError`, a
        damaged one `tf.errors.DataLossError`.
    """
    chunks = training_chunks(file_source(subset, read_options), subset, seed, start)
    endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    return chunks.unbatch().apply(endless)


def ordered_records(subset: Subset, read_options: ReadOptions) -> tf.data.Dataset:
    """One pass over the records of `subset` without copies, always in the same order.

    Returns:
        Like `training_records`, of known cardinality.
    """
    subset = without_copies(subset)
    source = file_source(subset, read_options)
    # Not shuffled: the order of an evaluation changes nothing.
    elements = interleave(source, tf.data.Dataset.range(len(subset.split.shards)), subset)
    elements = filter_and_resample(elements, source, subset)
    return elements.apply(tf.data.experimental.assert_cardinality(subset.num_records))


def without_copies(subset: Subset) -> Subset:
    """The same records, each of them once."""
    if not subset.sampling or subset.class_counts is None:
        return subset
    return dataclasses.replace(subset, sampling=False, num_records=sum(subset.class_counts))


def training_chunks(source: Source, subset: Subset, seed: int, start: int) -> tf.data.Dataset:
    """`training_records`, several at a time."""
    if subset.mix:
        return _mixed_chunks(source, subset, seed, start)
    first, skipped = _find_position(subset, seed, start)

    def chunks(number: Any) -> tf.data.Dataset:
        # Resumed here, on serialized records: nothing that is skipped is parsed or decoded.
        resumed = tf.where(tf.equal(number, first), tf.constant(skipped, tf.int64), 0)
        section = _section(source, subset, seed, number)
        return section.skip(resumed).batch(_CHUNK_RECORDS)

    # One section after the other. What is parallel is that the next ones are opened ahead, until
    # each has its first chunk: their buffers are full when their turn comes.
    return tf.data.Dataset.range(first, tf.int64.max).interleave(
        chunks, cycle_length=1, block_length=1, num_parallel_calls=1, deterministic=True
    )


def _mixed_chunks(source: Source, subset: Subset, seed: int, start: int) -> tf.data.Dataset:
    """`training_chunks` of several data sets: each is a stream of its own, as it would be alone."""
    mixture = Mixture([part.share for part in subset.mix], seed)
    streams, first_shard = [], 0
    for part, begin in zip(subset.mix, mixture.counts_before(start), strict=True):
        own = _from_shard(source, first_shard)
        chunks = training_chunks(own, part.subset, seed, begin)
        streams.append(chunks.unbatch())
        first_shard += len(part.subset.split.shards)
    chunk, skipped = divmod(start, CHUNK)
    turns = tf.data.Dataset.range(chunk, tf.int64.max).map(mixture.choices).unbatch().skip(skipped)
    mixed = tf.data.Dataset.choose_from_datasets(streams, turns, stop_on_empty_dataset=False)
    return mixed.batch(_CHUNK_RECORDS)


def _from_shard(source: Source, first: int) -> Source:
    """`source` with its shards numbered from `first`."""
    return dataclasses.replace(source, shard=lambda k: source.shard(k + first))


def shuffle_records(subset: Subset) -> int:
    """Records in a shuffle buffer: the whole pass, or as many as fit into its bytes.

    Counted by the split as the data set has it: repaired copies of shards have other sizes, and
    must not change the order.
    """
    split = subset.dataset.splits.get(subset.split.name, subset.split)
    mean_bytes = max(1, split.num_bytes // max(1, split.num_records))
    return max(1, min(subset.num_records, SHUFFLE_BUFFER_BYTES // mean_bytes))


def sections_per_pass(subset: Subset) -> int:
    """How many sections a pass has; 1 where sections could not be mixed, or counted ahead."""
    if not subset.is_whole or subset.dataset.shard_by == "class":
        return 1
    shards = len(subset.split.shards)
    section_records = SECTION_BUFFERS * shuffle_records(subset)
    shards_needed = -(-section_records * shards // subset.num_records)
    return max(1, shards // max(open_shards(subset), shards_needed))


def order_warning(subset: Subset) -> str | None:
    """What is said of shards so few and so large that epochs hardly differ in their order.

    Where all shards are open at once permuting them changes next to nothing, and records move by
    no more than the shuffle buffer. The rank correlation of an epoch with the one before, measured
    with 2 to 16 shards: 0.995 where the buffer holds 2 % of a pass, 0.9 at 10 %, 0.45 at 30 %.
    """
    for stream in [part.subset for part in subset.mix] or [subset]:
        shards, share = len(stream.split.shards), shuffle_records(stream) / stream.num_records
        if open_shards(stream) < shards or share >= _SHUFFLED_SHARE:
            continue
        dataset, split = stream.dataset, stream.split.name
        remedy = f"write its records in {_MIXING_SHARDS} shards or more"
        if not dataset.adopted:
            remedy = (
                f"re-shard it with imageshards build --input {dataset.data} --output NEW "
                f"--num_shards {split}={_MIXING_SHARDS}"
            )
        return (
            f"each epoch will have nearly the order of the one before: the split {split} of "
            f"{dataset.data} has {counted(shards, 'shard')}, and the shuffle buffer holds "
            f"{share:.0%} of its records; {remedy}."
        )
    return None


def filter_and_resample(
    elements: tf.data.Dataset, source: Source, subset: Subset
) -> tf.data.Dataset:
    """Keeps the records that `subset` asks for, each as often as it asks for.

    With `subset.sampling` a record of class c comes floor(max/n_c) times and, if it is among
    the first max mod n_c of its class in this pass, once more: exactly max(n_c) of every class.
    """
    if source.classes is None:
        return elements
    num_classes = len(subset.classes)
    copies, extra = [1] * num_classes, [0] * num_classes
    if subset.sampling and subset.class_counts:
        most = max(subset.class_counts)
        copies = [most // n for n in subset.class_counts]
        extra = [most % n for n in subset.class_counts]

    def step(seen: Any, serialized: Any, record: Any) -> tuple[Any, Any]:
        """Records of each class seen, and a batch → the same after it, and what is read of it."""
        classes = tf.gather(source.classes, record)
        times = tf.cast(classes >= 0, tf.int64)
        if subset.sampling:
            one_hot = tf.one_hot(classes, num_classes, dtype=tf.int64)
            before = seen + tf.cumsum(one_hot, exclusive=True)
            is_extra = before < tf.constant(extra, tf.int64)
            times = tf.reduce_sum(one_hot * (copies + tf.cast(is_extra, tf.int64)), 1)
            seen += tf.reduce_sum(one_hot, 0)
        indices = tf.repeat(tf.range(tf.size(times)), times)
        return seen, (tf.gather(serialized, indices), tf.gather(record, indices))

    batches = elements.batch(INSPECT_RECORDS)
    kept = batches.scan(tf.zeros([num_classes], tf.int64), lambda seen, batch: step(seen, *batch))
    return kept.unbatch()


def _find_position(subset: Subset, seed: int, start: int) -> tuple[int, int]:
    """The section, numbered over all passes, that holds the record at `start`, and its index."""
    epoch, offset = divmod(start, subset.num_records)
    sections = sections_per_pass(subset)
    shards, _ = _keys(seed, epoch)
    order = _permuted_shards(subset, shards).numpy()
    counts = np.array([shard.num_records for shard in subset.split.shards])[order]
    bounds = np.arange(sections + 1) * len(order) // sections
    # The lengths of shards say nothing about a resampled pass, so it is one section.
    starts = np.concatenate([[0], np.cumsum(counts)])[bounds[:-1]]
    section = int(np.searchsorted(starts, offset, side="right")) - 1
    return epoch * sections + section, offset - int(starts[section])


def _section(source: Source, subset: Subset, seed: int, number: Any) -> tf.data.Dataset:
    sections = sections_per_pass(subset)
    epoch, section = number // sections, number % sections
    shard_key, record_key = _keys(seed, epoch)
    # First whole shards are permuted: it costs nothing, and reaches further than any buffer.
    permuted = _permuted_shards(subset, shard_key)
    begin, end = (n * len(subset.split.shards) // sections for n in (section, section + 1))
    shards = tf.data.Dataset.from_tensor_slices(permuted[begin:end])
    # Then a few of them are interleaved, which separates neighbours within a shard.
    elements = interleave(source, shards, subset)
    # Before the shuffle, so that its buffer holds only what is read, and spreads copies.
    elements = filter_and_resample(elements, source, subset)
    if sections == 1:
        elements = elements.apply(tf.data.experimental.assert_cardinality(subset.num_records))
    # Shuffled while they are still JPEG: the same memory holds some ten times the records.
    section_key = tf.random.fold_in(record_key, section)
    record_seed = tf.random.stateless_uniform([], section_key, 1, 2**31 - 1, tf.int64)
    return _shuffled(elements, shuffle_records(subset), record_seed)


def _shuffled(elements: tf.data.Dataset, buffer_records: int, seed: Any) -> tf.data.Dataset:
    """`elements.shuffle(buffer_records, seed, reshuffle_each_iteration=False)`, in that order.

    TensorFlow 2 gives that one a DummySeedGenerator, which it does not use and which keeps
    `tf.train.Checkpoint` from saving an iterator; the op of TensorFlow 1 has none. Nor does a seed
    that the caller set by `keras.utils.set_random_seed` come into it.
    """
    spec = elements.element_spec
    variant = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(elements),
        buffer_size=buffer_records,
        # What TensorFlow puts before the seed of an op where no other seed is set.
        seed=random_seed.DEFAULT_GRAPH_SEED,
        seed2=seed,
        output_types=tf.nest.map_structure(lambda one: one.dtype, tf.nest.flatten(spec)),
        output_shapes=tf.nest.map_structure(lambda one: one.shape, tf.nest.flatten(spec)),
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(variant, spec)


def _keys(seed: int, epoch: Any) -> tuple[Any, Any]:
    """What the order of the shards and that of the records in an epoch depend on."""
    key = tf.stack([tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64)])
    shard_key, record_key = tf.unstack(tf.random.split(key, 2))
    return shard_key, record_key


def _permuted_shards(subset: Subset, key: Any) -> Any:
    numbers = tf.range(len(subset.split.shards), dtype=tf.int64)
    return tf.random.experimental.stateless_shuffle(numbers, key)
