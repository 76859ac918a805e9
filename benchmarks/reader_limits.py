"""The limits no reader can pass: decoding alone, of bytes that are in memory, on all cores."""

from __future__ import annotations

import concurrent.futures
import itertools
import time
from typing import Any

from benchmarks.reader_kinds import BATCH, SIZE, Job, Read, batches, cores, opened

# Pictures kept in memory, 80 MB.
IN_MEMORY = 4096
_CALLS_AHEAD = 4


def crops(job: Job) -> Read:
    """The trainer's crops, decoded and resized by tf.data: each core makes a batch at a time."""
    import tensorflow as tf

    def make_all(*work: Any) -> Any:
        signature = tf.TensorSpec((*SIZE, 3), tf.uint8)
        return tf.map_fn(lambda one: crop_resize(*one), work, fn_output_signature=signature)

    stream = _cropped(job).batch(BATCH, drop_remainder=True)
    return batches(_on_all_cores(stream.map(make_all, num_parallel_calls=cores())))


def turbo(job: Job) -> Read:
    """libjpeg-turbo, exact settings, whole pictures: a thread for each core."""
    jpegs = _jpegs(job)
    pool = concurrent.futures.ThreadPoolExecutor(cores())
    shares = [jpegs[i :: cores()] for i in range(cores())]
    return lambda seconds: sum(pool.map(lambda share: _decode(share, seconds), shares))


def crop_resize(encoded: Any, window: Any) -> Any:
    """One picture, uint8, with no more operations than it takes."""
    import tensorflow as tf

    part = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
    # Faster on floats, by more than it costs to make them.
    resized = tf.image.resize(tf.cast(part, tf.float32), SIZE)
    return tf.cast(resized + 0.5, tf.uint8)


def _cropped(job: Job) -> Any:
    """JPEGs and windows such as the trainer draws, over and over."""
    import tensorflow as tf

    from trainer.augment.geometry import crop_windows
    from trainer.augment.params import LIGHT, draw_params

    subset, _, _ = opened(job, "host")
    jpegs = _jpegs(job)
    params = draw_params("light", 1, tf.range(len(jpegs), dtype=tf.int64))
    height_px, width_px = subset.dataset.image.size
    window = crop_windows(LIGHT, params, float(height_px), float(width_px), SIZE)
    work = jpegs, tf.cast(tf.stack(window, 1), tf.int32)
    return tf.data.Dataset.from_tensor_slices(work).repeat()


def _on_all_cores(stream: Any) -> Any:
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = cores()
    return stream.prefetch(_CALLS_AHEAD).with_options(options)


def _jpegs(job: Job) -> list[bytes]:
    """The first pictures of the data set."""
    from imageshards.example import decode_example
    from imageshards.tfrecord import read_records
    from trainer.config import ReadConfig
    from trainer.dataset.open import open_dataset

    dataset = open_dataset(ReadConfig(job.data))
    name = dataset.image_feature
    payloads = (
        record.payload
        for shard in dataset.splits["train"].shards
        for record in read_records(shard.path)
    )
    examples = (decode_example(payload, [name]) for payload in payloads)
    return [
        value
        for example in itertools.islice(examples, IN_MEMORY)
        for value in example[name]
        if isinstance(value, bytes)
    ]


def _decode(jpegs: list[bytes], seconds: float) -> int:
    import simplejpeg

    end = time.perf_counter() + seconds
    for done, jpeg in enumerate(itertools.cycle(jpegs)):
        if time.perf_counter() >= end:
            return done
        simplejpeg.decode_jpeg(jpeg, fastdct=False, fastupsample=False)
    return 0
