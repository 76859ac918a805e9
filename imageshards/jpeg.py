"""Encoded pictures of records: how they are opened, and what a JPEG's markers say."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

# Start of frame: C4, C8 and CC in between are tables and a reserved marker (ITU-T T.81, table B.1).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Baseline, extended sequential and progressive: pictures made of DCT blocks, in Huffman codes.
_SCALABLE_FRAMES = (0xC0, 0xC1, 0xC2)
START_OF_SCAN = 0xDA
_WITHOUT_LENGTH = (0x00, 0x01, *range(0xD0, 0xDA))

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
"""Formats that the trainer decodes, by Pillow's names."""
# TensorFlow decodes no larger JPEG or PNG in colour, and Pillow opens no larger picture.
MAX_PIXELS = 2**29 // 3


def segments(jpeg: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields each marker of a JPEG that has a content, where the content begins, and where it ends.

    The data of a scan, which follow its segment, are passed over as all other bytes are.
    """
    at = 2
    while (at := jpeg.find(b"\xff", at)) >= 0 and len(jpeg) >= at + 4:
        marker = jpeg[at + 1]
        if marker == 0xFF:  # any number of them may stand before a marker
            at += 1
        elif marker in _WITHOUT_LENGTH:
            at += 2
        else:
            begin, at = at + 4, at + 2 + (jpeg[at + 2] << 8) + jpeg[at + 3]
            yield marker, begin, at


def can_draft(data: bytes) -> bool:
    """Whether a JPEG may be decoded at a fraction of its size, by `draft` of Pillow.

    Where it is of another kind (lossless, for one) Pillow 12.3 writes outside of its memory.
    """
    return before_scan(data)[0]


def before_scan(data: bytes) -> tuple[bool, int]:
    """`can_draft`, and the number of components of a JPEG's first scan; 0 where there is none."""
    frames, components = [], 0
    for marker, begin, _ in segments(data):
        if marker in _FRAMES:
            frames.append(marker)
        elif marker == START_OF_SCAN:
            components = next(iter(data[begin : begin + 1]), 0)
            break
    return bool(frames) and all(frame in _SCALABLE_FRAMES for frame in frames), components


# What Pillow raises while it decodes damaged pictures. MemoryError is one of them: a damaged header
# may ask for any amount.
DECODE_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    EOFError,
    MemoryError,
    RuntimeError,
    struct.error,
    zlib.error,
)


class TooManyPixelsError(ValueError):
    """A picture that would take too much memory when it is decoded."""


def open_picture(data: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Opens a picture of a record, one of `FORMATS`, and reads its header.

    Raises:
        TooManyPixelsError: The header says more than `max_pixels` pixels.
        OSError, ValueError: The picture is damaged or of another format.
    """
    from PIL import Image, JpegImagePlugin

    # `Image.open` would read all pictures of an MPO, and warn about large JPEGs.
    is_jpeg = data.startswith(b"\xff\xd8")
    opener = (
        JpegImagePlugin.JpegImageFile if is_jpeg else functools.partial(Image.open, formats=FORMATS)
    )
    try:
        picture: Image.Image = opener(io.BytesIO(data))
    except Image.DecompressionBombError as e:
        raise TooManyPixelsError(f"more than {MAX_PIXELS:,} pixels") from e
    except SyntaxError as e:
        raise ValueError(str(e)) from e
    width, height = picture.size
    if width * height > max_pixels:
        raise TooManyPixelsError(f"{width}x{height} pixels")
    return picture


def is_animated(picture: Image.Image) -> bool:
    """Returns whether more pictures follow the first."""
    return bool(getattr(picture, "is_animated", False))


def eight_bits(picture: Image.Image) -> Image.Image:
    """A picture of 16 bits a channel with its whole range in 8 bits, mode `L`; others as they are.

    Pillow's own conversion would clip: all values above 255 would be white.
    """
    if not picture.mode.startswith("I;16"):
        return picture
    # 65535 / 257 = 255: the whole range is kept.
    return picture.convert("I").point(lambda value: value * (1 / 257) + 0.5).convert("L")
