"""Resizing inside a TensorFlow graph, as the builder does it with Pillow.

`resize_geometry` says which part of a picture goes where, by the `image` object of a data set's
manifest; `resize` does it to the pixel. `tf.image.resize` has other filters, keeps no
intermediate 8 bits and knows no box in fractions of a pixel. Here the filter's weights are the
rows of two small matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf


class ResizeGeometry(NamedTuple):
    """How an upright picture becomes the picture of a record, in pixels.

    Attributes:
        crop: `left, top, right, bottom` of the part that is kept, around the middle; float64.
        content: (height, width) it is resized to; int32.
        canvas: (height, width) of the result; int32.
        offset: (top, left) of the content on the canvas; int32.
    """

    crop: tuple[Any, Any, Any, Any]
    content: tuple[Any, Any]
    canvas: tuple[Any, Any]
    offset: tuple[Any, Any]

    @property
    def shrink(self) -> Any:
        """Source pixels per pixel, along the axis that shrinks less; float64."""
        left, top, right, bottom = self.crop
        height, width = (tf.cast(side, tf.float64) for side in self.content)
        return tf.minimum((right - left) / width, (bottom - top) / height)


def resize_geometry(height: Any, width: Any, options: Mapping[str, Any]) -> ResizeGeometry:
    """How an upright picture is resized.

    Args:
        height, width: Of the picture, int32 scalars.
        options: `mode`, `size`, `only_shrink` of the manifest's `image` object.
    """
    tall, wide = tf.cast(height, tf.float64), tf.cast(width, tf.float64)
    mode, only_shrink = str(options.get("mode", "none")), bool(options.get("only_shrink"))
    if mode == "none":
        return _whole(tall, wide, (height, width))
    if mode == "shortest":
        return _whole(tall, wide, _shortest(tall, wide, _sides(options)[0], only_shrink))
    target = _sides(options)
    if mode == "crop":
        return _crop(tall, wide, target, only_shrink)
    if mode == "pad":
        return _pad(tall, wide, target, only_shrink)
    if only_shrink:
        return _whole(tall, wide, (tf.minimum(target[0], height), tf.minimum(target[1], width)))
    return _whole(tall, wide, (tf.constant(target[0]), tf.constant(target[1])))


def _sides(options: Mapping[str, Any]) -> tuple[int, int]:
    size = options["size"]
    height_px, width_px = (size, size) if isinstance(size, int) else size
    return int(height_px), int(width_px)


def _whole(tall: Any, wide: Any, size: tuple[Any, Any]) -> ResizeGeometry:
    zero = tf.constant(0.0, tf.float64)
    return ResizeGeometry((zero, zero, wide, tall), size, size, (tf.constant(0), tf.constant(0)))


def _rounded(length: Any) -> Any:
    """The nearest whole number of pixels, halves up, at least one."""
    return tf.maximum(1, tf.cast(tf.floor(length + 0.5), tf.int32))


def _shortest(tall: Any, wide: Any, side_px: int, only_shrink: bool) -> tuple[Any, Any]:
    side = tf.constant(side_px, tf.float64)
    short = tf.minimum(tall, wide)
    if only_shrink:
        side = tf.minimum(side, short)
    # The shortest side is hit exactly: side * short / short is `side`.
    return _rounded(tall * side / short), _rounded(wide * side / short)


def _crop(tall: Any, wide: Any, target: tuple[int, int], only_shrink: bool) -> ResizeGeometry:
    height_px, width_px = target
    flat = width_px * tall >= height_px * wide
    kept_tall = tf.where(flat, wide * height_px / width_px, tall)
    kept_wide = tf.where(flat, wide, tall * width_px / height_px)
    left, top = (wide - kept_wide) / 2, (tall - kept_tall) / 2
    size = (tf.constant(height_px), tf.constant(width_px))
    if only_shrink:
        small = kept_wide < width_px
        size = (
            tf.where(small, _rounded(kept_tall), height_px),
            tf.where(small, _rounded(kept_wide), width_px),
        )
    zero = tf.constant(0)
    return ResizeGeometry((left, top, wide - left, tall - top), size, size, (zero, zero))


def _pad(tall: Any, wide: Any, target: tuple[int, int], only_shrink: bool) -> ResizeGeometry:
    height_px, width_px = target
    scale = tf.minimum(width_px / wide, height_px / tall)
    if only_shrink:
        scale = tf.minimum(scale, 1.0)
    content = (
        tf.minimum(height_px, _rounded(tall * scale)),
        tf.minimum(width_px, _rounded(wide * scale)),
    )
    offset = ((height_px - content[0]) // 2, (width_px - content[1]) // 2)
    canvas = (tf.constant(height_px), tf.constant(width_px))
    return _whole(tall, wide, content)._replace(canvas=canvas, offset=offset)


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
    part = picture[first_y:last_y, first_x:last_x]
    columns = tf.reshape(tf.transpose(part, (1, 0, 2)), (last_x - first_x, -1))
    columns = _eight_bits(_multiplied(across, columns))
    columns = tf.reshape(columns, (size[1], last_y - first_y, channels))
    rows = tf.reshape(tf.transpose(columns, (1, 0, 2)), (last_y - first_y, -1))
    return tf.reshape(_eight_bits(_multiplied(down, rows)), (*size, channels))


def _multiplied(weights: Any, pixels: Any) -> Any:
    """float64 sparse [out, in] times uint8 [in, n]; in 64 bits the sums are exact."""
    return tf.sparse.sparse_dense_matmul(weights, tf.cast(pixels, tf.float64))


def _weights(num_in: Any, num_out: Any, low: Any, high: Any, name: str) -> tuple[Any, Any]:
    """What each source pixel adds to each result.

    Returns:
        (first, last) of the pixels that add anything, and a float64 SparseTensor
        [num_out, last - first], whose rows sum to 1.
    """
    # Pillow takes the box as 32-bit floats, and the weights as multiples of 2^-22.
    low, high = tf.cast(low, tf.float32), tf.cast(high, tf.float32)
    scale = tf.cast(high - low, tf.float64) / tf.cast(num_out, tf.float64)
    low = tf.cast(low, tf.float64)
    if name == "nearest":
        # Summed up as in Pillow: rounding decides where a centre falls between two pixels.
        steps = tf.concat([[low + scale * 0.5], tf.fill([num_out - 1], scale)], 0)
        pixel = tf.minimum(tf.cast(tf.cumsum(steps), tf.int64), tf.cast(num_in, tf.int64) - 1)
        return _sparse(pixel[:, None], tf.ones_like(steps)[:, None])
    function, support = _FILTERS[name]
    reach = support * tf.maximum(scale, 1)
    centre = low + (tf.range(tf.cast(num_out, tf.float64), dtype=tf.float64) + 0.5) * scale
    centre = centre[:, None]
    left = tf.floor(tf.maximum(centre - reach + 0.5, 0))
    right = tf.floor(tf.minimum(centre + reach + 0.5, tf.cast(num_in, tf.float64)))
    pixel = left + tf.range(tf.reduce_max(right - left), dtype=tf.float64)
    weights = function((pixel - centre + 0.5) / tf.maximum(scale, 1))
    weights = tf.where(pixel < right, weights, tf.zeros_like(weights))
    weights /= tf.reduce_sum(weights, 1, keepdims=True)
    return _sparse(tf.minimum(pixel, right - 1), tf.round(weights * _ONE) / _ONE)


def _sparse(pixel: Any, weights: Any) -> tuple[Any, Any]:
    """Weights [out, n] of the pixels [out, n] → what `_weights` returns."""
    pixel = tf.cast(pixel, tf.int64)
    first, last = tf.reduce_min(pixel), tf.reduce_max(pixel) + 1
    num_out = tf.shape(weights, tf.int64)[0]
    row = tf.broadcast_to(tf.range(num_out)[:, None], tf.shape(weights))
    indices = tf.reshape(tf.stack([row, pixel - first], -1), (-1, 2))
    matrix = tf.SparseTensor(indices, tf.reshape(weights, (-1,)), (num_out, last - first))
    return (tf.cast(first, tf.int32), tf.cast(last, tf.int32)), matrix


def _eight_bits(values: Any) -> Any:
    # Halves up, as Pillow has it; tf.round would take them to the even neighbour.
    return tf.cast(tf.clip_by_value(tf.floor(values + 0.5), 0, 255), tf.uint8)
