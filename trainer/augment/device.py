"""Augmentation on the accelerator: whole batches of uint8 pictures, inside the training step.

The host only decodes. Everything here has static shapes and no loop over pictures, and
nothing needs an answer from the device, so no step waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from trainer.augment.geometry import affine_maps, crop_windows, transform_pictures
from trainer.augment.params import LEVELS, draw_params
from trainer.augment.pixels import MID_GREY, adjust_pixels, clip_to_uint8, mix_pairs, noise_rows
from trainer.dataset.spec import IMAGE_INPUT, Batch


def augment_batch(
    batch: Batch,
    level: str,
    seed: int,
    size: tuple[int, int],
    num_classes: int | None,
    fill: Sequence[float] | None = None,
) -> Batch:
    """Augments a batch, or a replica's slice of one.

    Args:
        batch: For mixing it is even, and its positions begin with an even one.
        level: `light` or `strong`.
        seed: Of the run.
        size: (height, width) in pixels of the result.
        num_classes: Of the model; None to leave out mixing.
        fill: Grey level per channel of erased rectangles; None for mid-grey.

    Returns:
        The batch with pictures uint8 [batch, *size, channels]; after mixing `label` is
        float32 [batch, num_classes].
    """
    strengths = LEVELS[level]
    params = draw_params(level, seed, batch["position"])
    pictures = batch["inputs"][IMAGE_INPUT]
    _, height_px, width_px, channels = pictures.shape
    windows = crop_windows(strengths, params, float(height_px), float(width_px), size)
    half_tangent = params.get("half_tangent", tf.zeros_like(windows.y))
    maps = affine_maps(windows, params["flip"], half_tangent, size)
    changed = transform_pictures(tf.cast(pictures, tf.float32), maps, size)
    if strengths.changes_pixels:
        noise = noise_rows(size[1], channels)
        changed = adjust_pixels(changed, params, noise, list(fill or [MID_GREY] * channels))
    batch = batch | {"inputs": batch["inputs"] | {IMAGE_INPUT: clip_to_uint8(changed)}}
    if strengths.mixes and num_classes is not None:
        return mix_pairs(batch, params, num_classes)
    return batch
