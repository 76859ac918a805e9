"""Decodes the stored pictures of a batch, or takes them from a cache, as uint8 pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import tensorflow as tf

from trainer.augment.boxes import View
from trainer.augment.geometry import Window
from trainer.dataset.spec import ImageSpec

# More pictures at the same time exceed the processor's caches, so the reader decodes more only if
# few batches must keep many threads busy.
DECODED_AT_ONCE = 10
# The graph has a copy of the decoder for each picture of a batch up to this size.
MOST_UNROLLED = 256

_JPEG = b"\xff\xd8\xff"


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The functions that return the pictures of a batch, and the visible part of each picture.

    Both functions take encoded pictures, string [b], or `Rows`, and positions in the training
    stream, int64 [b].

    Attributes:
        decode: Returns pictures, uint8 [b, h, w, c]; also takes how many to decode in parallel.
        view: Returns a `View`; None if all of each picture is visible.
    """

    decode: Callable[[tf.Tensor | Rows, tf.Tensor | None, int], tf.Tensor]
    view: Callable[[tf.Tensor | Rows, tf.Tensor], View | None]

    def __call__(
        self, stored: tf.Tensor | Rows, position: tf.Tensor | None, at_once: int = DECODED_AT_ONCE
    ) -> tf.Tensor:
        return self.decode(stored, position, at_once)


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The encoded pictures of a batch: `keys`, string [b], and `image`, their formats and channels.

    A loop over the batch takes key by key.
    """

    keys: tf.Tensor
    image: ImageSpec

    def whole(self, key: tf.Tensor) -> tf.Tensor:
        """Decodes a picture, the first frame of an animation; uint8 [height, width, channels]."""
        if _is_simple(self.image):
            return tf.io.decode_jpeg(key, channels=self.image.channels)

        def webp() -> tf.Tensor:
            # `decode_image` refuses a WebP with transparent pixels, so the alpha channel is cut off
            # here.
            return decode_webp(key)[..., :3]

        def other() -> tf.Tensor:
            return tf.io.decode_image(key, channels=3, expand_animations=False)

        if "WEBP" in self.image.formats:
            pixels = tf.cond(tf.equal(tf.strings.substr(key, 8, 4), b"WEBP"), webp, other)
        else:
            pixels = other()
        pixels = tf.ensure_shape(pixels, (None, None, 3))
        return pixels if self.image.channels == 3 else tf.image.rgb_to_grayscale(pixels)

    def part(self, key: tf.Tensor, part: tf.Tensor, ratio: int) -> tf.Tensor:
        """Decodes `part` (y, x, height, width; int32 [4]) of a JPEG at 1/`ratio` of its size."""
        return tf.io.decode_and_crop_jpeg(key, part, channels=self.image.channels, ratio=ratio)

    def are_jpegs(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns whether pictures begin as a JPEG does; bool, in the shape of `keys`."""
        return tf.equal(tf.strings.substr(keys, 0, len(_JPEG)), _JPEG)

    def size(self, key: tf.Tensor) -> tf.Tensor:
        """Returns the height and width of a picture in pixels, float32 [2]."""

        def of_jpeg() -> tf.Tensor:
            return tf.io.extract_jpeg_shape(key)[:2]

        def of_other() -> tf.Tensor:
            return tf.shape(self.whole(key))[:2]

        is_jpeg = self.image.is_jpeg
        found = of_jpeg() if is_jpeg else tf.cond(self.are_jpegs(key), of_jpeg, of_other)
        return tf.cast(found, tf.float32)

    def sizes(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns heights and widths of the pictures in pixels, each float32 [b]."""
        if self.image.size and not self.image.varies:
            return _alike(self.keys, self.image.size)
        signature = tf.TensorSpec((2,), tf.float32)
        sizes = tf.map_fn(self.size, self.keys, fn_output_signature=signature)
        height, width = tf.unstack(sizes, axis=1)
        return height, width


@dataclasses.dataclass(frozen=True)
class Rows:
    """Decoded pictures of a batch: `keys`, int64 [b], are numbers of rows in `pixels`.

    `pixels` is uint8 [rows, height, width, channels].
    """

    pixels: tf.Tensor
    keys: tf.Tensor

    def whole(self, key: tf.Tensor) -> tf.Tensor:
        """Returns a picture, as `Encoded.whole` does."""
        return self.pixels[key]

    def part(self, key: tf.Tensor, part: tf.Tensor, ratio: int) -> tf.Tensor:
        """Returns a part, as `Encoded.part` does, but float32 and averaged over `ratio` pixels."""
        y, x, height, width = tf.unstack(tf.cast(part, tf.int64) * ratio)
        _, rows, columns, channels = self.pixels.shape
        size = [1, tf.minimum(height, rows - y), tf.minimum(width, columns - x), channels]
        pixels = tf.cast(tf.slice(self.pixels, [key, y, x, 0], size), tf.float32)
        pixels = tf.ensure_shape(pixels, (1, None, None, channels))
        if ratio > 1:
            pixels = tf.nn.avg_pool2d(pixels, ratio, ratio, "SAME")
        return pixels[0]

    def sizes(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns heights and widths, as `Encoded.sizes` does."""
        return _alike(self.keys, self.pixels.shape[1:3])


def _alike(keys: tf.Tensor, size: Iterable[int]) -> tuple[tf.Tensor, tf.Tensor]:
    height, width = (tf.fill(tf.shape(keys), float(side)) for side in size)
    return height, width


def as_stored(stored: tf.Tensor | Rows, image: ImageSpec) -> Encoded | Rows:
    """Returns `Rows` unchanged, and strings as `Encoded` pictures."""
    return stored if isinstance(stored, Rows) else Encoded(stored, image)


def _is_simple(image: ImageSpec) -> bool:
    """Returns whether `decode_jpeg`, which also decodes PNGs, can decode all pictures."""
    return {*image.formats} <= {"JPEG", "PNG"}


def decode_webp(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes the first frame of a WebP, uint8 [height, width, 3 or 4].

    An animation without an alpha channel raises `tf.errors.InvalidArgumentError`.
    """
    # If no number of channels is given, TensorFlow 2.21 writes four channels of an animation into
    # memory for three. Byte 20 of an extended WebP ("VP8X") has the flag for an animation.
    has_flags = tf.equal(tf.strings.substr(encoded, 12, 4), b"VP8X")
    flags = tf.io.decode_raw(tf.strings.substr(encoded, 20, 1), tf.uint8)[0]
    pictures = tf.cond(
        has_flags & (tf.bitwise.bitwise_and(flags, 2) > 0),
        lambda: tf.io.decode_webp(encoded, channels=4),
        lambda: tf.io.decode_webp(encoded),
    )
    return pictures[0]


def fit_inside(image: tf.Tensor, size: tuple[int, int], crop: float = 1.0) -> tf.Tensor:
    """Resizes the largest centred part of `image` with the aspect of `size` to `size`, bilinearly.

    `image` is uint8 [height, width, channels] of any size; the result is uint8 [*size, channels],
    antialiased, and rounded to the nearest integer. A part of this size stays unchanged. `crop` is
    the share of the part's sides to keep around the centre: 0.875 with 224 px gives the same as
    resizing the shortest side to 256 px and cropping 224 px.
    """
    shape = tf.shape(image)

    def crop_and_resize() -> tf.Tensor:
        part = tf.image.crop_to_bounding_box(image, *_central_part(shape[0], shape[1], size, crop))
        resized = tf.image.resize(part, size, method="bilinear", antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)

    same = tf.reduce_all(tf.equal(shape[:2], size))
    fitted = crop_and_resize() if crop < 1 else tf.cond(same, lambda: image, crop_and_resize)
    return tf.ensure_shape(fitted, (*size, image.shape[2]))


def _central_part(
    height: tf.Tensor, width: tf.Tensor, size: tuple[int, int], crop: float
) -> tuple[tf.Tensor, ...]:
    """Returns the part that `fit_inside` keeps: y, x, height, width in pixels, int32."""
    height_px, width_px = size
    # Integers are multiplied across, without a rounded quotient, so that a picture of the same
    # aspect is kept whole.
    part_height = tf.minimum(height, tf.maximum(1, _ratio(width, height_px, width_px)))
    part_width = tf.minimum(width, tf.maximum(1, _ratio(height, width_px, height_px)))
    if crop < 1:
        part_height, part_width = _share(part_height, crop), _share(part_width, crop)
    return (height - part_height) // 2, (width - part_width) // 2, part_height, part_width


def batch_pictures(image: ImageSpec, size: tuple[int, int], crop: float = 1.0) -> Pictures:
    """Returns the functions that decode a batch, or pick `Rows`, without augmentation.

    All pictures are resized to `size` by `fit_inside` with `crop`; positions change nothing.
    """
    # Pictures that are stored in the model's size need no resizing.
    exact = crop == 1 and not image.varies and image.size == size

    def decode(stored: tf.Tensor | Rows, position: tf.Tensor | None, at_once: int) -> tf.Tensor:
        if exact and isinstance(stored, Rows):
            return tf.gather(stored.pixels, stored.keys)
        source = as_stored(stored, image)

        def decode_one(key: tf.Tensor) -> tf.Tensor:
            pixels = source.whole(key)
            if exact:
                return tf.ensure_shape(pixels, (*size, None))
            return fit_inside(pixels, size, crop)

        count = source.keys.shape[0]
        # A loop costs about 5 % of decoding, so the graph repeats its body for short batches.
        if exact and count is not None and 0 < count <= MOST_UNROLLED and _is_simple(image):
            return tf.stack([decode_one(one) for one in tf.unstack(source.keys)])
        return tf.map_fn(
            decode_one,
            source.keys,
            parallel_iterations=at_once,
            fn_output_signature=tf.TensorSpec((*size, image.channels), tf.uint8),
        )

    def view(stored: tf.Tensor | Rows, position: tf.Tensor) -> View | None:
        if exact:
            return None
        height, width = as_stored(stored, image).sizes()
        part = _central_part(tf.cast(height, tf.int32), tf.cast(width, tf.int32), size, crop)
        return View(Window(*(tf.cast(side, tf.float32) for side in part)), height, width)

    return Pictures(decode, view)


def _share(side: tf.Tensor, share: float) -> tf.Tensor:
    """Returns `side` × `share`, rounded to the nearest integer, at least 1, int32."""
    return tf.maximum(1, tf.cast(tf.round(tf.cast(side, tf.float64) * share), tf.int32))


def _ratio(side: tf.Tensor, numerator: int, denominator: int) -> tf.Tensor:
    """Returns `side` × `numerator` / `denominator`, rounded to the nearest integer, int32."""
    scaled = tf.cast(side, tf.int64) * numerator * 2 + denominator
    return tf.cast(scaled // (2 * denominator), tf.int32)
