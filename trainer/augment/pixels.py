"""Augmentation of whole batches: colour, noise, erasing, and mixing of pairs (MixUp, CutMix).

`augment_batch` is what an accelerator does inside the training step: static shapes, no loop over
pictures, and no answer that a step would wait for. The same code changes one picture on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.augment.boxes import FinishBoxes, View
from trainer.augment.geometry import (
    Window,
    affine_maps,
    crop_windows,
    place_window,
    transform_pictures,
)
from trainer.augment.params import CUTMIX, LEVELS, LIGHT, MIXUP, Params, draw_params, mix_bits
from trainer.dataset.spec import IMAGE_INPUT, Batch

# Luminance of RGB, ITU-R BT.601.
_LUMINANCE = (0.299, 0.587, 0.114)
# Rows of precomputed noise: a power of two, so that the last bits of a hash name a row.
_NOISE_ROWS = 1024
_NOISE_SEED = (0x5EED, 0x0F)

Array = np.ndarray[Any, np.dtype[Any]]


def augment_batch(
    batch: Batch,
    level: str,
    seed: int,
    size: tuple[int, int],
    num_classes: int | None,
    fill: Sequence[float],
    boxes: FinishBoxes | None = None,
) -> Batch:
    """A batch, or a replica's slice of one, with other pictures: uint8 [batch, *size, channels].

    With `num_classes`, those of the model, pairs are mixed (`mix_pairs`). `fill` is the grey level
    per channel of erased rectangles. Bounding boxes of the batch, if any, go through `boxes`.
    """
    strengths = LEVELS[level]
    params = draw_params(level, seed, batch["position"])
    pictures = batch["inputs"][IMAGE_INPUT]
    _, height_px, width_px, channels = pictures.shape
    windows = crop_windows(strengths, params, float(height_px), float(width_px), size)
    half_tangent = params.get("half_tangent", tf.zeros_like(windows.y))
    maps = affine_maps(windows, params["flip"], half_tangent, size)
    changed = transform_pictures(tf.cast(pictures, tf.float32), maps, size)
    if strengths is not LIGHT:
        changed = adjust_pixels(changed, params, noise_rows(size[1], channels), fill)
    batch = batch | {"inputs": batch["inputs"] | {IMAGE_INPUT: clip_to_uint8(changed)}}
    if boxes is not None:
        height, width = (tf.fill(tf.shape(windows.y), float(s)) for s in (height_px, width_px))
        view = View(windows, height, width, params["flip"], params.get("half_tangent"))
        batch = boxes(batch, view)
    return batch if num_classes is None else mix_pairs(batch, params, num_classes)


def adjust_pixels(
    pictures: tf.Tensor, params: Params, noise: Array, fill: Sequence[float], single: bool = False
) -> tf.Tensor:
    """Colour, then `noise_rows`, then the rectangle erased to `fill`, by the params of `strong`.

    float32 [batch, height, width, channels] in grey levels → the same, which may leave 0..255. A
    batch of a `single` picture is spared erasing that is not drawn; the result is the same.
    """
    _, height_px, width_px, channels = pictures.shape
    pictures = adjust_colors(pictures, params)
    # One row of a picture in one dimension: TensorFlow broadcasts over long inner
    # dimensions several times faster than over three channels.
    rows = tf.reshape(pictures, [-1, height_px, width_px * channels])
    rows = _add_noise(rows, params, noise)
    if single:
        noisy = rows
        rows = tf.cond(params["erase"][0], lambda: _erase(noisy, params, fill), lambda: noisy)
    else:
        rows = _erase(rows, params, fill)
    return tf.reshape(rows, [-1, height_px, width_px, channels])


def adjust_colors(pictures: tf.Tensor, params: Params) -> tf.Tensor:
    """Saturation, then contrast about the picture's mean luminance, then brightness.

    All are linear in the three channels, so they become one small matrix per picture, float32
    [batch, height, width, channels].
    """
    _, height_px, width_px, channels = pictures.shape
    gain = (params["brightness"] * params["contrast"])[:, tf.newaxis, tf.newaxis]
    flat = tf.reshape(pictures, [-1, height_px * width_px, channels])
    mean = tf.reduce_mean(flat, axis=1)
    if channels == 3:
        luminance = tf.constant(_LUMINANCE)
        mean = tf.reduce_sum(mean * luminance, axis=1, keepdims=True)
        own = params["saturation"][:, tf.newaxis, tf.newaxis]
        grey = tf.tile(luminance[:, tf.newaxis], [1, 3])
        changed = tf.matmul(flat, gain * (own * tf.eye(3) + (1 - own) * grey))
    else:
        changed = flat * gain
    # The order of a sum depends on the size of the batch: rounding hides the last bits.
    pivot = tf.round(mean)[:, :, tf.newaxis]
    fixed = (params["brightness"] * (1 - params["contrast"]))[:, tf.newaxis, tf.newaxis]
    return tf.reshape(changed + fixed * pivot, [-1, height_px, width_px, channels])


def noise_rows(width_px: int, channels: int) -> Array:
    """Precomputed Gaussian noise, always the same: float32 [rows, width · channels].

    Each row of a picture gets one of these rows: drawing a normal number for every channel of
    every pixel costs more than decoding the picture.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        shape = [_NOISE_ROWS, width_px * channels]
        return tf.random.stateless_normal(shape, _NOISE_SEED, alg="philox").numpy()


