"""What is stored of a batch, encoded pictures or decoded ones → uint8 pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.dataset.spec import ImageSpec

# (encoded pictures, string [b], or `Rows`; positions in the training stream, int64 [b]; optionally
# how many are decoded at the same time) → uint8 [b, h, w, c].
Pictures = Callable[..., Any]

# More of them in flight evict each other from the caches; it takes more only where few batches
# have to keep many threads busy.
DECODED_AT_ONCE = 10

MOST_UNROLLED = 256

_JPEG = b"\xff\xd8\xff"


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Encoded pictures of a batch.

    Attributes:
        keys: string [b]; a loop over the batch has one of them at a time.
        image: What is known of them: their formats and channels.
    """

    keys: Any
    image: ImageSpec

    def whole(self, key: Any) -> Any:
        """Decodes one picture, of an animation the first; uint8 [height, width, channels]."""
        if _is_simple(self.image):
            return tf.io.decode_jpeg(key, channels=self.image.channels)

        def webp() -> Any:
            # `decode_image` refuses a WebP with transparent pixels.
            return decode_webp(key)[..., :3]

        def other() -> Any:
            return tf.io.decode_image(key, channels=3, expand_animations=False)

        if "WEBP" in self.image.formats:
            pixels = tf.cond(tf.equal(tf.strings.substr(key, 8, 4), b"WEBP"), webp, other)
        else:
            pixels = other()
        pixels = tf.ensure_shape(pixels, (None, None, 3))
        return pixels if self.image.channels == 3 else tf.image.rgb_to_grayscale(pixels)

    def part(self, key: Any, part: Any, ratio: int) -> Any:
        """Of a JPEG at 1/`ratio` of its size the `part` (y, x, height, width; int32 [4])."""
        return tf.io.decode_and_crop_jpeg(key, part, channels=self.image.channels, ratio=ratio)

    def are_jpegs(self, keys: Any) -> Any:
        """Whether pictures begin as a JPEG does; bool, in the shape of `keys`."""
        return tf.equal(tf.strings.substr(keys, 0, len(_JPEG)), _JPEG)

    def size(self, key: Any) -> Any:
        """Measures one picture: height and width in pixels, float32 [2]."""

        def of_jpeg() -> Any:
            return tf.io.extract_jpeg_shape(key)[:2]

        def of_other() -> Any:
            return tf.shape(self.whole(key))[:2]

        is_jpeg = self.image.is_jpeg
        found = of_jpeg() if is_jpeg else tf.cond(self.are_jpegs(key), of_jpeg, of_other)
        return tf.cast(found, tf.float32)


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
        """Returns one picture, as `Encoded.whole` does."""
        return self.pixels[key]

    def part(self, key: Any, part: Any, ratio: int) -> Any:
        """Returns a part, as `Encoded.part` does, but float32 and averaged over `ratio` pixels."""
        y, x, height, width = tf.unstack(tf.cast(part, tf.int64) * ratio)
        _, rows, columns, channels = self.pixels.shape
        size = [1, tf.minimum(height, rows - y), tf.minimum(width, columns - x), channels]
        pixels = tf.cast(tf.slice(self.pixels, [key, y, x, 0], size), tf.float32)
        pixels = tf.ensure_shape(pixels, (1, None, None, channels))
        if ratio > 1:
            pixels = tf.nn.avg_pool2d(pixels, ratio, ratio, "SAME")
        return pixels[0]


def _is_simple(image: ImageSpec) -> bool:
    """Whether `decode_jpeg`, which decodes PNGs, too, is enough for all pictures."""
    return {*image.formats} <= {"JPEG", "PNG"}


def decode_webp(encoded: Any) -> Any:
    """Decodes the first picture of a WebP, uint8 [height, width, 3 or 4].

    An animation needs an alpha channel, else this raises `tf.errors.InvalidArgumentError`: where no
    number of channels is asked for, TensorFlow 2.21 writes four into memory for three.
    """
    has_flags = tf.equal(tf.strings.substr(encoded, 12, 4), b"VP8X")
    flags = tf.io.decode_raw(tf.strings.substr(encoded, 20, 1), tf.uint8)[0]
    pictures = tf.cond(
        has_flags & (tf.bitwise.bitwise_and(flags, 2) > 0),
        lambda: tf.io.decode_webp(encoded, channels=4),
        lambda: tf.io.decode_webp(encoded),
    )
    return pictures[0]


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

    same = tf.reduce_all(tf.equal(shape[:2], size))
    fitted = crop_and_resize() if crop < 1 else tf.cond(same, lambda: image, crop_and_resize)
    return tf.ensure_shape(fitted, (height_px, width_px, image.shape[2]))


def batch_pictures(image: ImageSpec, size: tuple[int, int], crop: float = 1.0) -> Pictures:
    """A function that decodes a batch, or picks `Rows`, for `tf.data.Dataset.map`.

    Its pictures have this `size`, and of each the share `crop` as in `fit_inside`; positions change
    nothing.
    """
    exact = crop == 1 and not image.varies and image.size == size

    def pictures(stored: Any, position: Any, at_once: int = DECODED_AT_ONCE) -> Any:
        if exact and isinstance(stored, Rows):
            return tf.gather(stored.pixels, stored.keys)
        source = stored if isinstance(stored, Rows) else Encoded(stored, image)

        def decode_one(key: Any) -> Any:
            pixels = source.whole(key)
            if exact:
                return tf.ensure_shape(pixels, (*size, None))
            return fit_inside(pixels, size, crop)

        count = source.keys.shape[0]
        # A loop costs some 5 % of decoding; a short one is written out instead.
        if exact and count is not None and 0 < count <= MOST_UNROLLED and _is_simple(image):
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
