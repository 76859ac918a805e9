"""Resizes pictures inside a TensorFlow graph, with the same result as Pillow in the builder.

`tf.image.resize` takes no crop in fractions of a pixel, and rounds only at the end, while Pillow
rounds to 8 bits after each axis. So this module calls the operation below `tf.image.resize`, once
for each axis.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from imageshards.images.options import ImageOptions

# Pillow's name of a filter → TensorFlow's.
_KERNELS = {"bicubic": "keyscubic", "bilinear": "triangle", "box": "box", "lanczos": "lanczos3"}


class ResizeGeometry(NamedTuple):
    """The placement of an upright picture in the picture of a record, in pixels.

    Attributes:
        crop: `left, top, right, bottom` of the part that is kept.
        content: (height, width) of this part after resizing.
        canvas: (height, width) of the result.
    """

    crop: tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]
    content: tuple[tf.Tensor, tf.Tensor]
    canvas: tuple[tf.Tensor, tf.Tensor]

    @property
    def shrink(self) -> tf.Tensor:
        """Source pixels per output pixel, along the axis that shrinks less; float64."""
        left, top, right, bottom = self.crop
        height, width = (tf.cast(side, tf.float64) for side in self.content)
        return tf.minimum((right - left) / width, (bottom - top) / height)


def resize_geometry(height: tf.Tensor, width: tf.Tensor, options: ImageOptions) -> ResizeGeometry:
    """Returns the placement of an upright picture of `height` and `width`, int32 scalars."""
    target = (tf.constant(options.height_px), tf.constant(options.width_px))
    tall, wide = tf.cast(height, tf.float64), tf.cast(width, tf.float64)
    zero = tf.constant(0.0, tf.float64)
    whole = (zero, zero, wide, tall)
    if options.resize_mode == "crop":
        return _crop(tall, wide, options)
    if options.resize_mode == "pad":
        scale = tf.minimum(options.width_px / wide, options.height_px / tall)
        if options.only_shrink:
            scale = tf.minimum(scale, 1.0)
        sides = (tf.minimum(target[0], _rounded(tall * scale)),
                 tf.minimum(target[1], _rounded(wide * scale)))  # fmt: skip
        return ResizeGeometry(whole, sides, target)
    if options.resize_mode == "none":
        target = (height, width)
    elif options.resize_mode == "shortest":
        short = tf.minimum(tall, wide)
        side = tf.constant(options.height_px, tf.float64)
        side = tf.minimum(side, short) if options.only_shrink else side
        # The shortest side becomes exactly `side`: side * short / short has no rounding error.
        target = (_rounded(tall * side / short), _rounded(wide * side / short))
    elif options.only_shrink:
        target = (tf.minimum(target[0], height), tf.minimum(target[1], width))
    return ResizeGeometry(whole, target, target)


def _crop(tall: tf.Tensor, wide: tf.Tensor, options: ImageOptions) -> ResizeGeometry:
    height_px, width_px = options.height_px, options.width_px
    flat = width_px * tall >= height_px * wide
    kept_tall = tf.where(flat, wide * height_px / width_px, tall)
    kept_wide = tf.where(flat, wide, tall * width_px / height_px)
    left, top = (wide - kept_wide) / 2, (tall - kept_tall) / 2
    small = tf.logical_and(options.only_shrink, kept_wide < width_px)
    size = (
        tf.where(small, _rounded(kept_tall), height_px),
        tf.where(small, _rounded(kept_wide), width_px),
    )
    return ResizeGeometry((left, top, wide - left, tall - top), size, size)


def _rounded(length: tf.Tensor) -> tf.Tensor:
    """Rounds to the nearest whole number of pixels, halves up, at least one."""
    return tf.maximum(1, tf.cast(tf.floor(length + 0.5), tf.int32))


def resize(
    picture: tf.Tensor, size: tuple[tf.Tensor, tf.Tensor], box: tuple[tf.Tensor, ...], name: str
) -> tf.Tensor:
    """Resizes a part of a picture like Pillow's `Image.resize(size, name, box)`.

    With `bicubic`, `bilinear` and `lanczos` a pixel in a thousand differs by one grey level, with
    `nearest` none. The filter `box` splits a pixel on the edge of two results between both.

    Args:
        picture: uint8 [height, width, channels], with a static number of channels.
        size: (height, width) of the result.
        box: `left, top, right, bottom` inside the picture, which may have fractions.
        name: Pillow's name of the filter.
    """
    left, top, right, bottom = box
    if name == "nearest":
        columns = tf.gather(picture, _nearest(tf.shape(picture)[1], size[1], left, right), axis=1)
        return tf.gather(columns, _nearest(tf.shape(picture)[0], size[0], top, bottom))
    columns = _resampled(picture[None], 1, size[1], left, right, _KERNELS[name])
    rows = _resampled(columns, 0, size[0], top, bottom, _KERNELS[name])
    return tf.cast(rows[0], tf.uint8)


def _resampled(
    images: tf.Tensor, axis: int, count: tf.Tensor, low: tf.Tensor, high: tf.Tensor, kernel: str
) -> tf.Tensor:
    """Resizes [1, height, width, channels] to `count` pixels along one axis, in whole levels."""
    along = tf.equal(tf.range(2), axis)
    scale = tf.cast(count, tf.float64) / (high - low)
    found = tf.raw_ops.ScaleAndTranslate(
        images=images,
        size=tf.where(along, count, tf.shape(images)[1:3]),
        scale=tf.where(along, tf.cast(scale, tf.float32), 1.0),
        translation=tf.where(along, tf.cast(-low * scale, tf.float32), 0.0),
        kernel_type=kernel,
        antialias=True,
    )
    # Pillow rounds halves up, while tf.round would round them to even.
    return tf.clip_by_value(tf.floor(found + 0.5), 0, 255)


def _nearest(num_in: tf.Tensor, num_out: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """Returns the index of the source pixel for each pixel of the result."""
    # Pillow adds up steps, too: if a centre falls between two pixels, rounding decides.
    step = (high - low) / tf.cast(num_out, tf.float64)
    steps = tf.concat([[low + step * 0.5], tf.fill([num_out - 1], step)], 0)
    return tf.minimum(tf.cast(tf.cumsum(steps), tf.int32), num_in - 1)
