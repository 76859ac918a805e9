"""Opens the encoded pictures of records, and reads the markers of a JPEG or the parts of a PNG."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import random
import re
import struct
import zlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

# Start of frame. C4, C8 and CC mark tables or are reserved (ITU-T T.81, table B.1).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Baseline, extended sequential and progressive frames hold DCT blocks in Huffman codes, which
# Pillow can decode at a fraction of their size.
_SCALABLE_FRAMES = (0xC0, 0xC1, 0xC2)
_START_OF_SCAN = 0xDA
_LEAST_SCAN_HEADER_BYTES = 6
_END = b"\xff\xd9"
# The marker that ends a scan's data; FF 00 and restart markers belong to the data.
_NEXT_MARKER = re.compile(rb"\xff\xff*[^\x00\xff\xd0-\xd7]")
# Enough noise to fill the last row of blocks up to its visible part.
_NOISE_BYTES = 512
_STRIP_PX = 256
# A stuffed zero byte, TEM, the restart markers, and the start and end of the image.
_WITHOUT_LENGTH = (0x00, 0x01, *range(0xD0, 0xDA))

_PNG = b"\x89PNG\r\n\x1a\n"
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
"""Formats that the trainer decodes, by Pillow's names."""
# TensorFlow decodes no larger JPEG or PNG in colour, and Pillow opens no larger picture.
MAX_PIXELS = 2**29 // 3


def segments(jpeg: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields (marker, begin, end) for each segment of a JPEG: its type and its content."""
    at = 2
    # `find` also skips the compressed data of a scan, which follow the segment of the scan.
    while (at := jpeg.find(b"\xff", at)) >= 0 and len(jpeg) >= at + 4:
        marker = jpeg[at + 1]
        if marker == 0xFF:  # Any number of fill bytes may precede a marker.
            at += 1
        elif marker in _WITHOUT_LENGTH:
            at += 2
        else:
            begin, at = at + 4, at + 2 + (jpeg[at + 2] << 8) + jpeg[at + 3]
            yield marker, begin, at


def can_draft(data: bytes) -> bool:
    """Returns whether Pillow's `draft` may decode a JPEG at a fraction of its size."""
    # `draft` of Pillow 12.3 writes outside its memory for any other frame, for example lossless.
    return before_scan(data)[0]


def before_scan(data: bytes) -> tuple[bool, int]:
    """Returns `can_draft`, and the number of components in the first scan; 0 without a scan."""
    frames, components = [], 0
    for marker, begin, _ in segments(data):
        if marker in _FRAMES:
            frames.append(marker)
        elif marker == _START_OF_SCAN:
            components = next(iter(data[begin : begin + 1]), 0)
            break
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


def with_end(data: bytes, components: Collection[int]) -> bytes | None:
    """Returns the JPEG with an end marker behind its last scan; None if pixels are missing.

    Pillow could open, but not load `data`. Its frame header lists the ids `components`.

    Cameras that lose power, and tools that cut off a trailer, leave files without an end marker.
    libjpeg fills missing data with zeros, and Pillow suppresses the warning. So the picture is
    decoded several times with different noise behind its data. If data are missing, the decoder
    reads the noise and the pixels differ; otherwise the decoder never reads so far.
    """
    end = _end_of_scans(data, components)
    if end is None:
        return None
    picture = data[:end].rstrip(b"\xff")  # FF is the first half of a marker.
    try:
        pixels = _digest(picture + _END)
        is_whole = all(_digest(picture + tail) == pixels for tail in map(_noise, range(4)))
    except (OSError, SyntaxError, ValueError):
        return None
    return picture + _END if is_whole else None


def is_whole(data: bytes, components: Collection[int]) -> bool:
    """Returns whether the scans of a JPEG hold all bits, and nothing follows its end marker.

    Pillow could load `data`, whose frame header lists the ids `components`.
    """
    end = _end_of_scans(data, components)
    return end is not None and data[end:].lstrip(b"\xff") == _END[1:]


def _end_of_scans(data: bytes, components: Collection[int]) -> int | None:
    """Returns where the scans end that hold all bits of all coefficients; None if some are missing.

    A progressive JPEG without some of its scans decodes to a blurred picture and raises no error.
    """
    lowest_bits = {component: bytearray([0xFF] * 64) for component in components}
    for marker, start, begin in segments(data):
        header = data[start:begin] if marker == _START_OF_SCAN else b""
        if len(header) < _LEAST_SCAN_HEADER_BYTES:
            continue
        # The header lists the components, the first and last coefficient, and the lowest bit that
        # the scan holds (ITU-T T.81, B.2.3).
        *ids, first, last, bits = header[1 : 1 + 2 * header[0] : 2] + header[-3:]
        for component in ids:
            if component in lowest_bits:
                count = last + 1 - first
                lowest_bits[component][first : last + 1] = bytes([bits & 0x0F]) * count
        if not any(map(any, lowest_bits.values())):
            found = _NEXT_MARKER.search(data, begin)
            return found.start() if found else len(data)
    return None


def _noise(seed: int) -> bytes:
    """Returns noise in the form of restart intervals, in case the picture uses them."""
    noise = bytes(random.Random(seed).choices(range(0xFF), k=_NOISE_BYTES))
    # A decoder skips an interval whose number is slightly ahead of the expected number, so the
    # numbers of odd seeds begin at 4 and not at 0.
    numbers = ((seed % 2 * 4 + n) % 8 for n in range(8))
    return b"".join(noise + bytes([0xFF, 0xD0 + number]) for number in numbers) + noise + _END


def _digest(jpeg: bytes) -> bytes:
    """Hashes a JPEG's pixels in strips, without a second copy of the whole picture."""
    from PIL import JpegImagePlugin

    image = JpegImagePlugin.JpegImageFile(io.BytesIO(jpeg))
    image.decodermaxblock = len(jpeg)
    image.load()
    digest = hashlib.sha256()
    for top in range(0, image.height, _STRIP_PX):
        bottom = min(top + _STRIP_PX, image.height)
        digest.update(image.crop((0, top, image.width, bottom)).tobytes())
    return digest.digest()
