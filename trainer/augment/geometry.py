"""Computes crop windows, and the affine maps of crop, flip and rotation.

All coordinates are float32, also whole pixels: TensorFlow computes int32 on the host even with a
GPU, and every step would wait for the result.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import tensorflow as tf

from trainer.augment.params import Params
from trainer.strengths import Augment

Side: TypeAlias = "tf.Tensor | float"


class Window(NamedTuple):
    """Rectangles in pixels, each float32 [batch] and a whole number."""

    y: tf.Tensor
    x: tf.Tensor
    height: tf.Tensor
    width: tf.Tensor


def crop_windows(
    augment: Augment, params: Params, height_px: Side, width_px: Side, size: tuple[int, int]
) -> Window:
    """Returns the window that a random-resized crop keeps of each picture.

    The area is drawn first, then an allowed aspect with which a window of this area fits into the
    picture, so no draw is rejected. If no allowed aspect is near the picture's own aspect, the area
    is a share of the largest allowed window. `size` is the (height, width) in pixels to which
    windows are resized.
    """
    target = size[1] / size[0]  # aspects are width / height
    height, width = (tf.cast(side, tf.float32) for side in (height_px, width_px))
    least, greatest = (target * factor for factor in augment.ratio)
    own = width / height
    nearest = tf.clip_by_value(own, least, greatest)
    area = params["crop_area"] * tf.minimum(nearest / own, own / nearest)
    low = tf.maximum(least, own * area)
    high = tf.maximum(low, tf.minimum(greatest, own / area))
    # The geometric mean of two maps from [0, 1), linear in the aspect and in its inverse, makes
    # wide windows as likely as tall windows. `trainer.augment.params` says why no exponential is
    # used.
    unit = params["crop_aspect"]
    direct, inverse = low + unit * (high - low), 1 / low + unit * (1 / high - 1 / low)
    aspect = tf.sqrt(direct / inverse)
    window_height = tf.clip_by_value(tf.round(height * tf.sqrt(area * own / aspect)), 1.0, height)
    window_width = tf.clip_by_value(tf.round(width * tf.sqrt(area * aspect / own)), 1.0, width)
    y, x = params["crop_y"], params["crop_x"]
    return place_window(y, x, window_height, window_width, height, width)


def place_window(
    y: tf.Tensor,
    x: tf.Tensor,
    height_px: tf.Tensor,
    width_px: tf.Tensor,
    within_height_px: Side,
    within_width_px: Side,
) -> Window:
    """Returns a rectangle inside the picture, uniformly placed for uniform `y`, `x` in [0, 1)."""

    def start(unit: tf.Tensor, side: tf.Tensor, within: Side) -> tf.Tensor:
        # float32 may round the product up to the very end.
        return tf.minimum(tf.floor(unit * (within - side + 1)), within - side)

    top, left = start(y, height_px, within_height_px), start(x, width_px, within_width_px)
    return Window(top, left, height_px, width_px)


def scale_down(window: Window, ratio: tf.Tensor) -> Window:
    """Returns `window` for a picture decoded at 1/`ratio` of its size, at least one pixel."""
    y, x, height, width = (tf.floor(side / ratio) for side in window)
    return Window(y, x, tf.maximum(1.0, height), tf.maximum(1.0, width))


def rotated_bounds(
    window: Window, half_tangent: tf.Tensor, height_px: Side, width_px: Side
) -> Window:
    """Returns the upright rectangle around `window` after a rotation about its centre.

    `half_tangent`, float32 [batch], is the tangent of half the angle. The rectangle has a margin of
    one pixel for interpolation.
    """
    sine, cosine = (tf.abs(value) for value in sine_cosine(half_tangent))
    reach_y = (window.width * sine + window.height * cosine) / 2
    reach_x = (window.width * cosine + window.height * sine) / 2
    centre_y, centre_x = window.y + window.height / 2, window.x + window.width / 2
    # Only the edges of the picture cut the rectangle, so mirroring at its edges and mirroring at
    # the edges of the picture give the same pixels.
    top = tf.maximum(0.0, tf.floor(centre_y - reach_y) - 1)
    left = tf.maximum(0.0, tf.floor(centre_x - reach_x) - 1)
    bottom = tf.minimum(tf.cast(height_px, tf.float32), tf.math.ceil(centre_y + reach_y) + 1)
    right = tf.minimum(tf.cast(width_px, tf.float32), tf.math.ceil(centre_x + reach_x) + 1)
    return Window(top, left, bottom - top, right - left)


def affine_maps(window: Window, params: Params, size: tuple[int, int]) -> tf.Tensor:
    """Returns crop, resize, `flip` and rotation as a map from output to input pixels.

    The maps are float32 [batch, 8], for `tf.raw_ops.ImageProjectiveTransformV2`. Centres of pixels
    have coordinates that end in 0.5, as in `tf.image.resize`.
    """
    height_px, width_px = size
    scale_y = window.height / height_px
    scale_x = window.width / width_px
    if "flip" in params:
        scale_x *= tf.where(params["flip"], -1.0, 1.0)
    sine, cosine = sine_cosine(params.get("half_tangent", tf.zeros_like(window.y)))
    x_x, x_y = cosine * scale_x, -sine * scale_y
    y_x, y_y = sine * scale_x, cosine * scale_y
    # The first pixel of the output, relative to the centre of the output.
    first_y, first_x = 0.5 - height_px / 2, 0.5 - width_px / 2
    x_0 = window.x + window.width / 2 - 0.5 + x_x * first_x + x_y * first_y
    y_0 = window.y + window.height / 2 - 0.5 + y_x * first_x + y_y * first_y
    zero = tf.zeros_like(x_0)
    return tf.stack([x_x, x_y, x_0, y_x, y_y, y_0, zero, zero], axis=1)


def sine_cosine(half_tangent: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the sine and cosine of an angle, from the tangent of half the angle."""
    square = half_tangent * half_tangent
    return 2 * half_tangent / (1 + square), (1 - square) / (1 + square)


def transform_pictures(pictures: tf.Tensor, maps: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Resamples pictures bilinearly with `affine_maps`; mirror images surround each picture.

    float32 [batch, height, width, channels] → float32 [batch, *size, channels].
    """
    return tf.raw_ops.ImageProjectiveTransformV2(
        images=pictures,
        transforms=maps,
        output_shape=list(size),
        interpolation="BILINEAR",
        fill_mode="REFLECT",
    )
