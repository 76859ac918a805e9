"""Augmentation on the accelerator: whole batches of uint8 pictures, inside the training step.

The host only decodes. Everything here has static shapes and no loop over pictures, and
nothing needs an answer from the device, so no step waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.augment.geometry import crop_windows, transformed, transforms
from trainer.augment.mix import mixed
from trainer.augment.params import draw, strengths
from trainer.augment.pixels import MID_GREY, adjusted, noise_rows, to_uint8

Batch = dict[str, Any]


def augmenter(
    level: str,
    seed: int,
    size: tuple[int, int],
    num_classes: int | None,
    fill: Sequence[float] | None = None,
) -> Callable[[Batch], Batch]:
    """`apply` with everything but the batch given."""

    def augment(batch: Batch) -> Batch:
        return apply(batch, level, seed, size, num_classes, fill)

    return augment


def apply(
    batch: Batch,
    level: str,
    seed: int,
    size: tuple[int, int],
    num_classes: int | None,
    fill: Sequence[float] | None = None,
) -> Batch:
    """Augments a batch, or a replica's slice of one.

    Args:
        batch: With `inputs.image` uint8 [batch, height, width, channels] and `position`
            int64 [batch]; for mixing also `label` int64 [batch] and `weight` float32
            [batch], the batch even and its positions beginning with an even one.
        level: `none`, `light` or `strong`.
        seed: Of the run.
        size: (height, width) in pixels of the result; for `none` the pictures must have it.
        num_classes: Of the model; None to leave out mixing.
        fill: Grey level per channel of erased rectangles; None for mid-grey.

    Returns:
        The batch with `inputs.image` uint8 [batch, *size, channels]; after mixing `label` is
        float32 [batch, num_classes].
    """
    chosen = strengths(level)
    if chosen is None:
        return batch
    params = draw(level, seed, batch["position"])
    pictures = batch["inputs"]["image"]
    _, height_px, width_px, channels = pictures.shape
    windows = crop_windows(chosen, params, float(height_px), float(width_px), size)
    half_tangent = params.get("half_tangent", tf.zeros_like(windows.y))
    maps = transforms(windows, params["flip"], half_tangent, size)
    changed = transformed(tf.cast(pictures, tf.float32), maps, size)
    if chosen.changes_pixels:
        noise = noise_rows(size[1], channels)
        changed = adjusted(changed, params, noise, list(fill or [MID_GREY] * channels))
    batch = batch | {"inputs": batch["inputs"] | {"image": to_uint8(changed)}}
    if chosen.mixes and num_classes is not None:
        return mixed(batch, params, num_classes)
    return batch
