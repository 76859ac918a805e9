"""The reader: shards → an endless stream to train on, or one exact pass to evaluate with.

The order of the training stream is a pure function of (seed, epoch). It depends neither on
the number of threads nor on TensorFlow's global seed.
"""

from __future__ import annotations

import os

import tensorflow as tf

from trainer.decode import batch_decoder
from trainer.manifest import Manifest, Split

# Shards read at once: enough to mix neighbours, few enough to keep reads long.
OPEN_SHARDS = 16
# Where a shard holds one class, only as many open shards as there are classes mix them.
OPEN_CLASS_SHARDS = 256
SHUFFLE_BUFFER_BYTES = 64 * 1024 * 1024
PREFETCH_BATCHES = 4


def cpu_count() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def epoch_records(manifest: Manifest, split: Split, seed: int, epoch: tf.Tensor) -> tf.data.Dataset:
    """One pass: every serialized record of `split` once, in the order of (seed, epoch).

    Args:
        manifest: The data set.
        split: One of its splits.
        seed: At least 0, below 2**31.
        epoch: int64 scalar, counted from 0.

    Returns:
        A dataset of string scalars whose cardinality is the manifest's count; one record
        more or less on disk raises `tf.errors.FailedPreconditionError`.
    """
    # ShuffleDataset mixes the graph's seed into its own; set by whoever called
    # `keras.utils.set_random_seed`, it would make the order depend on more than
    # (seed, epoch), and a zero there breaks seeds that are tensors.
    tf.compat.v1.get_default_graph().seed = None
    shard_key, record_key = tf.unstack(
        tf.random.split(tf.stack([tf.constant(seed, tf.int64), epoch]), 2)
    )
    # First whole shards are permuted: free, and it reaches further than any buffer.
    shards = tf.data.Dataset.from_tensor_slices(
        tf.random.experimental.stateless_shuffle(_paths(split), shard_key)
    )
    records = _read(manifest, shards, len(_paths(split)))
    # Shuffled while they are still JPEG: the same memory holds some ten times the records.
    buffer_records = _shuffle_records(split)
    record_seed = tf.random.stateless_uniform([], record_key, 1, 2**31 - 1, tf.int64)
    records = records.shuffle(buffer_records, record_seed, reshuffle_each_iteration=False)
    return records.apply(tf.data.experimental.assert_cardinality(split.num_records))


def training_records(manifest: Manifest, split: Split, seed: int) -> tf.data.Dataset:
    """The passes 0, 1, 2, … one after the other without end, as string scalars."""
    epochs = tf.data.Dataset.range(tf.int64.max)
    stream = epochs.flat_map(lambda epoch: epoch_records(manifest, split, seed, epoch))
    return stream.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def training_batches(
    manifest: Manifest,
    split: Split,
    seed: int,
    batch_size: int,
    size: tuple[int, int],
    threads: int | None = None,
) -> tf.data.Dataset:
    """Endless batches for `fit`, to be used with `steps_per_epoch`.

    Batches are cut from the concatenated passes: records left over at the end of one pass
    open the first batch of the next, so none is dropped.

    Args:
        manifest: The data set.
        split: The split to train on.
        seed: Of the order.
        batch_size: Global batch.
        size: (height, width) of the pictures in pixels.
        threads: Of the reader's own pool; None for one per core.

    Returns:
        Batches (uint8 [batch_size, *size, channels], int64 [batch_size]).
    """
    threads = threads or cpu_count()
    records = training_records(manifest, split, seed)
    # Batched before parsing: one parse_example call per batch costs a third of one per
    # record. On an endless stream drop_remainder drops nothing and fixes the shape.
    batches = records.batch(batch_size, drop_remainder=True)
    # Decoding is where the time goes, so it runs on all threads, in order. Pictures stay
    # uint8: a quarter of the bytes to copy; scaling is the model's first layer.
    batches = batches.map(
        batch_decoder(manifest.image, size), num_parallel_calls=threads, deterministic=True
    )
    return _finish(batches, threads)


def evaluation_batches(
    manifest: Manifest,
    split: Split,
    batch_size: int,
    size: tuple[int, int],
    threads: int | None = None,
) -> tf.data.Dataset:
    """One pass over `split` in full batches, each record once.

    The last batch is filled up with black pictures of weight 0, so that it divides over
    any number of replicas and weighted metrics still count every example exactly once.

    Args:
        manifest: The data set.
        split: The split to evaluate on.
        batch_size: Global batch.
        size: (height, width) of the pictures in pixels.
        threads: Of the reader's own pool; None for one per core.

    Returns:
        Batches (uint8 [batch_size, *size, channels], int64 [batch_size], float32
        [batch_size]: 1 for a record, 0 for filling). The cardinality is known.
    """
    threads = threads or cpu_count()
    decode = batch_decoder(manifest.image, size)

    def decode_and_fill(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        images, labels = decode(serialized)
        missing = batch_size - tf.shape(serialized)[0]
        images = tf.pad(images, [[0, missing], [0, 0], [0, 0], [0, 0]])
        labels = tf.pad(labels, [[0, missing]])
        valid = tf.cast(tf.range(batch_size) < tf.shape(serialized)[0], tf.float32)
        shape = (batch_size, *size, manifest.image.channels)
        return tf.ensure_shape(images, shape), tf.ensure_shape(labels, [batch_size]), valid

    # In the manifest's order: nothing is learned here, so nothing needs shuffling.
    shards = tf.data.Dataset.from_tensor_slices(_paths(split))
    records = _read(manifest, shards, len(_paths(split)))
    records = records.apply(tf.data.experimental.assert_cardinality(split.num_records))
    batches = records.batch(batch_size)
    batches = batches.map(decode_and_fill, num_parallel_calls=threads, deterministic=True)
    return _finish(batches, threads)


def _paths(split: Split) -> list[str]:
    return [shard.path for shard in split.shards]


def _shuffle_records(split: Split) -> int:
    mean_bytes = max(1, split.num_bytes // max(1, split.num_records))
    return max(1, min(split.num_records, SHUFFLE_BUFFER_BYTES // mean_bytes))


def _read(manifest: Manifest, shards: tf.data.Dataset, num_shards: int) -> tf.data.Dataset:
    """Paths → serialized records, one of each open shard in turn, in a fixed order."""
    open_shards = OPEN_CLASS_SHARDS if manifest.shard_by == "class" else OPEN_SHARDS
    return shards.interleave(
        lambda path: tf.data.TFRecordDataset(path, compression_type=manifest.compression_type),
        cycle_length=min(open_shards, num_shards),
        block_length=1,
        # Fixed: autotuning wobbles on few cores. Deterministic: threads only read ahead.
        num_parallel_calls=min(OPEN_SHARDS, num_shards),
        deterministic=True,
    )


def _finish(batches: tf.data.Dataset, threads: int) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    # A pool of its own keeps decoding from queueing behind the model's operations.
    options.threading.private_threadpool_size = threads
    # One machine reads for all its replicas: there is nothing to shard.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # A fixed number of batches ahead: bounded memory, whatever the autotuner would like.
    return batches.prefetch(PREFETCH_BATCHES).with_options(options)
