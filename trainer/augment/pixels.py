"""Augments whole batches: colour, noise, erasing, and mixing of pairs (MixUp, CutMix).

An accelerator calls `augment_batch` inside the training step, with static shapes, without a loop
over pictures and without results that a step waits for. The host calls the same code for single
pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.augment import geometry
from trainer.augment.boxes import FinishBoxes, View
from trainer.augment.params import CUTMIX, LEVELS, LIGHT, MIXUP, Params, draw_params, mix_bits
from trainer.dataset.spec import IMAGE_INPUT, Batch

# Luminance of RGB according to ITU-R BT.601.
_LUMINANCE = (0.299, 0.587, 0.114)
# A power of two, so that the last bits of a hash name a row.
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
    """Returns a batch, or a replica's slice, with new pictures: uint8 [batch, *size, channels].

    `num_classes` is the number of the model's classes if pairs are mixed, else None. `fill` is the
    grey level per channel of erased rectangles. `boxes` finishes the bounding boxes of the batch.
    """
    strengths = LEVELS[level]
    params = draw_params(level, seed, batch["position"])
    pictures = batch["inputs"][IMAGE_INPUT]
    _, height_px, width_px, channels = pictures.shape
    windows = geometry.crop_windows(strengths, params, float(height_px), float(width_px), size)
    half_tangent = params.get("half_tangent", tf.zeros_like(windows.y))
    maps = geometry.affine_maps(windows, params["flip"], half_tangent, size)
    changed = geometry.transform_pictures(tf.cast(pictures, tf.float32), maps, size)
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
    """Changes colours, adds `noise_rows`, then erases a rectangle to `fill`, as `strong` does.

    float32 [batch, height, width, channels] in grey levels → the same shape; results may leave
    0..255. With a `single` picture no work is done for a rectangle that is not drawn.
    """
    _, height_px, width_px, channels = pictures.shape
    pictures = adjust_colors(pictures, params)
    # TensorFlow broadcasts several times faster over one long dimension than over three channels.
    rows = tf.reshape(pictures, [-1, height_px, width_px * channels])
    rows = _add_noise(rows, params, noise)
    if single:
        noisy = rows
        rows = tf.cond(params["erase"][0], lambda: _erase(noisy, params, fill), lambda: noisy)
    else:
        rows = _erase(rows, params, fill)
    return tf.reshape(rows, [-1, height_px, width_px, channels])


def adjust_colors(pictures: tf.Tensor, params: Params) -> tf.Tensor:
    """Changes saturation, then contrast about the picture's mean luminance, then brightness.

    float32 [batch, height, width, channels] → the same shape.
    """
    # All three changes are linear in the channels, so they become one small matrix per picture.
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
    # The order of a sum depends on the size of the batch, so rounding removes the last bits.
    pivot = tf.round(mean)[:, :, tf.newaxis]
    fixed = (params["brightness"] * (1 - params["contrast"]))[:, tf.newaxis, tf.newaxis]
    return tf.reshape(changed + fixed * pivot, [-1, height_px, width_px, channels])


def noise_rows(width_px: int, channels: int) -> Array:
    """Returns constant Gaussian noise: float32 [rows, width · channels]."""
    # A new normal number for every channel of every pixel would cost more than decoding the
    # picture.
    with tf.init_scope(), tf.device("CPU:0"):
        shape = [_NOISE_ROWS, width_px * channels]
        return tf.random.stateless_normal(shape, _NOISE_SEED, alg="philox").numpy()


def box_mask(
    box: geometry.Window, height_px: int, width_px: int, channels: int
) -> tuple[tf.Tensor, ...]:
    """Returns the mask of a rectangle, 1 inside and 0 outside, as two factors.

    The factors are float32 [batch, height, 1] and float32 [batch, 1, width · channels].
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
    """Converts float32 to uint8, rounded to the nearest integer of 0..255."""
    # A cast alone truncates, which makes pictures half a grey level darker.
    return tf.cast(tf.clip_by_value(pictures, 0.0, 255.0) + 0.5, tf.uint8)


def mix_pairs(batch: Batch, params: Params, num_classes: int) -> Batch:
    """Mixes the pictures at positions 2k and 2k + 1, and their labels by the same share.

    Both pictures of a pair have the same share and the same rectangle. A pair with a record of
    weight 0 (a broken record) stays unchanged. Weights are mixed like labels. Labels become float32
    [batch, num_classes]; rows sum to 1 unless pictures have any number of labels. The size of the
    batch and its first position are even.
    """
    pictures, weight = batch["inputs"][IMAGE_INPUT], batch["weight"]
    height_px, width_px = pictures.shape[1:3]
    whole = tf.logical_and(weight > 0, partners(weight) > 0)
    mix = tf.where(whole, params["mix"], 0.0)
    # CutMix takes this rectangle from the partner; MixUp has a rectangle of height 0.
    side = tf.sqrt(1 - params["mix_share"])
    height = tf.where(mix == CUTMIX, tf.round(side * height_px), 0.0)
    width = tf.round(side * width_px)
    box = geometry.place_window(
        params["mix_y"], params["mix_x"], height, width, height_px, width_px
    )
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
    """Converts class ids, int [b], to float32 [b, num_classes]; shares stay unchanged."""
    return label if label.dtype.is_floating else tf.one_hot(label, num_classes, dtype=tf.float32)


def partners(values: tf.Tensor) -> tf.Tensor:
    """Returns `values` with the members of every pair swapped: index XOR 1 along the first axis."""
    pairs = tf.reshape(values, [-1, 2, *values.shape[1:]])
    return tf.reshape(tf.concat([pairs[:, 1:], pairs[:, :1]], axis=1), [-1, *values.shape[1:]])


def _add_noise(rows: tf.Tensor, params: Params, noise: Array) -> tf.Tensor:
    """Adds a row of `noise`, chosen by a hash, to each row of a picture."""
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
    # An empty rectangle erases nothing.
    height = tf.where(params["erase"], height, 0.0)
    box = geometry.place_window(
        params["erase_y"], params["erase_x"], height, width, height_px, width_px
    )
    in_rows, in_columns = box_mask(box, height_px, width_px, channels)
    filled = tf.constant([*fill] * width_px, tf.float32)
    return rows + (in_rows * in_columns) * (filled - rows)


def _side(side: tf.Tensor, most_px: int) -> tf.Tensor:
    return tf.clip_by_value(tf.round(side), 1.0, float(most_px))


def _mixed_pictures(
    pictures: tf.Tensor, mix: tf.Tensor, share: tf.Tensor, box: geometry.Window
) -> tf.Tensor:
    _, height_px, width_px, channels = pictures.shape
    rows = tf.cast(tf.reshape(pictures, [-1, height_px, width_px * channels]), tf.float32)
    in_rows, in_columns = box_mask(box, height_px, width_px, channels)
    everywhere = tf.where(mix == MIXUP, 1 - share, 0.0)[:, tf.newaxis, tf.newaxis]
    of_partner = in_rows * in_columns + everywhere
    changed = clip_to_uint8(rows + of_partner * (partners(rows) - rows))
    return tf.reshape(changed, [-1, height_px, width_px, channels])
