"""JPEGs without an end marker: the marker is added where no pixel is missing.

Cameras and phones that lose power, and tools that cut off a trailer, leave such files. libjpeg pads
missing data with zeros and warns, but Pillow passes no warning on. So the picture is decoded with
different noise behind its data. Where data are missing the decoder reads the noise, and the pixels
differ; where all are there it never gets so far.
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
# Behind the data of a scan; FF 00 and restart markers are among them.
_NEXT_MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")
# More than the last row of blocks needs before noise reaches one that can be seen.
_NOISE_BYTES = 512
_LEAST_SCAN_HEADER_BYTES = 6
_STRIP_PX = 256


def with_end(data: bytes, components: Collection[int]) -> bytes | None:
    """The JPEG up to the end of its last scan, with an end marker; None if pixels are missing.

    Args:
        data: A JPEG that Pillow could open and not load.
        components: The ids of the components in its frame.
    """
    end = _end_of_scans(data, components)
    if end is None:
        return None
    picture = data[:end].rstrip(b"\xff")  # half of a marker
    try:
        pixels = _digest(picture + _END)
        is_whole = all(_digest(picture + tail) == pixels for tail in map(_noise, range(4)))
    except (OSError, SyntaxError, ValueError):
        return None
    return picture + _END if is_whole else None


def _end_of_scans(data: bytes, components: Collection[int]) -> int | None:
    """Where the scans end that together have all bits of all coefficients; None if some lack.

    A progressive JPEG that lacks whole scans decodes without any complaint to a blurred picture.
    A scan header lists its components, first and last coefficient, and the lowest bit that it
    brings (ITU-T T.81, B.2.3).
    """
    lowest_bits = {component: bytearray([0xFF] * 64) for component in components}
    for marker, start, begin in segments(data):
        header = data[start:begin] if marker == START_OF_SCAN else b""
        if len(header) < _LEAST_SCAN_HEADER_BYTES:
            continue
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
    """Noise in the form of restart intervals, for a picture that lacks some of them.

    A decoder passes over an interval whose number is a little ahead of the expected one, so half of
    all seeds begin at 0 and half at 4.
    """
    noise = bytes(random.Random(seed).choices(range(0xFF), k=_NOISE_BYTES))
    numbers = ((seed % 2 * 4 + n) % 8 for n in range(8))
    return b"".join(noise + bytes([0xFF, 0xD0 + number]) for number in numbers) + noise + _END


def _digest(jpeg: bytes) -> bytes:
    """A hash of a JPEG's pixels, without a second copy of all of them."""
    image = JpegImagePlugin.JpegImageFile(io.BytesIO(jpeg))
    image.decodermaxblock = len(jpeg)
    image.load()
    digest = hashlib.sha256()
    for top in range(0, image.height, _STRIP_PX):
        bottom = min(top + _STRIP_PX, image.height)
        digest.update(image.crop((0, top, image.width, bottom)).tobytes())
    return digest.digest()
