"""Readers that are compared: each is a function, seconds → images read in that time.

All yield shuffled batches of 64 pictures of 224 px, cropped at random and flipped, except
where it says otherwise; all are endless.
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
_SHUFFLED = 1000
_IMAGE, _LABEL = "image/encoded", "image/class/label"
_AREA, _ASPECT = (0.5, 1.0), (3 / 4, 4 / 3)


@dataclasses.dataclass(frozen=True)
class Job:
    """What is read.

    Attributes:
        data: Folder of a data set that the builder wrote, with a split `train`.
        raw: Folder with a folder of the same photos for each class.
    """

    data: str
    raw: str


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def batches(stream: Any) -> Read:
    """Reads an endless dataset of batches, whatever else they hold."""
    import tensorflow as tf

    iterator = iter(stream)

    def read(seconds: float) -> int:
        end, images = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            images += tf.nest.flatten(next(iterator))[0].shape[0]
        return images

    return read


def trainer(job: Job, augment_on: str = "host") -> Read:
    """The trainer's reader; for the device pictures stay as large as they are."""
    from trainer.dataset.spec import ReadOptions
    from trainer.reader import pipeline

    subset, inputs, augmentation = opened(job, augment_on)
    shipped = dataclasses.replace(inputs, size=augmentation.reader_size)
    stream = pipeline.training_batches(
        subset,
        ReadOptions(cores()),
        1,
        BATCH,
        shipped,
        augmentation.pictures,
        finish=augmentation.finish,
    )
    return batches(stream)


def opened(job: Job, augment_on: str) -> tuple[Any, Any, Any]:
    """The split `train` as selected, the model's inputs, and light augmentation."""
    from trainer.augment.augmentation import make_augmentation
    from trainer.config import ReadConfig
    from trainer.dataset.open import open_dataset, select
    from trainer.dataset.spec import ModelInputs

    config = ReadConfig(job.data)
    dataset = open_dataset(config)
    subset = select(config, dataset, dataset.splits["train"])
    augmentation = make_augmentation(
        "light",
        augment_on,
        image=dataset.image,
        size=SIZE,
        seed=1,
        num_classes=len(dataset.classes),
    )
    return subset, ModelInputs(SIZE, dataset.image), augmentation


def keras_raw(job: Job) -> Read:
    """`keras.utils.image_dataset_from_directory`, without any augmentation."""
    import keras

    stream = keras.utils.image_dataset_from_directory(
        job.raw, image_size=SIZE, batch_size=BATCH, seed=1, verbose=False
    )
    return batches(stream.repeat())


def tfds_skip_decoding(job: Job) -> Read:
    """TFDS reads; only what is seen is decoded: what a careful user of it writes."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def crop(record: Any) -> tuple[Any, Any]:
        part = tf.io.decode_and_crop_jpeg(record[_IMAGE], _window(), channels=3)
        return _resized(part), record[_LABEL]

    return batches(_tfds(job, {_IMAGE: tfds.decode.SkipDecoding()}, crop))


def tfds_default(job: Job) -> Read:
    """TFDS reads and decodes; pictures are shuffled, then cropped."""
    import tensorflow as tf

    def crop(record: Any) -> tuple[Any, Any]:
        part = tf.image.crop_to_bounding_box(record[_IMAGE], *tf.unstack(_window()))
        return _resized(part), record[_LABEL]

    return batches(_tfds(job, None, crop))


def _tfds(job: Job, decoders: Any, crop: Callable[[Any], Any]) -> Any:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(job.data)
    stream = builder.as_dataset(split="train", shuffle_files=True, decoders=decoders)
    stream = stream.repeat().shuffle(_SHUFFLED).map(crop, num_parallel_calls=tf.data.AUTOTUNE)
    return stream.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _window() -> Any:
    """top, left, height, width in pixels of a random crop, by the one operation there is."""
    import tensorflow as tf

    start, size, _ = tf.image.sample_distorted_bounding_box(
        (256, 256, 3),
        tf.zeros((1, 0, 4)),
        area_range=_AREA,
        aspect_ratio_range=_ASPECT,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([start[:2], size[:2]], 0)


def _resized(part: Any) -> Any:
    import tensorflow as tf

    picture = tf.cast(tf.image.resize(part, SIZE) + 0.5, tf.uint8)
    return tf.image.random_flip_left_right(picture)
