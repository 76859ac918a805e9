"""Adds a missing end marker to JPEGs that lack no pixel.

Cameras that lose power, and tools that cut off a trailer, leave files without an end marker.
libjpeg fills missing data with zeros, and Pillow suppresses the warning. So this module decodes a
picture several times with different noise behind its data. If data are missing, the decoder reads
the noise and the pixels differ; otherwise the decoder never reads so far.
"""

from __future__ import annotations

import hashlib
import io
import random
import re
from collections.abc import Collection

from PIL import JpegImagePlugin

from imageshards.jpeg import START_OF_SCAN, segments

_END = b"\xff\xd9"
# The marker that ends a scan's data; FF 00 and restart markers belong to the data.
_NEXT_MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")
# Enough noise to fill the last row of blocks up to its visible part.
_NOISE_BYTES = 512
_LEAST_SCAN_HEADER_BYTES = 6
_STRIP_PX = 256


def with_end(data: bytes, components: Collection[int]) -> bytes | None:
    """Returns the JPEG with an end marker behind its last scan; None if pixels are missing.

    Pillow could open, but not load `data`. Its frame header lists the ids `components`.
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


def _end_of_scans(data: bytes, components: Collection[int]) -> int | None:
    """Returns where the scans end that hold all bits of all coefficients; None if some are missing.

    A progressive JPEG without some of its scans decodes to a blurred picture and raises no error.
    """
    lowest_bits = {component: bytearray([0xFF] * 64) for component in components}
    for marker, start, begin in segments(data):
        header = data[start:begin] if marker == START_OF_SCAN else b""
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
    image = JpegImagePlugin.JpegImageFile(io.BytesIO(jpeg))
    image.decodermaxblock = len(jpeg)
    image.load()
    digest = hashlib.sha256()
    for top in range(0, image.height, _STRIP_PX):
        bottom = min(top + _STRIP_PX, image.height)
        digest.update(image.crop((0, top, image.width, bottom)).tobytes())
    return digest.digest()
