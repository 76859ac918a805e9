"""Prepares picture files for a model inside a TensorFlow graph, as a build prepares photos.

A build turns a picture upright by its EXIF orientation, resizes it and compresses it to JPEG; then
the trainer's reader decodes it. The graph does the same. So training and serving differ only by
libjpeg and rounding, with these exceptions:

* TIFF, AVIF, HEIC, JPEGs that TensorFlow refuses, PNGs of less than 8 bits, BMPs of less than 24
  bits and animated WebPs without alpha are not decoded.
* ICC profiles are ignored, so colours are taken as sRGB.
* EXIF is read in JPEGs only, and transparency in PNG and WebP only.
* 4:2:2 chroma subsampling becomes 4:2:0.

`predict` uses the builder's functions instead of this module.

Pictures are resized with the same result as by Pillow in the builder. `tf.image.resize` takes no
crop in fractions of a pixel, and rounds only at the end, while Pillow rounds to 8 bits after each
axis. So this module calls the operation below `tf.image.resize`, once for each axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from imageshards.images.encode import DRAFT_MARGINS
from imageshards.images.geometry import ORIENTATION_TAG, TURNS
from imageshards.images.options import QUALITY, SUBSAMPLING, ImageOptions
from trainer.augment.decode import decode_webp

# Weights of ITU-R 601-2 luma in 16 bits, as in Pillow.
_LUMA = (19595, 38470, 7471)
_HEADER = b"Exif\0\0"
# EXIF is searched in this part of a file. Cameras write it first, at most behind one segment of up
# to 64 KiB, and the second picture of an MPO has EXIF, too.
_HEAD_BYTES = 1 << 17
_ENTRY_BYTES = 12
# A decoded file: its pixels as stored, uint8 [height, width, channels], at 1 / ratio of the full
# size; the ratio 1, 2, 4 or 8, float64; the EXIF orientation; the size of the upright picture.
_Decoded: TypeAlias = "tuple[tf.Tensor, tf.Tensor, tf.Tensor, tuple[tf.Tensor, tf.Tensor]]"
# Pillow's name of a filter → TensorFlow's.
_KERNELS = {"bicubic": "keyscubic", "bilinear": "triangle", "box": "box", "lanczos": "lanczos3"}


def record_jpeg(encoded: tf.Tensor, options: ImageOptions) -> tf.Tensor:
    """Converts an original file, string scalar, to the JPEG that a build would write."""
    is_jpeg = tf.equal(tf.strings.substr(encoded, 0, 2), b"\xff\xd8")

    def made() -> tf.Tensor:
        decoded = tf.cond(
            is_jpeg, lambda: _decode_jpeg(encoded, options), lambda: _decode_other(encoded, options)
        )
        return tf.io.encode_jpeg(
            _resized_upright(decoded, options),
            quality=options.quality or QUALITY,
            chroma_downsampling=(options.subsampling or SUBSAMPLING) != "4:4:4",
        )

    def kept() -> tf.Tensor:
        height, width, _ = tf.unstack(tf.io.extract_jpeg_shape(encoded))
        _check_pixels(height, width, options)
        return tf.identity(encoded)

    # Strings are on the CPU anyway, and a GPU multiplies matrices with fewer digits.
    with tf.device("CPU:0"):
        if not options.keeps_jpegs:
            return made()
        is_upright = tf.equal(orientation(encoded), 1)
        return tf.cond(is_jpeg & is_upright, kept, made)


def _decode_jpeg(encoded: tf.Tensor, options: ImageOptions) -> _Decoded:
    height, width, _ = tf.unstack(tf.io.extract_jpeg_shape(encoded))
    _check_pixels(height, width, options)
    turn = orientation(encoded)
    swap = turn >= 5  # These orientations exchange width and height.
    size = tf.where(swap, width, height), tf.where(swap, height, width)
    shrink = resize_geometry(*size, options).shrink
    # The index into the ratios, 0 for full size. The margins come in reverse, so that the largest
    # ratio with a sufficient margin comes last and stays.
    draft = tf.constant(0)
    for number, (ratio, margin) in reversed(list(enumerate(DRAFT_MARGINS, 1))):
        if options.filter != "nearest":
            draft = tf.where(shrink >= ratio * margin, number, draft)

    def decode(ratio: int) -> Callable[[], tf.Tensor]:
        # This is Pillow's inverse DCT; TensorFlow's default is less accurate.
        return lambda: tf.io.decode_jpeg(
            encoded, channels=options.channels, ratio=ratio, dct_method="INTEGER_ACCURATE"
        )

    ratios = [1, *(shrink for shrink, _ in DRAFT_MARGINS)]
    pixels = tf.switch_case(draft, [decode(ratio) for ratio in ratios])
    return pixels, tf.gather(tf.constant(ratios, tf.float64), draft), turn, size


def _decode_other(encoded: tf.Tensor, options: ImageOptions) -> _Decoded:
    """Decodes a picture that is no JPEG, and puts transparent parts on the background."""
    # Byte 24 of a PNG is its bit depth, and byte 28 of a BMP its bits per pixel.
    head = tf.strings.join([tf.strings.substr(encoded, 0, 29), bytes(29)])
    is_png = tf.equal(tf.strings.substr(head, 0, 4), b"\x89PNG")
    is_bmp = tf.equal(tf.strings.substr(head, 0, 2), b"BM")
    # TensorFlow takes palette indices, and levels of fewer bits, for levels of 0 to 255.
    bits = tf.io.decode_raw(tf.strings.substr(head, tf.where(is_png, 24, 28), 1), tf.uint8)[0]
    least = tf.where(is_png, 8, tf.where(is_bmp, 24, 0))
    few = "The picture has fewer bits of colour than TensorFlow decodes."
    tf.debugging.assert_greater_equal(tf.cast(bits, tf.int32), least, few)
    is_webp = tf.equal(tf.strings.substr(head, 8, 4), b"WEBP")

    layers = tf.case(
        [
            (is_png, lambda: tf.io.decode_png(encoded, channels=4)),
            # With 4 channels, TensorFlow would refuse a file without transparency.
            (is_webp, lambda: _with_alpha(decode_webp(encoded))),
        ],
        lambda: _with_alpha(tf.io.decode_image(encoded, channels=3, expand_animations=False)),
    )
    layers = tf.cast(tf.ensure_shape(layers, (None, None, 4)), tf.float32)
    height, width = tf.unstack(tf.shape(layers)[:2])
    _check_pixels(height, width, options)
    below = tf.constant(options.background, tf.float32)
    alpha = layers[..., 3:] / 255
    pixels = tf.cast(tf.round(layers[..., :3] * alpha + below * (1 - alpha)), tf.uint8)
    if options.channels == 1:
        pixels = _grey(pixels)
    return pixels, tf.constant(1.0, tf.float64), tf.constant(1), (height, width)


def _with_alpha(pixels: tf.Tensor) -> tf.Tensor:
    """Adds alpha where it is missing: uint8 [height, width, 3 or 4] → [height, width, 4]."""
    opaque = tf.fill(tf.concat([tf.shape(pixels)[:2], [1]], 0), tf.constant(255, tf.uint8))
    return tf.concat([pixels, opaque], -1)[..., :4]


def _resized_upright(decoded: _Decoded, options: ImageOptions) -> tf.Tensor:
    """Resizes the stored pixels, turns them upright, and puts them on the canvas."""
    pixels, ratio, turn, full_size = decoded
    pixels = tf.ensure_shape(pixels, (None, None, options.channels))
    geometry = resize_geometry(*full_size, options)
    swap = turn >= 5
    # The kept part is centred, so mirroring does not move it, and only the axes are swapped.
    left, top, right, bottom = (
        tf.where(swap, geometry.crop[other], geometry.crop[own]) / ratio
        for own, other in ((0, 1), (1, 0), (2, 3), (3, 2))
    )
    height, width = (tf.cast(side, tf.float64) for side in tf.unstack(tf.shape(pixels)[:2]))
    # The decoder rounds up a size that `ratio` does not divide.
    box = (left, top, tf.minimum(right, width), tf.minimum(bottom, height))
    size = (
        tf.where(swap, geometry.content[1], geometry.content[0]),
        tf.where(swap, geometry.content[0], geometry.content[1]),
    )
    content = upright(resize(pixels, size, box, options.filter), turn)
    if options.resize_mode != "pad":
        return content
    ground = tf.constant([[options.background]], tf.uint8)
    if options.channels == 1:
        ground = _grey(ground)
    top, left = ((geometry.canvas[i] - geometry.content[i]) // 2 for i in (0, 1))
    bottom = geometry.canvas[0] - top - geometry.content[0]
    right = geometry.canvas[1] - left - geometry.content[1]
    # `tf.pad` fills with a single value, so the background is subtracted first and added again.
    ground = tf.cast(ground, tf.int32)
    around = tf.pad(tf.cast(content, tf.int32) - ground, [[top, bottom], [left, right], [0, 0]])
    return tf.cast(around + ground, tf.uint8)


def _grey(pixels: tf.Tensor) -> tf.Tensor:
    luma = tf.reduce_sum(tf.cast(pixels, tf.int32) * tf.constant(_LUMA), -1, keepdims=True)
    return tf.cast((luma + 0x8000) // 0x10000, tf.uint8)


def _check_pixels(height: tf.Tensor, width: tf.Tensor, options: ImageOptions) -> None:
    limit = options.max_pixels
    found = tf.cast(height, tf.int64) * tf.cast(width, tf.int64)
    message = f"The picture has more than {limit} pixels."
    tf.debugging.assert_less_equal(found, tf.constant(limit, tf.int64), message)


def orientation(encoded: tf.Tensor) -> tf.Tensor:
    """Returns the EXIF orientation of a JPEG, int32 scalar 1..8; 1 if it is missing or invalid."""
    # The layout of an EXIF block is TIFF 6.0, section 2. A slice beyond the end of a tensor is
    # empty and the number of no bytes is 0, so a broken block raises no error.
    parts = tf.strings.split(tf.strings.substr(encoded, 0, _HEAD_BYTES), _HEADER, maxsplit=1)
    values = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(parts[1:]), tf.uint8), tf.int64)
    little = tf.reduce_all(tf.equal(values[:2], ord("I")))

    def number(parts: tf.Tensor) -> tf.Tensor:
        """Returns the values of bytes along the last axis, in the byte order of the file."""
        big = 256 ** tf.reverse(tf.range(tf.shape(parts, tf.int64)[-1]), [0])
        return tf.reduce_sum(parts * tf.where(little, tf.reverse(big, [0]), big), -1)

    start = number(values[4:8]) + 2
    whole = tf.maximum((tf.size(values, tf.int64) - start) // _ENTRY_BYTES, 0)
    whole = tf.minimum(number(values[start - 2 : start]), whole)
    entries = tf.reshape(values[start : start + whole * _ENTRY_BYTES], (-1, _ENTRY_BYTES))
    entries = entries[tf.equal(number(entries[:, :2]), ORIENTATION_TAG)][:1]
    kind = number(entries[:, 2:4])
    as_byte, as_short, as_long = (number(entries[:, 8 : 8 + size]) for size in (1, 2, 4))
    value = tf.where(kind == 1, as_byte, tf.where(kind == 4, as_long, as_short))
    sensible = value[(value >= 1) & (value <= 8)]
    # The maximum of no values is the lowest integer, which becomes 1.
    return tf.cast(tf.maximum(tf.reduce_max(sensible), 1), tf.int32)


def upright(picture: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Turns a stored picture [height, width, channels] upright by its orientation, 1..8."""
    swap, mirror_x, mirror_y = tf.unstack(tf.gather(list(TURNS.values()), number - 1))
    picture = tf.cond(swap, lambda: tf.transpose(picture, (1, 0, 2)), lambda: picture)
    picture = tf.cond(mirror_x, lambda: tf.reverse(picture, [1]), lambda: picture)
    return tf.cond(mirror_y, lambda: tf.reverse(picture, [0]), lambda: picture)


