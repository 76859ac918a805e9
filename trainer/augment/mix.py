"""MixUp and CutMix: pictures at positions 2k and 2k + 1 are mixed, and so are their labels."""

from __future__ import annotations

import tensorflow as tf

from trainer.augment.geometry import Window, place_window
from trainer.augment.params import CUTMIX, MIXUP, Params
from trainer.augment.pixels import box_mask, clip_to_uint8
from trainer.dataset.spec import IMAGE_INPUT, Batch


def mix_pairs(batch: Batch, params: Params, num_classes: int) -> Batch:
    """Mixes the pictures of each pair, and their labels by the same share.

    Both pictures of a pair get the same share and the same rectangle. A pair with a record
    of weight 0 (a broken one) is left alone. Weights of classes are mixed like labels.

    Args:
        batch: Even; its positions begin with an even one.
        params: For `strong`, as `trainer.augment.params.draw_params` gives them.
        num_classes: Classes of the model.

    Returns:
        The batch with other pictures and weights, and `label` float32 [batch, num_classes]
        whose rows sum to 1.
    """
    pictures, weight = batch["inputs"][IMAGE_INPUT], batch["weight"]
    height_px, width_px = pictures.shape[1:3]
    whole = tf.logical_and(weight > 0, partners(weight) > 0)
    mix = tf.where(whole, params["mix"], 0.0)
    share, box = _shares(mix, params, height_px, width_px)
    label = tf.one_hot(batch["label"], num_classes, dtype=tf.float32)
    own = share[:, tf.newaxis]
    return batch | {
        "inputs": batch["inputs"] | {IMAGE_INPUT: _mixed_pictures(pictures, mix, share, box)},
        "label": own * label + (1 - own) * partners(label),
        "weight": share * weight + (1 - share) * partners(weight),
    }


def partners(values: tf.Tensor) -> tf.Tensor:
    """`values` with the two of every pair swapped: index XOR 1 along the first axis."""
    pairs = tf.reshape(values, [-1, 2, *values.shape[1:]])
    return tf.reshape(tf.concat([pairs[:, 1:], pairs[:, :1]], axis=1), [-1, *values.shape[1:]])


def _shares(
    mix: tf.Tensor, params: Params, height_px: int, width_px: int
) -> tuple[tf.Tensor, Window]:
    """The share of each picture that stays its own, and the rectangle that does not."""
    side = tf.sqrt(1 - params["mix_share"])
    height = tf.where(mix == CUTMIX, tf.round(side * height_px), 0.0)
    width = tf.round(side * width_px)
    box = place_window(params["mix_y"], params["mix_x"], height, width, height_px, width_px)
    visible = 1 - height * width / (height_px * width_px)
    return tf.where(mix == MIXUP, params["mix_share"], visible), box


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
