"""Moves bounding boxes with the window through which a model sees their picture.

Until a `box_finisher` clips them, boxes may reach beyond the picture, and corners of absent boxes
are NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from trainer.augment.geometry import Window, sine_cosine
from trainer.dataset.batch import Batch, BoxesOf
from trainer.dataset.spec import BOXES, Boxes, DatasetSpec

_PADDING = -1


class View(NamedTuple):
    """The visible part of each stored picture.

    Attributes:
        window: The part that is resized to the model's picture, in pixels of the stored picture.
        height_px, width_px: Sides of the stored pictures, float32 [batch].
        flip: Whether the resized part is mirrored left to right, bool [batch]; None for never.
        half_tangent: Tangent of half the angle by which the window is rotated about its centre,
            float32 [batch]; None for no rotation.
        erased: The part of the model's picture that is erased, as shares of the sides, of height 0
            for none; None if no picture has one.
    """

    window: Window
    height_px: tf.Tensor
    width_px: tf.Tensor
    flip: tf.Tensor | None = None
    half_tangent: tf.Tensor | None = None
    erased: Window | None = None


# (batch with `boxes`, visible parts or None for all) → batch with the boxes as input or as label.
FinishBoxes = Callable[[Batch, View | None], Batch]


def box_finisher(dataset: DatasetSpec, boxes: Boxes, most: int | None = None) -> FinishBoxes:
    """Returns a function that moves the boxes of a batch, clips them, and drops hidden boxes.

    Of each picture `most` boxes are left, so that a hidden box takes no place of a visible one.
    """

    def finish(batch: Batch, view: View | None) -> Batch:
        rest = {name: values for name, values in batch.items() if name != "boxes"}
        moved, erased = move_boxes(batch["boxes"], view), view and view.erased
        found = cut_boxes(moved, boxes.min_visibility, most, erased)
        if boxes.is_input:
            return rest | {"inputs": rest["inputs"] | {BOXES: found}}
        return rest | {"label": rest["label"] | {BOXES: found} if dataset.outputs else found}

    return finish


def move_boxes(found: BoxesOf, view: View | None) -> BoxesOf:
    """Returns boxes relative to the model's pictures, from boxes relative to stored pictures.

    A rotated box becomes the upright box around its corners. None as `view` changes nothing.
    """
    if view is None:
        return found
    window = Window(*(side[:, tf.newaxis, tf.newaxis] for side in view.window))
    height_px, width_px = (s[:, tf.newaxis, tf.newaxis] for s in (view.height_px, view.width_px))
    xmin, ymin, xmax, ymax = tf.split(found["boxes"], 4, axis=-1)
    # The four corners, in pixels from the centre of the window, [batch, boxes, 4].
    x = tf.concat([xmin, xmax, xmin, xmax], -1) * width_px - (window.x + window.width / 2)
    y = tf.concat([ymin, ymin, ymax, ymax], -1) * height_px - (window.y + window.height / 2)
    if view.half_tangent is not None:
        # `affine_maps` maps the model's picture to the stored picture; boxes need the inverse.
        sine, cosine = sine_cosine(view.half_tangent[:, tf.newaxis, tf.newaxis])
        x, y = cosine * x + sine * y, cosine * y - sine * x
    x, y = x / window.width, y / window.height
    if view.flip is not None:
        x = tf.where(view.flip[:, tf.newaxis, tf.newaxis], -x, x)
    ends = [end(side + 0.5, axis=-1) for end in (tf.reduce_min, tf.reduce_max) for side in (x, y)]
    return found | {"boxes": tf.stack(ends, -1)}


def cut_boxes(
    found: BoxesOf, min_visibility: float, most: int | None = None, erased: Window | None = None
) -> BoxesOf:
    """Clips boxes to the picture, and drops boxes with less than `min_visibility` of their area.

    The part of a box that is `erased` is not visible, but the box keeps its sides. The remaining
    boxes come first, in their order; behind them boxes and labels are -1. The result has the first
    `most` boxes, of which `found` has at least as many; None for all. A box with reversed ends is
    dropped. A box without an area (a line or a point) stays if it is inside.
    """
    boxes = found["boxes"]
    cut = tf.clip_by_value(boxes, 0.0, 1.0)
    whole, left = _area(boxes), _area(cut)
    if erased is not None:
        y, x, height, width = (side[:, tf.newaxis] for side in erased)
        hidden = tf.stack([x, y, x + width, y + height], -1)
        low = tf.maximum(cut[..., :2], hidden[..., :2])
        left -= _area(tf.concat([low, tf.minimum(cut[..., 2:], hidden[..., 2:])], -1))
    touches = tf.reduce_all((boxes[..., :2] <= 1) & (boxes[..., 2:] >= 0), -1)
    stays = tf.where(whole > 0, (left > 0) & (left >= min_visibility * whole), touches)
    stays &= tf.reduce_all(boxes[..., :2] <= boxes[..., 2:], -1)  # NaN gives False
    # A stable sort keeps the order of the remaining boxes.
    order = tf.argsort(tf.where(stays, 0.0, 1.0), -1, stable=True)
    stays = tf.gather(stays, order, batch_dims=1)
    cut, labels = (tf.gather(of, order, batch_dims=1) for of in (cut, found["labels"]))
    cut = tf.where(stays[..., tf.newaxis], cut, float(_PADDING))
    labels = tf.where(stays, labels, tf.constant(_PADDING, labels.dtype))
    size = [-1, -1 if most is None else most]
    return {
        "boxes": tf.slice(cut, [0, 0, 0], [*size, -1]),
        "labels": tf.slice(labels, [0, 0], size),
    }


def _area(boxes: tf.Tensor) -> tf.Tensor:
    return tf.reduce_prod(tf.maximum(boxes[..., 2:] - boxes[..., :2], 0.0), -1)