class ResizeGeometry(NamedTuple):
    """The placement of an upright picture in the picture of a record, in pixels.

    Attributes:
        crop: `left, top, right, bottom` of the part that is kept.
        content: (height, width) of this part after resizing.
        canvas: (height, width) of the result.
    """

    crop: tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]
    content: tuple[tf.Tensor, tf.Tensor]
    canvas: tuple[tf.Tensor, tf.Tensor]

    @property
    def shrink(self) -> tf.Tensor:
        """Source pixels per output pixel, along the axis that shrinks less; float64."""
        left, top, right, bottom = self.crop
        height, width = (tf.cast(side, tf.float64) for side in self.content)
        return tf.minimum((right - left) / width, (bottom - top) / height)


def resize_geometry(height: tf.Tensor, width: tf.Tensor, options: ImageOptions) -> ResizeGeometry:
    """Returns the placement of an upright picture of `height` and `width`, int32 scalars."""
    target = (tf.constant(options.height_px), tf.constant(options.width_px))
    tall, wide = tf.cast(height, tf.float64), tf.cast(width, tf.float64)
    zero = tf.constant(0.0, tf.float64)
    whole = (zero, zero, wide, tall)
    if options.resize_mode == "crop":
        return _crop(tall, wide, options)
    if options.resize_mode == "pad":
        scale = tf.minimum(options.width_px / wide, options.height_px / tall)
        if options.only_shrink:
            scale = tf.minimum(scale, 1.0)
        sides = (tf.minimum(target[0], _rounded(tall * scale)),
                 tf.minimum(target[1], _rounded(wide * scale)))  # fmt: skip
        return ResizeGeometry(whole, sides, target)
    if options.resize_mode == "none":
        target = (height, width)
    elif options.resize_mode == "shortest":
        short = tf.minimum(tall, wide)
        side = tf.constant(options.height_px, tf.float64)
        side = tf.minimum(side, short) if options.only_shrink else side
        # The shortest side becomes exactly `side`: side * short / short has no rounding error.
        target = (_rounded(tall * side / short), _rounded(wide * side / short))
    elif options.only_shrink:
        target = (tf.minimum(target[0], height), tf.minimum(target[1], width))
    return ResizeGeometry(whole, target, target)


