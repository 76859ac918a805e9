"""Augmentation in the reader, on the host: only the part inside the crop is decoded, or picked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from trainer.augment.decode import DECODED_AT_ONCE, Encoded, Pictures, Rows
from trainer.augment.geometry import (
    Window,
    affine_maps,
    crop_windows,
    rotated_bounds,
    scale_down,
    transform_pictures,
)
from trainer.augment.params import LEVELS, LIGHT, NO_MIX, Params, Strengths, draw_params
from trainer.augment.pixels import (
    adjust_pixels,
    clip_to_uint8,
    mix_pairs,
    noise_rows,
    shares_of,
)
from trainer.dataset.spec import IMAGE_INPUT, Batch, ImageSpec

Work = dict[str, tf.Tensor]

# libjpeg can decode a picture at 1/ratio of its size: faster, and averaged over the pixels that
# are left out.
_RATIOS = (1, 2, 4, 8)


def augmented_pictures(
    image: ImageSpec,
    size: tuple[int, int],
    level: str,
    seed: int,
    fill: Sequence[float],
) -> Pictures:
    """A function that decodes and augments a batch, but does not mix it: see `mix_batch`.

    `fill` is the grey level per channel of erased rectangles.
    """
    strengths = LEVELS[level]
    source = _Source(image, size)
    is_light = strengths is LIGHT
    finish_one = _light_picture(size) if is_light else _strong_picture(image, size, fill)

    def pictures(
        encoded: tf.Tensor | Rows, position: tf.Tensor, at_once: int = DECODED_AT_ONCE
    ) -> tf.Tensor:
        stored = encoded if isinstance(encoded, Rows) else Encoded(encoded, image)
        work = source.plan(stored, strengths, draw_params(level, seed, position))
        return tf.map_fn(
            lambda one: finish_one(tf.cast(source.decode(stored, one), tf.float32), one),
            work,
            parallel_iterations=at_once,
            fn_output_signature=tf.TensorSpec((*size, image.channels), tf.uint8),
        )

    return pictures


def mix_batch(batch: Batch, level: str, seed: int, num_classes: int) -> Batch:
    """MixUp and CutMix on the host, the same as `trainer.augment.pixels.mix_pairs`.

    Pair by pair: as floats a whole batch would take a gigabyte, and pairs that are not mixed
    cost nothing.
    """
    params = draw_params(level, seed, batch["position"])
    drawn = {name: params[name] for name in ("mix", "mix_share", "mix_y", "mix_x")}
    given = {
        "inputs": {IMAGE_INPUT: batch["inputs"][IMAGE_INPUT]},
        "label": batch["label"],
        "weight": batch["weight"],
    }

    def mixed(of_pair: tuple[Batch, Params]) -> Batch:
        pair, params = of_pair
        return tf.cond(
            tf.equal(params["mix"][0], NO_MIX),
            lambda: pair | {"label": shares_of(pair["label"], num_classes)},
            lambda: mix_pairs(pair, params, num_classes),
        )

    # Element: the two members of one pair.
    pairs = tf.nest.map_structure(lambda v: tf.reshape(v, [-1, 2, *v.shape[1:]]), (given, drawn))
    signature = tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape[1:], v.dtype), pairs[0])
    signature["label"] = tf.TensorSpec((2, num_classes), tf.float32)
    found = tf.map_fn(mixed, pairs, fn_output_signature=signature)
    found = tf.nest.map_structure(lambda v: tf.reshape(v, [-1, *v.shape[2:]]), found)
    return batch | found | {"inputs": batch["inputs"] | found["inputs"]}


class _Source:
    """How pictures are decoded: at a size that all share, or at one measured for each."""

    def __init__(self, image: ImageSpec, size: tuple[int, int]) -> None:
        self.size, self.image = size, image
        self.shared_size = None if image.varies else image.size
        self.ratios: tuple[int, ...] = _RATIOS
        if self.shared_size is not None:
            most = min(own / side for own, side in zip(self.shared_size, size, strict=True))
            self.ratios = tuple(ratio for ratio in _RATIOS if ratio <= max(1, most))

    def plan(self, stored: Encoded | Rows, strengths: Strengths, params: Params) -> Work:
        """For every picture, what to decode and what to do with it, each [batch, …].

        Computed for the whole batch at once: one by one in the loop over pictures, these many
        tiny operations would cost as much as decoding.
        """
        if self.shared_size is None:
            measured = tf.map_fn(
                functools.partial(_measured, self.image),
                stored.keys,
                fn_output_signature=tf.TensorSpec((2,), tf.float32),
            )
            height, width = tf.unstack(measured, axis=1)
        else:
            height, width = (tf.fill(tf.shape(stored.keys), float(s)) for s in self.shared_size)
        window = crop_windows(strengths, params, height, width, self.size)
        work: Work = {"key": stored.keys, "flip": params["flip"]}
        if self.ratios != (1,):
            index = self._ratio_index(window)
            if isinstance(stored, Encoded) and not self.image.is_jpeg:
                # Only JPEGs can be decoded at a fraction of their size.
                index *= tf.cast(stored.are_jpegs(stored.keys), tf.int32)
            ratio = tf.gather(tf.constant(self.ratios, tf.float32), index)
            window = scale_down(window, ratio)
            height, width = tf.math.ceil(height / ratio), tf.math.ceil(width / ratio)
            work["ratio_index"] = index
        if strengths is LIGHT:
            return work | {"part": _as_integers(window)}
        part = rotated_bounds(window, params["half_tangent"], height, width)
        inside = window._replace(y=window.y - part.y, x=window.x - part.x)
        maps = affine_maps(inside, params["flip"], params["half_tangent"], self.size)
        return work | dict(params) | {"part": _as_integers(part), "map": maps}

    def decode(self, stored: Encoded | Rows, work: Work) -> tf.Tensor:
        """One picture's `part`, [height, width, channels], uint8 or float32."""
        key, part = work["key"], work["part"]

        def scaled() -> tf.Tensor:
            if self.ratios == (1,):
                return stored.part(key, part, 1)
            branches = [functools.partial(stored.part, key, part, ratio) for ratio in self.ratios]
            return tf.switch_case(work["ratio_index"], branches)

        def cropped() -> tf.Tensor:
            channels = self.image.channels
            pixels = tf.slice(
                stored.whole(key), [part[0], part[1], 0], [part[2], part[3], channels]
            )
            return tf.ensure_shape(pixels, (None, None, channels))

        if isinstance(stored, Rows) or self.image.is_jpeg:
            return scaled()
        return tf.cond(stored.are_jpegs(key), scaled, cropped)

    def _ratio_index(self, window: Window) -> tf.Tensor:
        """That of the greatest ratio that leaves at least as many pixels as the result has."""
        shrink = tf.minimum(window.height / self.size[0], window.width / self.size[1])
        allowed = shrink[:, tf.newaxis] >= tf.constant(self.ratios[1:], tf.float32)
        return tf.reduce_sum(tf.cast(allowed, tf.int32), axis=1)


