"""Defines the readers to compare.

A reader is a function from a number of seconds to the number of images that it reads in this time.
All readers are endless. Unless their docstrings say otherwise, readers yield shuffled batches of 64
images of 224 px with random crops and flips.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

Read = Callable[[float], int]

BATCH = 64
SIZE = (224, 224)
STORED = 256
IMAGE, _LABEL = "image/encoded", "image/class/label"
SLOW_READ_SEC = 0.003
AHEAD = 4  # batches
_SHUFFLED = 1000
_AREA, _ASPECT = (0.5, 1.0), (3 / 4, 4 / 3)


@dataclasses.dataclass(frozen=True)
class Job:
    """Inputs of a reader.

    Attributes:
        data: Folder of a dataset from the builder, with a split `train`.
        raw: Folder of the same photos, with one folder per class.
    """

    data: str
    raw: str


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def batches(stream: Any) -> Read:
    """Returns a reader of an endless dataset; the first component of a batch must be images."""
    import tensorflow as tf

    iterator = iter(stream)

    def read(seconds: float) -> int:
        end, images = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            images += tf.nest.flatten(next(iterator))[0].shape[0]
        return images

    return read


def trainer(job: Job, augment_on: str = "host", cache: str = "none") -> Read:
    """Returns the trainer's reader.

    With augmentation on the device, images keep their stored size.
    """
    import imageshards as ims

    train = ims.open(job.data).train(
        batch_size=BATCH, image_size=SIZE[0], augment_on=augment_on, cache=cache,
        cache_folder=None if cache == "none" else pixel_folder(job.data),
    )  # fmt: skip
    return batches(train.batches())


def records(job: Job) -> Read:
    """Returns the trainer's reader of serialized records, which are neither parsed nor decoded."""
    import imageshards as ims
    from imageshards.images.encode import tune_allocator
    from trainer.reader.pieces import PieceReader
    from trainer.reader.read_ahead import HeldPieces
    from trainer.reader.records import record_batches

    tune_allocator()
    train = ims.open(job.data).train(batch_size=BATCH, image_size=SIZE[0])
    pieces = HeldPieces(train.subset.pieces, PieceReader(train.subset).read)
    stream = record_batches(train.order, pieces, BATCH).map(lambda _, *records: records)
    return batches(stream.with_options(fixed_threads()).prefetch(AHEAD))


def fixed_threads() -> Any:
    """Returns options of a dataset on as many threads as cores, as the trainer's reader sets."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = cores()
    return options


def slow_disk(job: Job) -> Read:
    """Returns the trainer's reader for a local folder with `SLOW_READ_SEC` per read."""
    from imageshards import storage

    original = storage.read_range

    def read_range(path: str, start: int, end: int, version: str = "") -> bytes:
        time.sleep(SLOW_READ_SEC)
        return original(path, start, end, version)

    storage.read_range = read_range
    return trainer(job)


def deterministic(job: Job) -> Read:
    """Returns the trainer's reader with deterministic operations, as with `--deterministic`."""
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    return trainer(job)


def pixel_folder(data: str) -> str:
    """Returns the folder for the decoded images of a dataset."""
    return f"{data}-cache"


def keras_crops(job: Job, cached: bool) -> Read:
    """Returns a reader of `image_dataset_from_directory` with crops, with or without a cache."""
    import keras
    import tensorflow as tf

    def crop(picture: Any, label: Any) -> tuple[Any, Any]:
        start, size, _ = tf.image.sample_distorted_bounding_box(
            (STORED, STORED, 3), tf.zeros((1, 0, 4)), area_range=_AREA,
            aspect_ratio_range=_ASPECT, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        part = tf.cast(tf.ensure_shape(tf.slice(picture, start, size), (None, None, 3)), tf.float32)
        resized = tf.cast(tf.image.resize(part, SIZE) + 0.5, tf.uint8)
        return tf.image.random_flip_left_right(resized), label

    stream = keras.utils.image_dataset_from_directory(
        job.raw, image_size=(STORED, STORED), batch_size=None, seed=1, verbose=False
    )
    stream = stream.map(lambda picture, label: (tf.cast(picture, tf.uint8), label))
    if cached:
        stream = stream.cache()
        # The first epoch fills the cache and must not count.
        for _ in stream:
            pass
    stream = stream.repeat().shuffle(_SHUFFLED).map(crop, num_parallel_calls=tf.data.AUTOTUNE)
    return batches(stream.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE))


def keras_raw(job: Job) -> Read:
    """Returns a reader with `image_dataset_from_directory` and without augmentation."""
    import keras

    stream = keras.utils.image_dataset_from_directory(
        job.raw, image_size=SIZE, batch_size=BATCH, seed=1, verbose=False
    )
    return batches(stream.repeat())


def tfds(job: Job) -> Read:
    """Returns a reader with TFDS that decodes only the crops, as a careful user would write it."""
    import tensorflow as tf
    import tensorflow_datasets

    def crop(record: Any) -> tuple[Any, Any]:
        start, size, _ = tf.image.sample_distorted_bounding_box(
            (STORED, STORED, 3), tf.zeros((1, 0, 4)), area_range=_AREA,
            aspect_ratio_range=_ASPECT, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        window = tf.concat([start[:2], size[:2]], 0)  # top, left, height, width in pixels
        part = tf.io.decode_and_crop_jpeg(record[IMAGE], window, channels=3)
        picture = tf.cast(tf.image.resize(part, SIZE) + 0.5, tf.uint8)
        return tf.image.random_flip_left_right(picture), record[_LABEL]

    builder = tensorflow_datasets.builder_from_directory(job.data)
    decoders = {IMAGE: tensorflow_datasets.decode.SkipDecoding()}
    stream = builder.as_dataset(split="train", shuffle_files=True, decoders=decoders)
    stream = stream.repeat().shuffle(_SHUFFLED).map(crop, num_parallel_calls=tf.data.AUTOTUNE)
    return batches(stream.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE))
