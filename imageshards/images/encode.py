"""Turns a picture file of any common format into the JPEG of a record, with Pillow only."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import operator
import time
from typing import Any

from PIL import Image

from imageshards.errors import ImageError
from imageshards.images import geometry
from imageshards.images.decode import Source, load_pixels, open_source, to_srgb
from imageshards.images.geometry import BoxTransform, CanvasLayout
from imageshards.images.options import QUALITY, SUBSAMPLING, ImageOptions
from imageshards.jpeg import is_whole

# A JPEG is decoded at 1/8, 1/4 or 1/2 while each output pixel still gets at least this many decoded
# pixels along each axis, so that the chosen filter does the antialiasing. Lowest PSNR against full
# decoding (in brackets: of JPEG at quality 90 alone): 45 dB (36) on 12-megapixel photos at 1/8; on
# 500-pixel photos with fine texture 38 dB (28) at 1/2 and 1/4, and 32 dB (27) at 1/8, which leaves
# less than 50 pixels. At 1/8 the decoder needs no inverse DCT, so a margin of 2.0 there would cost
# large photos half as much time again.
DRAFT_MARGINS = ((8, 1.4), (4, 2.0), (2, 2.0))

# Notes about a JPEG that needs no change.
_HARMLESS = {"progressive", "grey", "icc_srgb"}
_MAX_SIDE_PX = 65500  # libjpeg's JPEG_MAX_DIMENSION
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
_SQUARES = tuple(value * value for value in range(256))

# The steps of `geometry.TURNS`.
_STEPS = (
    Image.Transpose.TRANSPOSE,
    Image.Transpose.FLIP_LEFT_RIGHT,
    Image.Transpose.FLIP_TOP_BOTTOM,
)

ChannelSums = tuple[int, int, int]
"""Number of pixels in a channel, sum of their values, 0..255, and sum of the squares."""


@dataclasses.dataclass(frozen=True)
class EncodedImage:
    """The picture of a record.

    Attributes:
        data: JPEG without EXIF, ICC profile or comment; or the original itself, if the options
            keep JPEGs and this JPEG needs no change.
        height_px, width_px: Size of the JPEG.
        channels: 3 or 1.
        colorspace: `RGB` or `Grayscale`.
        source_format: Pillow's name: `JPEG`, `MPO`, `PNG`, `WEBP`, `AVIF`, `HEIF`, `GIF`, `BMP`,
            `TIFF`.
        notes: Normalisations, which a build counts: `exif_rotated`, `not_jpeg`, `cmyk`, `grey`,
            `palette`, `alpha`, `sixteen_bit`, `animated`, `icc_converted`, `icc_srgb`,
            `icc_broken`, `icc_profile_dropped`, `progressive`, `enlarged`, `damaged`.
        box_transform: The argument of `map_boxes` for this picture.
        pixel_sums: Sums for each channel, just before JPEG compression; None unless asked for.
        encode_ns: Time of JPEG compression.
    """

    data: bytes
    height_px: int
    width_px: int
    channels: int
    colorspace: str
    source_format: str
    notes: tuple[str, ...]
    box_transform: BoxTransform
    pixel_sums: tuple[ChannelSums, ...] | None = None
    encode_ns: int = dataclasses.field(default=0, compare=False)


def encode_image(data: bytes, options: ImageOptions, *, want_sums: bool = False) -> EncodedImage:
    """Decodes, turns upright, resizes and re-encodes one picture, or keeps a JPEG as it is.

    The result depends only on the arguments and on the versions of Pillow and the codecs.

    Args:
        data: A JPEG, MPO, PNG, WebP, AVIF, HEIC, GIF, BMP or TIFF file. Only its first picture
            is used.
        options: Size, mode and quality of the result.
        want_sums: Whether to fill `pixel_sums`.

    Raises:
        ImageError: The file is unusable, for a reason of `open_source`, `out_of_memory` or
            `output_too_large`. No bytes raise any other error.
    """
    source = open_source(data, options)
    width, height = source.image.size
    if not source.is_upright and geometry.swaps_axes(source.orientation):
        width, height = height, width
    layout = geometry.canvas_layout(width, height, options)
    # With `none` and `shortest` the size of the result depends on the source.
    (out_width, out_height), out_pixels = layout.canvas, math.prod(layout.canvas)
    follows_source = options.resize_mode in ("none", "shortest")
    if max(layout.canvas) > _MAX_SIDE_PX or (follows_source and out_pixels > options.max_pixels):
        raise ImageError(
            "output_too_large",
            f"The result would be {out_width}x{out_height} pixels; expected sides of at most "
            f"{_MAX_SIDE_PX} and at most {options.max_pixels} in all.",
        )
    encoded, encode_ns, picture = data, 0, None
    if _needs_no_change(source, options):
        picture = _decoded_whole(source, options, want_sums)
        source = source if picture else open_source(data, options)
    if picture is None:
        picture = _finish(_resized(source, layout, width, height, options), layout, options)
        if layout.shrink < 1 - 1e-9:
            source.notes.append("enlarged")
        begun_ns = time.monotonic_ns()
        encoded = _jpeg_of(picture, options)
        encode_ns = time.monotonic_ns() - begun_ns
    boxes_turn = source.orientation if options.bbox_frame == "stored" else 1
    return EncodedImage(
        data=encoded,
        height_px=out_height,
        width_px=out_width,
        channels=options.channels,
        colorspace="Grayscale" if options.colorspace == "grey" else "RGB",
        source_format=source.format,
        notes=tuple(source.notes),
        box_transform=geometry.box_transform(layout, width, height, boxes_turn),
        pixel_sums=_sums(picture) if want_sums else None,
        encode_ns=encode_ns,
    )


def _needs_no_change(source: Source, options: ImageOptions) -> bool:
    """Returns whether the header of a file is that of a JPEG which may become a record as it is."""
    return (
        options.keeps_jpegs
        and source.format == "JPEG"  # An MPO holds further pictures.
        and source.can_draft  # Few decoders read the other frames.
        and source.image.mode == ("L" if options.colorspace == "grey" else "RGB")
        and _HARMLESS.issuperset(source.notes)
    )


def _decoded_whole(source: Source, options: ImageOptions, want_sums: bool) -> Image.Image | None:
    """Decodes a JPEG, at a fraction of its size unless sums are wanted.

    Returns None if the JPEG is damaged, or if bytes follow its end marker.
    """
    components = [component for component, *_ in getattr(source.image, "layer", ())]
    # A decoder reads all data of a picture for an eighth of its size, too, in less time.
    grey, shrink = options.colorspace == "grey", 1 if want_sums else 8
    try:
        image = load_pixels(source, grey=grey, shrink=shrink)
    except ImageError:
        return None  # Decoding in full size says why.
    is_same = "damaged" not in source.notes and is_whole(source.jpeg, components)
    return image if is_same else None


def _jpeg_of(picture: Image.Image, options: ImageOptions) -> bytes:
    buffer = io.BytesIO()
    quality, subsampling = options.quality or QUALITY, options.subsampling or SUBSAMPLING
    picture.save(buffer, "JPEG", quality=quality, subsampling=subsampling)
    return buffer.getvalue()


def _resized(
    source: Source, layout: CanvasLayout, width: int, height: int, options: ImageOptions
) -> Image.Image:
    """Decodes and resizes the kept part of the source, and turns it upright."""
    # The turn comes last, because turning the small result takes almost no time.
    turn = 1 if source.is_upright else source.orientation
    # Decoding at a fraction of the size averages pixels, but `nearest` must keep their values.
    margins = DRAFT_MARGINS if source.can_draft and options.filter != "nearest" else ()
    shrink = next((some for some, margin in margins if layout.shrink >= some * margin), 1)
    image = load_pixels(source, grey=options.colorspace == "grey", shrink=shrink)
    left, top, right, bottom = geometry.to_stored(layout.crop, width, height, turn)
    # The size of a shrunk JPEG is rounded up, so its last pixel is covered only in part.
    right, bottom = min(right / shrink, image.width), min(bottom / shrink, image.height)
    box = (left / shrink, top / shrink, right, bottom)
    size = layout.content[::-1] if geometry.swaps_axes(turn) else layout.content
    if size != image.size or box != (0, 0, *image.size):
        image = image.resize(size, Image.Resampling[options.filter.upper()], box=box)
    if source.transform:
        # A conversion takes 40 ns per pixel, for CMYK 130 ns, and there are fewer pixels now. With
        # Adobe RGB, colours differ by 0.2 to 0.6 levels from a conversion before resizing, and by
        # up to 3 levels where many are outside sRGB, as they are mixed before they are clipped.
        image = to_srgb(image, source.transform)
    for is_taken, step in zip(geometry.TURNS[turn], _STEPS, strict=True):
        image = image.transpose(step) if is_taken else image
    return image


def _finish(image: Image.Image, layout: CanvasLayout, options: ImageOptions) -> Image.Image:
    """Fills transparent and padded parts with the background, and converts to the final mode."""
    mode = "L" if options.colorspace == "grey" else "RGB"
    if image.mode in ("LA", "RGBA"):
        below = Image.new("RGBA", image.size, (*options.background, 255))
        image = Image.alpha_composite(below, image.convert("RGBA"))
        image = image.convert("RGB")
    if image.mode != mode:
        image = image.convert(mode)
    if layout.content != layout.canvas:
        canvas = Image.new("RGB", layout.canvas, options.background).convert(mode)
        canvas.paste(image, layout.offset)
        return canvas
    return image


def sums_of_jpeg(data: Any) -> tuple[ChannelSums, ...]:
    """Returns the sums over the pixels of a record's JPEG; empty if it cannot be decoded."""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            return _sums(image)
    except (OSError, SyntaxError, TypeError, Image.DecompressionBombError):
        return ()


def _sums(image: Image.Image) -> tuple[ChannelSums, ...]:
    histogram = image.histogram()
    channels = [histogram[start : start + 256] for start in range(0, len(histogram), 256)]
    size = image.width * image.height
    weights = [range(256), _SQUARES]
    sums = ((sum(map(operator.mul, each, c)) for each in weights) for c in channels)
    return tuple((size, *both) for both in sums)


def tune_allocator() -> None:
    """Makes glibc keep the memory of one picture for the next; call this once in a process."""
    import ctypes  # Only a worker process needs it.

    # By default glibc returns the memory of large pictures to the kernel, which then faults it in
    # again, page by page. Without glibc this function does nothing.
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 64 << 20)