def _crop(tall: tf.Tensor, wide: tf.Tensor, options: ImageOptions) -> ResizeGeometry:
    height_px, width_px = options.height_px, options.width_px
    flat = width_px * tall >= height_px * wide
    kept_tall = tf.where(flat, wide * height_px / width_px, tall)
    kept_wide = tf.where(flat, wide, tall * width_px / height_px)
    left, top = (wide - kept_wide) / 2, (tall - kept_tall) / 2
    small = tf.logical_and(options.only_shrink, kept_wide < width_px)
    size = (
        tf.where(small, _rounded(kept_tall), height_px),
        tf.where(small, _rounded(kept_wide), width_px),
    )
    return ResizeGeometry((left, top, wide - left, tall - top), size, size)


def _rounded(length: tf.Tensor) -> tf.Tensor:
    """Rounds to the nearest whole number of pixels, halves up, at least one."""
    return tf.maximum(1, tf.cast(tf.floor(length + 0.5), tf.int32))


def resize(
    picture: tf.Tensor, size: tuple[tf.Tensor, tf.Tensor], box: tuple[tf.Tensor, ...], name: str
) -> tf.Tensor:
    """Resizes a part of a picture like Pillow's `Image.resize(size, name, box)`.

    With `bicubic`, `bilinear` and `lanczos` a pixel in a thousand differs by one grey level, with
    `nearest` none. The filter `box` splits a pixel on the edge of two results between both.

    Args:
        picture: uint8 [height, width, channels], with a static number of channels.
        size: (height, width) of the result.
        box: `left, top, right, bottom` inside the picture, which may have fractions.
        name: Pillow's name of the filter.
    """
    left, top, right, bottom = box
    if name == "nearest":
        columns = tf.gather(picture, _nearest(tf.shape(picture)[1], size[1], left, right), axis=1)
        return tf.gather(columns, _nearest(tf.shape(picture)[0], size[0], top, bottom))
    columns = _resampled(picture[None], 1, size[1], left, right, _KERNELS[name])
    rows = _resampled(columns, 0, size[0], top, bottom, _KERNELS[name])
    return tf.cast(rows[0], tf.uint8)


