"""Augments whole batches: colour, noise, erasing, and mixing of pairs (MixUp, CutMix).

An accelerator calls `augment_batch` inside the training step, with static shapes, without a loop
over pictures and without results that a step waits for. The host calls the same code for single
pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from trainer.augment import geometry
from trainer.augment.boxes import FinishBoxes, View
from trainer.augment.params import (
    CUTMIX,
    MIXUP,
    NO_MIX,
    Params,
    draw_pairs,
    draw_params,
    mix_bits,
)
from trainer.dataset.batch import Batch
from trainer.dataset.spec import IMAGE_INPUT
from trainer.strengths import Augment

# Luminance of RGB according to ITU-R BT.601.
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
# A power of two, so that the last bits of a hash name a row.
_NOISE_ROWS = 1024
_NOISE_SEED = (0x5EED, 0x0F)

Array = np.ndarray[Any, np.dtype[Any]]


class Pairs(NamedTuple):
    """The pairs of records that are mixed.

    Attributes:
        num_classes: Number of the model's classes.
        distance: Share of a batch (number of records) → how far apart the records of a pair are.
    """

    num_classes: int
    distance: Callable[[int], int]


class Mixture(NamedTuple):
    """How each picture is mixed with its partner, each float32 [batch].

    Attributes:
        kind: `NO_MIX`, `MIXUP` or `CUTMIX`.
        share: The share of the picture itself.
        box: The rectangle that CutMix takes from the partner; of height 0 for all others.
    """

    kind: tf.Tensor
    share: tf.Tensor
    box: geometry.Window


# (pictures, distance, mixture) → mixed pictures
Blend = Callable[[tf.Tensor, int, Mixture], tf.Tensor]


def augment_batch(
    batch: Batch,
    augment: Augment,
    seed: int,
    size: tuple[int, int],
    pairs: Pairs | None,
    fill: Sequence[float],
    boxes: FinishBoxes | None = None,
) -> Batch:
    """Returns a batch, or a replica's slice, with new pictures: uint8 [batch, *size, channels].

    No `pairs` are mixed if they are None. `fill` is the grey level per channel of erased
    rectangles. `boxes` finishes the bounding boxes of the batch.
    """
    params = draw_params(augment, seed, batch["position"])
    pictures = batch["inputs"][IMAGE_INPUT]
    _, height_px, width_px, _ = pictures.shape
    windows = geometry.crop_windows(augment, params, float(height_px), float(width_px), size)
    maps = geometry.affine_maps(windows, params, size)
    changed = geometry.transform_pictures(tf.cast(pictures, tf.float32), maps, size)
    changed = clip_to_uint8(adjust_pixels(changed, params, fill))
    batch = batch | {"inputs": batch["inputs"] | {IMAGE_INPUT: changed}}
    if boxes is not None:
        height, width = (tf.fill(tf.shape(windows.y), float(s)) for s in (height_px, width_px))
        turned = params.get("flip"), params.get("half_tangent")
        view = View(windows, height, width, *turned, erased_part(params, size))
        batch = boxes(batch, view)
    return batch if pairs is None else mix_batch(batch, augment, seed, pairs)


def adjust_pixels(
    pictures: tf.Tensor, params: Params, fill: Sequence[float], single: bool = False
) -> tf.Tensor:
    """Changes colours, adds noise, then erases a rectangle to `fill`, as far as `params` say it.

    float32 [batch, height, width, channels] in grey levels → the same shape; results may leave
    0..255. With a `single` picture no work is done for a rectangle that is not drawn.
    """
    _, height_px, width_px, channels = pictures.shape
    pictures = adjust_colors(pictures, params)
    # TensorFlow broadcasts several times faster over one long dimension than over three channels.
    rows = tf.reshape(pictures, [-1, height_px, width_px * channels])
    if "noise_std" in params:
        rows = _add_noise(rows, params, noise_rows(width_px, channels))
    if "erase" in params and single:
        noisy = rows
        rows = tf.cond(params["erase"][0], lambda: _erase(noisy, params, fill), lambda: noisy)
    elif "erase" in params:
        rows = _erase(rows, params, fill)
    return tf.reshape(rows, [-1, height_px, width_px, channels])


def adjust_colors(pictures: tf.Tensor, params: Params) -> tf.Tensor:
    """Changes saturation, then contrast about the picture's mean luminance, then brightness.

    float32 [batch, height, width, channels] → the same shape.
    """
    if not {"brightness", "contrast", "saturation"} & params.keys():
        return pictures
    # All three changes are linear in the channels, so they become one small matrix per picture.
    _, height_px, width_px, channels = pictures.shape
    brightness, contrast = params.get("brightness", 1.0), params.get("contrast", 1.0)
    gain = tf.reshape(brightness * contrast, [-1, 1, 1])
    flat = tf.reshape(pictures, [-1, height_px * width_px, channels])
    if channels == 3 and "saturation" in params:
        own = params["saturation"][:, tf.newaxis, tf.newaxis]
        grey = np.tile(_LUMINANCE[:, np.newaxis], [1, 3])
        changed = tf.matmul(flat, gain * (own * np.eye(3, dtype=np.float32) + (1 - own) * grey))
    else:
        changed = flat * gain
    if "contrast" in params:
        mean = tf.reduce_mean(flat, axis=1)
        if channels == 3:
            mean = tf.reduce_sum(mean * _LUMINANCE, axis=1, keepdims=True)
        # The order of a sum depends on the size of the batch, so rounding removes the last bits.
        pivot = tf.round(mean)[:, :, tf.newaxis]
        changed += tf.reshape(brightness * (1 - contrast), [-1, 1, 1]) * pivot
    return tf.reshape(changed, [-1, height_px, width_px, channels])


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

    # Constants, as TensorFlow would compute a range on the host.
    rows = tf.constant(np.arange(height_px), tf.float32)
    columns = tf.constant(np.arange(width_px).repeat(channels), tf.float32)
    return (
        inside(box.y, box.height, rows)[:, :, tf.newaxis],
        inside(box.x, box.width, columns)[:, tf.newaxis, :],
    )


def clip_to_uint8(pictures: tf.Tensor) -> tf.Tensor:
    """Converts float32 to uint8, rounded to the nearest integer of 0..255."""
    # A cast alone truncates, which makes pictures half a grey level darker.
    return tf.cast(tf.clip_by_value(pictures, 0.0, 255.0) + 0.5, tf.uint8)


def mix_batch(
    batch: Batch, augment: Augment, seed: int, pairs: Pairs, blend: Blend | None = None
) -> Batch:
    """Applies MixUp and CutMix to a batch, or a replica's slice; see `mix_pairs`."""
    distance = pairs.distance(batch["position"].shape[0])
    drawn = draw_pairs(augment, seed, batch["position"], distance)
    return mix_pairs(batch, drawn, pairs.num_classes, distance, blend)


