"""What a JPEG's markers tell, and JPEGs opened without the limits of the whole process."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

# Start of frame: C4, C8 and CC in between are tables and a reserved marker (ITU-T T.81, table B.1).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Baseline, extended sequential and progressive: pictures made of DCT blocks, in Huffman codes.
_SCALABLE_FRAMES = (0xC0, 0xC1, 0xC2)
START_OF_SCAN = 0xDA
WITHOUT_LENGTH = (0x00, 0x01, *range(0xD0, 0xDA))


def can_draft(data: bytes) -> bool:
    """Whether a JPEG may be decoded at a fraction of its size, by `draft` of Pillow.

    Where it is of another kind (lossless, for one) Pillow 12.3 writes outside of its memory.
    """
    frames, at = [], 2
    while (at := data.find(b"\xff", at)) >= 0 and len(data) >= at + 4:  # others are passed over
        marker = data[at + 1]
        if marker == START_OF_SCAN:
            break
        if marker in _FRAMES:
            frames.append(marker)
        if marker == 0xFF:  # any number of them may stand before a marker
            at += 1
        elif marker in WITHOUT_LENGTH:
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return bool(frames) and all(frame in _SCALABLE_FRAMES for frame in frames)


def open_picture(data: bytes) -> Image.Image:
    """A picture of a record, opened by Pillow.

    Who wrote the data set has limited the size of its JPEGs: a large one is no decompression bomb
    here. Other formats keep the limit of `Image.MAX_IMAGE_PIXELS`, which is the whole process's.

    Raises:
        OSError, SyntaxError, ValueError: It is none.
    """
    from PIL import Image, JpegImagePlugin

    if data.startswith(b"\xff\xd8"):
        return JpegImagePlugin.JpegImageFile(io.BytesIO(data))
    try:
        return Image.open(io.BytesIO(data))
    except Image.DecompressionBombError as e:
        raise ValueError(str(e)) from e
