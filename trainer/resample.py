"""Pillow's resampling inside a TensorFlow graph, to the pixel.

`tf.image.resize` has other filters, keeps no intermediate 8 bits and knows no box in fractions
of a pixel. Here the filter's weights are the rows of two small matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def _box(x: Any) -> Any:
    return tf.where((x > -0.5) & (x <= 0.5), tf.ones_like(x), tf.zeros_like(x))


def _bilinear(x: Any) -> Any:
    return tf.maximum(1 - tf.abs(x), 0)


def _hamming(x: Any) -> Any:
    window = 0.54 + 0.46 * tf.cos(math.pi * x)
    return tf.where(tf.abs(x) < 1, _sinc(x) * window, tf.zeros_like(x))


def _bicubic(x: Any) -> Any:
    # Keys's cubic convolution with a = -0.5.
    x = tf.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return tf.where(x < 1, near, tf.where(x < 2, far, tf.zeros_like(x)))


def _lanczos(x: Any) -> Any:
    return tf.where((x >= -3) & (x < 3), _sinc(x) * _sinc(x / 3), tf.zeros_like(x))


def _sinc(x: Any) -> Any:
    scaled = tf.where(tf.equal(x, 0), tf.ones_like(x), math.pi * x)
    return tf.where(tf.equal(x, 0), tf.ones_like(x), tf.sin(scaled) / scaled)


# Name → (the filter, where it ends); as in Pillow's Resample.c.
_FILTERS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "box": (_box, 0.5),
    "bilinear": (_bilinear, 1.0),
    "hamming": (_hamming, 1.0),
    "bicubic": (_bicubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}

_ONE = 2.0**22

FILTERS = ("nearest", *_FILTERS)


def resize(picture: Any, size: tuple[Any, Any], box: tuple[Any, ...], name: str) -> Any:
    """A part of a picture at another size, as Pillow's `Image.resize(size, name, box)` makes it.

    Rows first, then columns, rounded to 8 bits in between.

    Args:
        picture: uint8 [height, width, channels], the channels known.
        size: (height, width) in pixels, int32 scalars.
        box: `left, top, right, bottom` in pixels of `picture`, float64 scalars; may be
            fractions, and must lie inside.
        name: One of `FILTERS`.

    Returns:
        uint8 [*size, channels]; the very picture, where box and size are its own.
    """
    height, width = (tf.cast(side, tf.float64) for side in tf.unstack(tf.shape(picture)[:2]))
    left, top, right, bottom = box
    whole = (left == 0) & (top == 0) & (right == width) & (bottom == height)
    same = whole & tf.reduce_all(tf.equal(tf.shape(picture)[:2], size))
    return tf.cond(same, lambda: picture, lambda: _resampled(picture, size, box, name))


def _resampled(picture: Any, size: tuple[Any, Any], box: tuple[Any, ...], name: str) -> Any:
    channels = picture.shape[-1]
    height, width = tf.unstack(tf.shape(picture)[:2])
    (first_x, last_x), across = _weights(width, size[1], box[0], box[2], name)
    (first_y, last_y), down = _weights(height, size[0], box[1], box[3], name)
    # Channels first, so that each direction is one multiplication of matrices. In 64 bits the
    # sums are exact, whatever their order.
    planes = tf.transpose(picture[first_y:last_y, first_x:last_x], (2, 0, 1))
    planes = tf.cast(tf.reshape(planes, (-1, last_x - first_x)), tf.float64)
    rows = _eight_bits(tf.matmul(planes, across, transpose_b=True))
    rows = tf.reshape(rows, (channels, last_y - first_y, size[1]))
    planes = _eight_bits(tf.matmul(down, rows))
    return tf.cast(tf.transpose(planes, (1, 2, 0)), tf.uint8)


def _weights(num_in: Any, num_out: Any, low: Any, high: Any, name: str) -> tuple[Any, Any]:
    """What each source pixel adds to each result.

    Returns:
        (first, last) of the pixels that add anything, and float64 [num_out, last - first],
        whose rows sum to 1.
    """
    # Pillow takes the box as 32-bit floats, and the weights as multiples of 2^-22.
    low, high = tf.cast(low, tf.float32), tf.cast(high, tf.float32)
    scale = tf.cast(high - low, tf.float64) / tf.cast(num_out, tf.float64)
    low, high = tf.cast(low, tf.float64), tf.cast(high, tf.float64)
    function, support = _FILTERS.get(name, (None, 1.0))
    reach = support * tf.maximum(scale, 1)
    first = tf.maximum(tf.cast(low - reach, tf.int32), 0)
    last = tf.minimum(tf.cast(high + reach, tf.int32) + 1, num_in)
    pixel = tf.cast(tf.range(first, last), tf.float64)[None, :]
    centre = low + (tf.range(tf.cast(num_out, tf.float64), dtype=tf.float64)[:, None] + 0.5) * scale
    if function is None:
        # Pillow adds step to step, and where a centre falls between two pixels that tells.
        steps = tf.concat([[low + scale * 0.5], tf.fill([num_out - 1], scale)], 0)
        nearest = tf.floor(tf.cumsum(steps))[:, None]
        return (first, last), tf.cast(tf.equal(pixel, nearest), tf.float64)
    left, right = tf.maximum(centre - reach + 0.5, 0), centre + reach + 0.5
    weights = function((pixel - centre + 0.5) / tf.maximum(scale, 1))
    counts = (pixel >= tf.floor(left)) & (pixel < tf.floor(right))
    weights = tf.where(counts, weights, tf.zeros_like(weights))
    weights /= tf.reduce_sum(weights, 1, keepdims=True)
    return (first, last), tf.round(weights * _ONE) / _ONE


def _eight_bits(values: Any) -> Any:
    # Halves up, as Pillow has it; tf.round would take them to the even neighbour.
    return tf.clip_by_value(tf.floor(values + 0.5), 0, 255)