def mix_pairs(
    batch: Batch, drawn: Params, num_classes: int, distance: int, blend: Blend | None = None
) -> Batch:
    """Mixes the pictures of each pair as `draw_pairs` says, and their labels by the same share.

    Both pictures of a pair have the same share and the same rectangle. A pair with a record of
    weight 0 (a broken record) stays unchanged. Weights are mixed like labels. Labels become float32
    [batch, num_classes]; rows sum to 1 unless pictures have any number of labels. `blend` mixes the
    pictures in another way than all at once.
    """
    pictures, weight = batch["inputs"][IMAGE_INPUT], batch["weight"]
    height_px, width_px = pictures.shape[1:3]
    whole = tf.logical_and(weight > 0, partners(weight, distance) > 0)
    kind = tf.where(whole, drawn["mix"], NO_MIX)
    side = tf.sqrt(1 - drawn["mix_share"])
    height = tf.where(kind == CUTMIX, tf.round(side * height_px), 0.0)
    width = tf.round(side * width_px)
    box = geometry.place_window(drawn["mix_y"], drawn["mix_x"], height, width, height_px, width_px)
    visible = 1 - height * width / (height_px * width_px)
    share = tf.where(kind == MIXUP, drawn["mix_share"], visible)
    blend = blend or _blend_all
    mixed = blend(pictures, distance, Mixture(kind, share, box))
    label, own = shares_of(batch["label"], num_classes), share[:, tf.newaxis]
    return batch | {
        "inputs": batch["inputs"] | {IMAGE_INPUT: mixed},
        "label": own * label + (1 - own) * partners(label, distance),
        "weight": share * weight + (1 - share) * partners(weight, distance),
    }