def _resampled(
    images: tf.Tensor, axis: int, count: tf.Tensor, low: tf.Tensor, high: tf.Tensor, kernel: str
) -> tf.Tensor:
    """Resizes [1, height, width, channels] to `count` pixels along one axis, in whole levels."""
    along = tf.equal(tf.range(2), axis)
    scale = tf.cast(count, tf.float64) / (high - low)
    found = tf.raw_ops.ScaleAndTranslate(
        images=images,
        size=tf.where(along, count, tf.shape(images)[1:3]),
        scale=tf.where(along, tf.cast(scale, tf.float32), 1.0),
        translation=tf.where(along, tf.cast(-low * scale, tf.float32), 0.0),
        kernel_type=kernel,
        antialias=True,
    )
    # Pillow rounds halves up, while tf.round would round them to even.
    return tf.clip_by_value(tf.floor(found + 0.5), 0, 255)


def _nearest(num_in: tf.Tensor, num_out: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    # Pillow adds up steps, too: if a centre falls between two pixels, rounding decides.
    step = (high - low) / tf.cast(num_out, tf.float64)
    steps = tf.concat([[low + step * 0.5], tf.fill([num_out - 1], step)], 0)
    return tf.minimum(tf.cast(tf.cumsum(steps), tf.int32), num_in - 1)
