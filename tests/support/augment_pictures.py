"""Pictures and batches for the tests of augmentation."""

from typing import Any

import numpy as np

from trainer.dataset.spec import ImageSpec


def image_spec(size, *, varies=False, channels=3, formats=("JPEG",)) -> Any:
    levels = (0.5,) * channels, (0.25,) * channels
    return ImageSpec(size, varies, channels, *levels, formats=formats)


def smooth_picture(size: tuple[int, int], seed: int, channels: int = 3) -> np.ndarray:
    """A few slow waves per channel: resampling it in another way changes little. uint8."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0 : size[0], 0 : size[1]] / max(size)
    slopes = rng.uniform((1, 1, 0), (4, 4, 6), (channels, 3))
    waves = [127 + 60 * np.sin(down * y + across * x + begin) for down, across, begin in slopes]
    return np.stack(waves, axis=-1).round().astype(np.uint8)


def jpeg(pixels: np.ndarray, quality: int = 98) -> bytes:
    import tensorflow as tf

    return bytes(tf.io.encode_jpeg(pixels, quality=quality, chroma_downsampling=False).numpy())


def batch(pictures: Any, start: int = 0) -> dict[str, Any]:
    """As the reader gives it: positions from `start`, three classes in turn, all of weight 1."""
    import tensorflow as tf

    count = len(pictures)
    position = tf.range(start, start + count, dtype=tf.int64)
    numbers = {"label": position % 3, "position": position, "record": position}
    return {"inputs": {"image": tf.constant(pictures)}, "weight": tf.ones([count]), **numbers}
