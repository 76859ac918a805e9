"""Where a picture's pixels go when it is resized, computed inside a TensorFlow graph.

Follows the `image` object of a data set's manifest, which says how its builder resized.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

MODES = ("crop", "pad", "stretch", "shortest", "none")


class Placing(NamedTuple):
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


def plan(height: Any, width: Any, options: Mapping[str, Any]) -> Placing:
    """The placing of an upright picture.

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


def _whole(tall: Any, wide: Any, size: tuple[Any, Any]) -> Placing:
    zero = tf.constant(0.0, tf.float64)
    return Placing((zero, zero, wide, tall), size, size, (tf.constant(0), tf.constant(0)))


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


def _crop(tall: Any, wide: Any, target: tuple[int, int], only_shrink: bool) -> Placing:
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
    return Placing((left, top, wide - left, tall - top), size, size, (zero, zero))


def _pad(tall: Any, wide: Any, target: tuple[int, int], only_shrink: bool) -> Placing:
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
