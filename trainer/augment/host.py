"""Augments pictures in the reader, on the host, which decodes only the part inside the crop."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import tensorflow as tf

from trainer.augment import geometry, pixels
from trainer.augment.boxes import View
from trainer.augment.decode import Encoded, Pictures, Rows, as_stored
from trainer.augment.params import LEVELS, LIGHT, NO_MIX, OF_PAIR, Params, Strengths, draw_params
from trainer.dataset.spec import Batch, ImageSpec

Work = dict[str, tf.Tensor]

# libjpeg decodes a picture faster at 1/ratio of its size, and averages the pixels.
_RATIOS = (1, 2, 4, 8)


def augmented_pictures(
    image: ImageSpec, size: tuple[int, int], level: str, seed: int, fill: Sequence[float]
) -> Pictures:
    """Returns the functions that decode and augment a batch; `mix_batch` mixes its pairs.

    `fill` is the grey level per channel of erased rectangles.
    """
    source = _Source(image, size)
    if LEVELS[level] is LIGHT:
        finish_one = functools.partial(_light_picture, size)
    else:
        noise = pixels.noise_rows(size[1], image.channels)
        finish_one = functools.partial(_strong_picture, size, noise, fill)

    def decode(stored: tf.Tensor | Rows, position: tf.Tensor, at_once: int) -> tf.Tensor:
        known = as_stored(stored, image)
        return tf.map_fn(
            lambda one: finish_one(tf.cast(source.decode(known, one), tf.float32), one),
            source.plan(known, LEVELS[level], draw_params(level, seed, position)),
            parallel_iterations=at_once,
            fn_output_signature=tf.TensorSpec((*size, image.channels), tf.uint8),
        )

    def view(stored: tf.Tensor | Rows, position: tf.Tensor) -> View:
        params = draw_params(level, seed, position)
        return source.view(as_stored(stored, image), LEVELS[level], params)

    return Pictures(decode, view)


def mix_batch(batch: Batch, level: str, seed: int, num_classes: int) -> Batch:
    """Applies MixUp and CutMix on the host, as `trainer.augment.pixels.mix_pairs` does."""
    # A whole batch would take a gigabyte as floats, and pairs that are not mixed cost nothing here.
    params = draw_params(level, seed, batch["position"])
    drawn = {name: params[name] for name in OF_PAIR}
    given = {name: batch[name] for name in ("inputs", "label", "weight")}

    def mixed(of_pair: tuple[Batch, Params]) -> Batch:
        pair, params = of_pair
        return tf.cond(
            tf.equal(params["mix"][0], NO_MIX),
            lambda: pair | {"label": pixels.shares_of(pair["label"], num_classes)},
            lambda: pixels.mix_pairs(pair, params, num_classes),
        )

    # An element is a pair: all tensors become [pairs, 2, …].
    pairs = tf.nest.map_structure(lambda v: tf.reshape(v, [-1, 2, *v.shape[1:]]), (given, drawn))
    signature = tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape[1:], v.dtype), pairs[0])
    signature["label"] = tf.TensorSpec((2, num_classes), tf.float32)
    found = tf.map_fn(mixed, pairs, fn_output_signature=signature)
    found = tf.nest.map_structure(lambda v: tf.reshape(v, [-1, *v.shape[2:]]), found)
    return batch | found


class _Source:
    """A decoder for pictures of one size, or for pictures whose size is measured."""

    def __init__(self, image: ImageSpec, size: tuple[int, int]) -> None:
        self.size, self.image = size, image
        # Pictures of varying sizes may shrink by any ratio.
        shared = (None if image.varies else image.size) or ()
        shrink = (own / side for own, side in zip(shared, size, strict=False))
        most = max(1, min(shrink, default=math.inf))
        self.ratios = tuple(ratio for ratio in _RATIOS if ratio <= most)

    def plan(self, stored: Encoded | Rows, strengths: Strengths, params: Params) -> Work:
        """Returns what to decode and how to change each picture, as tensors [batch, …] by name."""
        # Inside the loop over pictures, these tiny operations would cost as much as decoding.
        height, width = stored.sizes()
        window = geometry.crop_windows(strengths, params, height, width, self.size)
        work: Work = {"key": stored.keys, "flip": params["flip"]}
        if self.ratios != (1,):
            work["ratio_index"] = self._ratio_index(stored, window)
            ratio = self._ratio(work["ratio_index"])
            window = geometry.scale_down(window, ratio)
            height, width = tf.math.ceil(height / ratio), tf.math.ceil(width / ratio)
        part = window
        if strengths is not LIGHT:
            part = geometry.rotated_bounds(window, params["half_tangent"], height, width)
            inside = window._replace(y=window.y - part.y, x=window.x - part.x)
            maps = geometry.affine_maps(inside, params["flip"], params["half_tangent"], self.size)
            work |= {**params, "map": maps}
        return work | {"part": tf.cast(tf.stack(part, axis=1), tf.int32)}

    def view(self, stored: Encoded | Rows, strengths: Strengths, params: Params) -> View:
        """Returns the visible part of every picture after `plan`."""
        height, width = stored.sizes()
        window = geometry.crop_windows(strengths, params, height, width, self.size)
        if self.ratios != (1,):
            # A picture that is decoded at a smaller size is cropped at whole pixels of that size.
            ratio = self._ratio(self._ratio_index(stored, window))
            window = geometry.Window(*(side * ratio for side in geometry.scale_down(window, ratio)))
        return View(window, height, width, params["flip"], params.get("half_tangent"))

    def decode(self, stored: Encoded | Rows, work: Work) -> tf.Tensor:
        """Returns the `part` of one picture, [height, width, channels], uint8 or float32."""
        key, part = work["key"], work["part"]

        def scaled() -> tf.Tensor:
            if self.ratios == (1,):
                return stored.part(key, part, 1)
            branches = [functools.partial(stored.part, key, part, ratio) for ratio in self.ratios]
            return tf.switch_case(work["ratio_index"], branches)

        def cropped() -> tf.Tensor:
            y, x, height, width = tf.unstack(part)
            picture = stored.whole(key)[y : y + height, x : x + width]
            return tf.ensure_shape(picture, (None, None, self.image.channels))

        if isinstance(stored, Rows) or self.image.is_jpeg:
            return scaled()
        return tf.cond(stored.are_jpegs(key), scaled, cropped)

    def _ratio_index(self, stored: Encoded | Rows, window: geometry.Window) -> tf.Tensor:
        """Returns the index of the greatest ratio that leaves enough pixels for the result."""
        shrink = tf.minimum(window.height / self.size[0], window.width / self.size[1])
        allowed = shrink[:, tf.newaxis] >= tf.constant(self.ratios[1:], tf.float32)
        index = tf.reduce_sum(tf.cast(allowed, tf.int32), axis=1)
        if isinstance(stored, Encoded) and not self.image.is_jpeg:
            # Only JPEGs can be decoded at a fraction of their size.
            index *= tf.cast(stored.are_jpegs(stored.keys), tf.int32)
        return index

    def _ratio(self, index: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.constant(self.ratios, tf.float32), index)


def _light_picture(size: tuple[int, int], part: tf.Tensor, work: Work) -> tf.Tensor:
    # The cast to float costs less than resizing integers would.
    resized = tf.raw_ops.ResizeBilinear(
        images=part[tf.newaxis], size=list(size), half_pixel_centers=True
    )[0]
    # Rounds to the nearest integer. Interpolated values need no clipping, which costs two passes.
    rounded = tf.cast(resized + 0.5, tf.uint8)
    # `reverse` has a fast path for rows of RGB pixels in three dimensions.
    return tf.cond(work["flip"], lambda: tf.reverse(rounded, [1]), lambda: rounded)


def _strong_picture(
    size: tuple[int, int], noise: pixels.Array, fill: Sequence[float], part: tf.Tensor, work: Work
) -> tf.Tensor:
    one = {name: value[tf.newaxis] for name, value in work.items()}
    changed = geometry.transform_pictures(part[tf.newaxis], one["map"], size)
    return pixels.clip_to_uint8(pixels.adjust_pixels(changed, one, noise, fill, single=True))[0]