def blended(pictures: tf.Tensor, others: tf.Tensor, mixture: Mixture) -> tf.Tensor:
    """Mixes pictures with `others`, both uint8 [batch, height, width, channels]."""
    _, height_px, width_px, channels = pictures.shape
    rows, of_others = (
        tf.cast(tf.reshape(one, [-1, height_px, width_px * channels]), tf.float32)
        for one in (pictures, others)
    )
    in_rows, in_columns = box_mask(mixture.box, height_px, width_px, channels)
    everywhere = tf.where(mixture.kind == MIXUP, 1 - mixture.share, 0.0)[:, tf.newaxis, tf.newaxis]
    share = in_rows * in_columns + everywhere
    changed = clip_to_uint8(rows + share * (of_others - rows))
    return tf.reshape(changed, [-1, height_px, width_px, channels])


def shares_of(label: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Converts class ids, int [b], to float32 [b, num_classes]; shares stay unchanged."""
    return label if label.dtype.is_floating else tf.one_hot(label, num_classes, dtype=tf.float32)


def partners(values: tf.Tensor, distance: int) -> tf.Tensor:
    """Returns `values` with the members of each pair of `draw_pairs` swapped, on the first axis."""
    pairs = tf.reshape(values, [-1, 2, distance, *values.shape[1:]])
    swapped = tf.concat([pairs[:, 1:], pairs[:, :1]], axis=1)
    return tf.reshape(swapped, [-1, *values.shape[1:]])


def _blend_all(pictures: tf.Tensor, distance: int, mixture: Mixture) -> tf.Tensor:
    return blended(pictures, partners(pictures, distance), mixture)


def _add_noise(rows: tf.Tensor, params: Params, noise: Array) -> tf.Tensor:
    """Adds a row of `noise`, chosen by a hash, to each row of a picture."""
    heights = tf.constant(np.arange(rows.shape[1]), tf.uint32)
    row = mix_bits(params["noise_key"][:, tf.newaxis] + heights)
    row = tf.bitwise.bitwise_and(row, tf.constant(_NOISE_ROWS - 1, tf.uint32))
    added = tf.gather(noise, tf.cast(row, tf.int64))
    return rows + added * params["noise_std"][:, tf.newaxis, tf.newaxis]


def erased_part(params: Params, size: tuple[int, int]) -> geometry.Window | None:
    """Returns the rectangle that `adjust_pixels` erases, as shares of the sides of the picture."""
    if "erase" not in params:
        return None
    y, x, height, width = _erased_window(params, *size)
    return geometry.Window(y / size[0], x / size[1], height / size[0], width / size[1])


def _erased_window(params: Params, height_px: int, width_px: int) -> geometry.Window:
    area = params["erase_area"] * (height_px * width_px)
    height = _side(tf.sqrt(area * params["erase_aspect"]), height_px)
    width = _side(tf.sqrt(area / params["erase_aspect"]), width_px)
    # An empty rectangle erases nothing.
    height = tf.where(params["erase"], height, 0.0)
    place = params["erase_y"], params["erase_x"]
    return geometry.place_window(*place, height, width, height_px, width_px)


def _erase(rows: tf.Tensor, params: Params, fill: Sequence[float]) -> tf.Tensor:
    channels = len(fill)
    height_px, width_px = rows.shape[1], rows.shape[2] // channels
    box = _erased_window(params, height_px, width_px)
    in_rows, in_columns = box_mask(box, height_px, width_px, channels)
    filled = tf.constant([*fill] * width_px, tf.float32)
    return rows + (in_rows * in_columns) * (filled - rows)


def _side(side: tf.Tensor, most_px: int) -> tf.Tensor:
    return tf.clip_by_value(tf.round(side), 1.0, float(most_px))
