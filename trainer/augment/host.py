"""Augments pictures in the reader, on the host, which decodes only the part inside the crop."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import tensorflow as tf

from trainer.augment import geometry, pixels
from trainer.augment.boxes import View
from trainer.augment.decode import Encoded, Pictures, Rows, as_stored
from trainer.augment.params import NO_MIX, Params, draw_params
from trainer.dataset.batch import Batch
from trainer.dataset.spec import ImageSpec
from trainer.strengths import Augment

Work = dict[str, tf.Tensor]

# libjpeg decodes a picture faster at 1/ratio of its size, and averages the pixels.
_RATIOS = (1, 2, 4, 8)


def augmented_pictures(
    image: ImageSpec, size: tuple[int, int], augment: Augment, seed: int, fill: Sequence[float]
) -> Pictures:
    """Returns the functions that decode and augment a batch; `mix_batch` mixes its pairs.

    `fill` is the grey level per channel of erased rectangles.
    """
    source = _Source(image, size, augment)
    finish = functools.partial(_finish, size, fill if augment.changes_colors else None)

    def decode(stored: tf.Tensor | Rows, position: tf.Tensor, at_once: int) -> tf.Tensor:
        known = as_stored(stored, image)
        return tf.map_fn(
            lambda one: finish(tf.cast(source.decode(known, one), tf.float32), one),
            source.plan(known, draw_params(augment, seed, position)),
            parallel_iterations=at_once,
            fn_output_signature=tf.TensorSpec((*size, image.channels), tf.uint8),
        )

    def view(stored: tf.Tensor | Rows, position: tf.Tensor) -> View:
        return source.view(as_stored(stored, image), draw_params(augment, seed, position))

    return Pictures(decode, view)


def mix_batch(batch: Batch, augment: Augment, seed: int, pairs: pixels.Pairs) -> Batch:
    """Applies MixUp and CutMix as `trainer.augment.pixels.mix_batch` does, picture by picture."""
    return pixels.mix_batch(batch, augment, seed, pairs, _blend_each)


def _blend_each(pictures: tf.Tensor, distance: int, mixture: pixels.Mixture) -> tf.Tensor:
    # A whole batch would take a gigabyte as floats, and pictures that are not mixed cost a copy.
    numbers = tf.range(pictures.shape[0])

    def blended(work: tuple[tf.Tensor, tf.Tensor, pixels.Mixture]) -> tf.Tensor:
        number, partner, one = work
        own = pictures[number]

        def mixed() -> tf.Tensor:
            of_one = tf.nest.map_structure(lambda value: value[tf.newaxis], one)
            both = own[tf.newaxis], pictures[partner][tf.newaxis]
            return pixels.blended(*both, of_one)[0]

        return tf.cond(tf.equal(one.kind, NO_MIX), lambda: own, mixed)

    work = numbers, pixels.partners(numbers, distance), mixture
    signature = tf.TensorSpec(pictures.shape[1:], pictures.dtype)
    return tf.map_fn(blended, work, fn_output_signature=signature)


class _Source:
    """A decoder for pictures of one size, or for pictures whose size is measured."""

    def __init__(self, image: ImageSpec, size: tuple[int, int], augment: Augment) -> None:
        self.size, self.image, self.augment = size, image, augment
        # Pictures of varying sizes may shrink by any ratio.
        shared = (None if image.varies else image.size) or ()
        shrink = (own / side for own, side in zip(shared, size, strict=False))
        most = max(1, min(shrink, default=math.inf))
        self.ratios = tuple(ratio for ratio in _RATIOS if ratio <= most)

    def plan(self, stored: Encoded | Rows, params: Params) -> Work:
        """Returns what to decode and how to change each picture, as tensors [batch, …] by name."""
        # Inside the loop over pictures, these tiny operations would cost as much as decoding.
        height, width = stored.sizes()
        window = geometry.crop_windows(self.augment, params, height, width, self.size)
        work: Work = {"key": stored.keys}
        work |= {name: one for name, one in params.items() if not name.startswith("crop_")}
        if self.ratios != (1,):
            work["ratio_index"] = self._ratio_index(stored, window)
            ratio = self._ratio(work["ratio_index"])
            window = geometry.scale_down(window, ratio)
            height, width = tf.math.ceil(height / ratio), tf.math.ceil(width / ratio)
        part = window
        if "half_tangent" in params:
            part = geometry.rotated_bounds(window, params["half_tangent"], height, width)
            inside = window._replace(y=window.y - part.y, x=window.x - part.x)
            work["map"] = geometry.affine_maps(inside, params, self.size)
        return work | {"part": tf.cast(tf.stack(part, axis=1), tf.int32)}

    def view(self, stored: Encoded | Rows, params: Params) -> View:
        """Returns the visible part of every picture after `plan`."""
        height, width = stored.sizes()
        window = geometry.crop_windows(self.augment, params, height, width, self.size)
        if self.ratios != (1,):
            # A picture that is decoded at a smaller size is cropped at whole pixels of that size.
            ratio = self._ratio(self._ratio_index(stored, window))
            window = geometry.Window(*(side * ratio for side in geometry.scale_down(window, ratio)))
        turned = params.get("flip"), params.get("half_tangent")
        return View(window, height, width, *turned, pixels.erased_part(params, self.size))

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


def _finish(
    size: tuple[int, int], fill: Sequence[float] | None, part: tf.Tensor, work: Work
) -> tf.Tensor:
    """Resizes, flips and rotates a part of a picture, and changes colours if there is a `fill`."""
    one = {name: value[tf.newaxis] for name, value in work.items()}
    if "map" in work:
        picture = geometry.transform_pictures(part[tf.newaxis], one["map"], size)[0]
    else:
        # The cast to float costs less than resizing integers would.
        picture = tf.raw_ops.ResizeBilinear(
            images=part[tf.newaxis], size=list(size), half_pixel_centers=True
        )[0]
        if fill is None:
            # Rounds to the nearest integer. Interpolated values need no clipping, which costs two
            # passes.
            picture = tf.cast(picture + 0.5, tf.uint8)
        if "flip" in work:
            plain = picture
            # `reverse` has a fast path for rows of RGB pixels in three dimensions.
            picture = tf.cond(work["flip"], lambda: tf.reverse(plain, [1]), lambda: plain)
    if fill is not None:
        picture = pixels.adjust_pixels(picture[tf.newaxis], one, fill, single=True)[0]
    return picture if picture.dtype == tf.uint8 else pixels.clip_to_uint8(picture)
