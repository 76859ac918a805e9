"""Opens the encoded pictures of records, and reads the markers of a JPEG or the parts of a PNG."""

from __future__ import annotations

import contextlib
import functools
import io
import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

# Start of frame. C4, C8 and CC mark tables or are reserved (ITU-T T.81, table B.1).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Baseline, extended sequential and progressive frames hold DCT blocks in Huffman codes, which
# Pillow can decode at a fraction of their size.
_SCALABLE_FRAMES = (0xC0, 0xC1, 0xC2)
_START_OF_SCAN = 0xDA
# A stuffed zero byte, TEM, the restart markers, and the start and end of the image.
_WITHOUT_LENGTH = (0x00, 0x01, *range(0xD0, 0xDA))

_PNG = b"\x89PNG\r\n\x1a\n"
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
"""Formats that the trainer decodes, by Pillow's names."""
# TensorFlow decodes no larger JPEG or PNG in colour, and Pillow opens no larger picture.
MAX_PIXELS = 2**29 // 3


def can_draft(data: bytes) -> bool:
    """Returns whether Pillow's `draft` may decode a JPEG at a fraction of its size."""
    # `draft` of Pillow 12.3 writes outside its memory for any other frame, for example lossless.
    return before_scan(data)[0]


def before_scan(data: bytes) -> tuple[bool, int]:
    """Returns `can_draft`, and the number of components in the first scan; 0 without a scan."""
    frames, components, at = [], 0, 2
    while (at := data.find(b"\xff", at)) >= 0 and len(data) >= at + 4:
        marker = data[at + 1]
        if marker == _START_OF_SCAN:
            components = next(iter(data[at + 4 : at + 5]), 0)
            break
        if marker in _FRAMES:
            frames.append(marker)
        if marker == 0xFF:  # Any number of fill bytes may precede a marker.
            at += 1
        elif marker in _WITHOUT_LENGTH:
            at += 2
        else:
            at += 2 + (data[at + 2] << 8) + data[at + 3]
    return bool(frames) and all(frame in _SCALABLE_FRAMES for frame in frames), components


# Pillow raises any of these for a damaged picture. MemoryError is among them because a damaged
# header may ask for any amount of memory.
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


def open_picture(data: bytes) -> Image.Image:
    """Opens the picture of a record and reads its header, but does not decode its pixels.

    Raises:
        OSError, ValueError: The picture is damaged, its header says more than `MAX_PIXELS` pixels,
            or `FORMATS` lacks its format.
    """
    from PIL import Image, JpegImagePlugin

    # `Image.open` would read all pictures of an MPO file, and warn about large JPEGs.
    is_jpeg = data.startswith(b"\xff\xd8")
    opener = (
        JpegImagePlugin.JpegImageFile if is_jpeg else functools.partial(Image.open, formats=FORMATS)
    )
    try:
        picture: Image.Image = opener(io.BytesIO(plain_png(data)[0]))
    except (SyntaxError, Image.DecompressionBombError) as e:
        raise ValueError(str(e)) from e
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width}x{height} pixels; expected up to {MAX_PIXELS:,}")
    return picture


def plain_png(data: bytes, max_profile_bytes: int = 0) -> tuple[bytes, bytes]:
    """Returns a PNG without its texts and its ICC profile, and the profile; other files as given.

    Nothing here reads the texts, and Pillow refuses a PNG whose texts or profile are long. Of a
    longer profile the function returns `max_profile_bytes` + 1 bytes. The layout is section 5 of
    the PNG specification: each chunk has a length, a type, its content and a checksum.
    """
    if not data.startswith(_PNG):
        return data, b""
    kept, profile, at, kind = [_PNG], b"", len(_PNG), b""
    while kind != b"IEND" and at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        chunk = data[at : at + 12 + length]
        at += len(chunk)
        if kind == b"iCCP":
            with contextlib.suppress(zlib.error):
                packed = chunk[chunk.find(b"\0", 8) + 2 : -4]
                profile = zlib.decompressobj().decompress(packed, max_profile_bytes + 1)
        # An old way to store EXIF.
        elif kind not in (b"tEXt", b"zTXt", b"iTXt") or chunk.startswith(b"exif\0", 8):
            kept.append(chunk)
    return b"".join([*kept, data[at:]]), profile


def eight_bits(picture: Image.Image) -> Image.Image:
    """Scales a picture with 16 bits per channel to mode `L`; keeps any other."""
    if not picture.mode.startswith("I;16"):
        return picture
    # Pillow's own conversion would turn all values above 255 white. 65535 / 257 is 255.
    return picture.convert("I").point(lambda value: value * (1 / 257) + 0.5).convert("L")


def decoded(encoded: object, size: tuple[int, int]) -> Image.Image | None:
    """Returns a record's picture as RGB, no smaller than `size`; None if it cannot be decoded.

    The decoder of a JPEG halves a picture that is more than twice as large.
    """
    if not isinstance(encoded, bytes):
        return None
    try:
        with open_picture(encoded) as picture:
            if can_draft(encoded):
                picture.draft("RGB", size)
            return eight_bits(picture).convert("RGB")
    except DECODE_ERRORS:
        return None
