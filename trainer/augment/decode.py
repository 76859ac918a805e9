"""What is stored of a batch, JPEGs or pictures decoded before → uint8 pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.dataset.spec import ImageSpec

# (JPEGs, string [b], or `Rows`; positions in the training stream, int64 [b]; optionally how many
# are decoded at the same time) → uint8 [b, h, w, c].
Pictures = Callable[..., Any]

# More of them in flight evict each other from the caches; it takes more only where few batches
# have to keep many threads busy.
DECODED_AT_ONCE = 10

MOST_UNROLLED = 256


@dataclasses.dataclass(frozen=True)
class Jpegs:
    """Encoded pictures of a batch.

    Attributes:
        keys: string [b]; a loop over the batch has one of them at a time.
        channels: 3 or 1.
    """

    keys: Any
    channels: int

    def whole(self, key: Any) -> Any:
        """One picture, uint8 [height, width, channels]."""
        return tf.io.decode_jpeg(key, channels=self.channels)

    def part(self, key: Any, part: Any, ratio: int) -> Any:
        """Of a picture at 1/`ratio` of its size the `part` (y, x, height, width; int32 [4])."""
        return tf.io.decode_and_crop_jpeg(key, part, channels=self.channels, ratio=ratio)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Pictures of a batch that were decoded before: rows of one tensor.

    Attributes:
        pixels: uint8 [rows, height, width, channels].
        keys: int64 [b], numbers of rows.
    """

    pixels: Any
    keys: Any

    def whole(self, key: Any) -> Any:
        """As `Jpegs` has it."""
        return self.pixels[key]

    def part(self, key: Any, part: Any, ratio: int) -> Any:
        """As `Jpegs` has it, but float32: averaged over the pixels that are left out."""
        y, x, height, width = tf.unstack(tf.cast(part, tf.int64) * ratio)
        _, rows, columns, channels = self.pixels.shape
        size = [1, tf.minimum(height, rows - y), tf.minimum(width, columns - x), channels]
        pixels = tf.cast(tf.slice(self.pixels, [key, y, x, 0], size), tf.float32)
        pixels = tf.ensure_shape(pixels, (1, None, None, channels))
        if ratio > 1:
            pixels = tf.nn.avg_pool2d(pixels, ratio, ratio, "SAME")
        return pixels[0]


def fit_inside(image: tf.Tensor, size: tuple[int, int], crop: float = 1.0) -> tf.Tensor:
    """The largest centred part of `image` with the aspect of `size`, resized to it.

    Bilinear with antialiasing; pixels are rounded to the nearest integer. A part that
    already has this size passes unchanged. uint8 [height, width, channels], any size → uint8
    [*size, channels].

    Args:
        crop: Share of the part's sides that is kept around the centre, before resizing. 0.875
            with 224 px is what resizing the shortest side to 256 px, then cropping 224 px keeps.
    """
    height_px, width_px = size
    shape = tf.shape(image)

    def crop_and_resize() -> tf.Tensor:
        # The part's sides in whole pixels, at least one: cross-multiplied, so that a picture
        # of the same aspect is kept whole.
        part_height = tf.minimum(shape[0], tf.maximum(1, _ratio(shape[1], height_px, width_px)))
        part_width = tf.minimum(shape[1], tf.maximum(1, _ratio(shape[0], width_px, height_px)))
        if crop < 1:
            part_height, part_width = _share(part_height, crop), _share(part_width, crop)
        part = tf.image.crop_to_bounding_box(
            image,
            (shape[0] - part_height) // 2,
            (shape[1] - part_width) // 2,
            part_height,
            part_width,
        )
        resized = tf.image.resize(part, size, method="bilinear", antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)

    if crop < 1:
        fitted = crop_and_resize()
    else:
        same = tf.reduce_all(tf.equal(shape[:2], size))
        fitted = tf.cond(same, lambda: image, crop_and_resize)
    return tf.ensure_shape(fitted, (height_px, width_px, image.shape[2]))


def batch_pictures(image: ImageSpec, size: tuple[int, int], crop: float = 1.0) -> Pictures:
    """A function that decodes a batch of JPEGs, or picks `Rows`, for `tf.data.Dataset.map`.

    Its pictures have this `size`, and of each the share `crop` as in `fit_inside`; positions change
    nothing.
    """
    exact = crop == 1 and not image.varies and image.size == size

    def pictures(stored: Any, position: Any, at_once: int = DECODED_AT_ONCE) -> Any:
        if exact and isinstance(stored, Rows):
            return tf.gather(stored.pixels, stored.keys)
        source = stored if isinstance(stored, Rows) else Jpegs(stored, image.channels)

        def decode_one(key: Any) -> Any:
            pixels = source.whole(key)
            if exact:
                return tf.ensure_shape(pixels, (*size, None))
            return fit_inside(pixels, size, crop)

        count = source.keys.shape[0]
        # A loop costs some 5 % of decoding; a short one is written out instead.
        if exact and count is not None and 0 < count <= MOST_UNROLLED:
            return tf.stack([decode_one(one) for one in tf.unstack(source.keys)])
        return tf.map_fn(
            decode_one,
            source.keys,
            parallel_iterations=at_once,
            fn_output_signature=tf.TensorSpec((*size, image.channels), tf.uint8),
        )

    return pictures


def _share(side: tf.Tensor, share: float) -> tf.Tensor:
    """`side` × `share`, rounded to the nearest integer, at least 1, int32."""
    return tf.maximum(1, tf.cast(tf.round(tf.cast(side, tf.float64) * share), tf.int32))


def _ratio(side: tf.Tensor, numerator: int, denominator: int) -> tf.Tensor:
    """`side` × `numerator` / `denominator`, rounded to the nearest integer, int32."""
    scaled = tf.cast(side, tf.int64) * numerator * 2 + denominator
    return tf.cast(scaled // (2 * denominator), tf.int32)