def _light_picture(size: tuple[int, int]) -> Callable[[tf.Tensor, Work], tf.Tensor]:
    def picture(part: tf.Tensor, work: Work) -> tf.Tensor:
        # Resizing floats is faster by more than the cast costs.
        resized = tf.raw_ops.ResizeBilinear(
            images=part[tf.newaxis], size=list(size), half_pixel_centers=True
        )[0]
        # Rounded to nearest. Between two pixels there is nothing to clip, which costs two passes.
        pixels = tf.cast(resized + 0.5, tf.uint8)
        # In three dimensions, `reverse` has a fast path for rows of RGB pixels.
        return tf.cond(work["flip"], lambda: tf.reverse(pixels, [1]), lambda: pixels)

    return picture


def _strong_picture(
    image: ImageSpec, size: tuple[int, int], fill: Sequence[float]
) -> Callable[[tf.Tensor, Work], tf.Tensor]:
    noise = noise_rows(size[1], image.channels)

    def picture(part: tf.Tensor, work: Work) -> tf.Tensor:
        one = {name: value[tf.newaxis] for name, value in work.items()}
        changed = transform_pictures(part[tf.newaxis], one["map"], size)
        return clip_to_uint8(adjust_pixels(changed, one, noise, fill, single=True))[0]

    return picture


def _measured(image: ImageSpec, key: tf.Tensor) -> tf.Tensor:
    """Height and width of a picture, float32 [2]."""
    stored = Encoded(key, image)

    def of_jpeg() -> tf.Tensor:
        return tf.io.extract_jpeg_shape(key)[:2]

    def of_other() -> tf.Tensor:
        return tf.shape(stored.whole(key))[:2]

    if image.is_jpeg:
        return tf.cast(of_jpeg(), tf.float32)
    return tf.cast(tf.cond(stored.are_jpegs(key), of_jpeg, of_other), tf.float32)


def _as_integers(window: Window) -> tf.Tensor:
    return tf.cast(tf.stack(window, axis=1), tf.int32)
