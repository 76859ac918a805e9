"""Defines the limits for readers: decoding alone, from memory, on all cores."""

from __future__ import annotations

import concurrent.futures
import itertools
import time
from typing import Any

from benchmarks.reader_kinds import (
    AHEAD,
    BATCH,
    IMAGE,
    SIZE,
    STORED,
    Job,
    Read,
    batches,
    cores,
    fixed_threads,
)

# Number of JPEGs in memory, about 80 MB.
IN_MEMORY = 4096


def crops(job: Job) -> Read:
    """Returns the trainer's crops and flips in tf.data; each core works on one batch at a time."""
    import tensorflow as tf

    from trainer.augment.geometry import crop_windows
    from trainer.augment.params import draw_params
    from trainer.strengths import LIGHT

    def make_all(*work: Any) -> Any:
        signature = tf.TensorSpec((*SIZE, 3), tf.uint8)
        return tf.map_fn(lambda one: crop_flip(*one), work, fn_output_signature=signature)

    jpegs = _jpegs(job)
    params = draw_params(LIGHT, 1, tf.range(len(jpegs), dtype=tf.int64))
    window = crop_windows(LIGHT, params, float(STORED), float(STORED), SIZE)
    work = jpegs, tf.cast(tf.stack(window, 1), tf.int32), params["flip"]
    stream = tf.data.Dataset.from_tensor_slices(work).repeat().batch(BATCH, drop_remainder=True)
    stream = stream.map(make_all, num_parallel_calls=cores()).prefetch(AHEAD)
    return batches(stream.with_options(fixed_threads()))


def turbo(job: Job) -> Read:
    """Returns a decoder of whole images: libjpeg-turbo, exact settings, one thread per core."""
    jpegs = _jpegs(job)
    pool = concurrent.futures.ThreadPoolExecutor(cores())
    shares = [jpegs[i :: cores()] for i in range(cores())]
    return lambda seconds: sum(pool.map(lambda share: _decode(share, seconds), shares))


def crop_flip(encoded: Any, window: Any, flip: Any) -> Any:
    """Crops, resizes and flips one image (uint8) with as few operations as possible."""
    import tensorflow as tf

    part = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
    # `resize` is faster on floats, even with the cost of the conversion.
    resized = tf.image.resize(tf.cast(part, tf.float32), SIZE)
    picture = tf.cast(resized + 0.5, tf.uint8)
    return tf.cond(flip, lambda: tf.reverse(picture, [1]), lambda: picture)


def _jpegs(job: Job) -> list[bytes]:
    """Reads JPEGs from all shards of the dataset."""
    import tensorflow as tf

    files = tf.data.Dataset.list_files(f"{job.data}/train-*.tfrecord", shuffle=False)
    records = files.interleave(tf.data.TFRecordDataset).take(IN_MEMORY).as_numpy_iterator()
    examples = (tf.train.Example.FromString(record) for record in records)
    return [one.features.feature[IMAGE].bytes_list.value[0] for one in examples]


def _decode(jpegs: list[bytes], seconds: float) -> int:
    import simplejpeg

    end = time.perf_counter() + seconds
    for done, jpeg in enumerate(itertools.cycle(jpegs)):
        if time.perf_counter() >= end:
            return done
        simplejpeg.decode_jpeg(jpeg, fastdct=False, fastupsample=False)
    return 0