def box_mask(box: Window, height_px: int, width_px: int, channels: int) -> tuple[tf.Tensor, ...]:
    """The mask of a rectangle, 1 inside and 0 outside, as two factors: float32 [batch, height, 1]
    and [batch, 1, width · channels].
    """

    def inside(start: tf.Tensor, side: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
        start, end = start[:, tf.newaxis], (start + side)[:, tf.newaxis]
        return tf.cast(tf.logical_and(pixels >= start, pixels < end), tf.float32)

    rows = tf.range(float(height_px))
    columns = tf.repeat(tf.range(float(width_px)), channels)
    return (
        inside(box.y, box.height, rows)[:, :, tf.newaxis],
        inside(box.x, box.width, columns)[:, tf.newaxis, :],
    )


def clip_to_uint8(pictures: tf.Tensor) -> tf.Tensor:
    """float32 → uint8, rounded to the nearest integer of 0..255."""
    # A cast alone truncates: half a grey level darker.
    return tf.cast(tf.clip_by_value(pictures, 0.0, 255.0) + 0.5, tf.uint8)


def mix_pairs(batch: Batch, params: Params, num_classes: int) -> Batch:
    """Mixes the pictures at positions 2k and 2k + 1, and their labels by the same share.

    Both pictures of a pair get the same share and the same rectangle. A pair with a record
    of weight 0 (a broken one) is left alone. Weights of classes are mixed like labels, which
    become float32 [batch, num_classes], rows that sum to 1 unless pictures have any number of
    labels. The batch is even, and so is its first position.
    """
    pictures, weight = batch["inputs"][IMAGE_INPUT], batch["weight"]
    height_px, width_px = pictures.shape[1:3]
    whole = tf.logical_and(weight > 0, partners(weight) > 0)
    mix = tf.where(whole, params["mix"], 0.0)
    # The rectangle that CutMix takes from the partner.
    side = tf.sqrt(1 - params["mix_share"])
    height = tf.where(mix == CUTMIX, tf.round(side * height_px), 0.0)
    width = tf.round(side * width_px)
    box = place_window(params["mix_y"], params["mix_x"], height, width, height_px, width_px)
    visible = 1 - height * width / (height_px * width_px)
    share = tf.where(mix == MIXUP, params["mix_share"], visible)
    label = shares_of(batch["label"], num_classes)
    own = share[:, tf.newaxis]
    return batch | {
        "inputs": batch["inputs"] | {IMAGE_INPUT: _mixed_pictures(pictures, mix, share, box)},
        "label": own * label + (1 - own) * partners(label),
        "weight": share * weight + (1 - share) * partners(weight),
    }


def shares_of(label: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Class ids, int [b] → float32 [b, num_classes]; labels of this shape stay."""
    return label if label.dtype.is_floating else tf.one_hot(label, num_classes, dtype=tf.float32)


def partners(values: tf.Tensor) -> tf.Tensor:
    """`values` with the two of every pair swapped: index XOR 1 along the first axis."""
    pairs = tf.reshape(values, [-1, 2, *values.shape[1:]])
    return tf.reshape(tf.concat([pairs[:, 1:], pairs[:, :1]], axis=1), [-1, *values.shape[1:]])


def _add_noise(rows: tf.Tensor, params: Params, noise: Array) -> tf.Tensor:
    """Adds to each row of a picture a row of `noise` chosen by a hash."""
    heights = tf.cast(tf.range(rows.shape[1], dtype=tf.int64), tf.uint32)
    row = mix_bits(params["noise_key"][:, tf.newaxis] + heights)
    row = tf.bitwise.bitwise_and(row, tf.constant(_NOISE_ROWS - 1, tf.uint32))
    added = tf.gather(noise, tf.cast(row, tf.int64))
    return rows + added * params["noise_std"][:, tf.newaxis, tf.newaxis]


def _erase(rows: tf.Tensor, params: Params, fill: Sequence[float]) -> tf.Tensor:
    channels = len(fill)
    height_px, width_px = rows.shape[1], rows.shape[2] // channels
    area = params["erase_area"] * (height_px * width_px)
    height = _side(tf.sqrt(area * params["erase_aspect"]), height_px)
    width = _side(tf.sqrt(area / params["erase_aspect"]), width_px)
    # Where nothing is erased the rectangle is empty.
    height = tf.where(params["erase"], height, 0.0)
    box = place_window(params["erase_y"], params["erase_x"], height, width, height_px, width_px)
    in_rows, in_columns = box_mask(box, height_px, width_px, channels)
    filled = tf.constant([*fill] * width_px, tf.float32)
    return rows + (in_rows * in_columns) * (filled - rows)


def _side(side: tf.Tensor, most_px: int) -> tf.Tensor:
    return tf.clip_by_value(tf.round(side), 1.0, float(most_px))


def _mixed_pictures(
    pictures: tf.Tensor, mix: tf.Tensor, share: tf.Tensor, box: Window
) -> tf.Tensor:
    _, height_px, width_px, channels = pictures.shape
    rows = tf.cast(tf.reshape(pictures, [-1, height_px, width_px * channels]), tf.float32)
    in_rows, in_columns = box_mask(box, height_px, width_px, channels)
    everywhere = tf.where(mix == MIXUP, 1 - share, 0.0)[:, tf.newaxis, tf.newaxis]
    of_partner = in_rows * in_columns + everywhere
    changed = clip_to_uint8(rows + of_partner * (partners(rows) - rows))
    return tf.reshape(changed, [-1, height_px, width_px, channels])
