"""The one EXIF tag that moves pixels.

Pillow's reader parses every tag, which takes longer and warns about what cameras get wrong.
"""

from __future__ import annotations

import struct

ORIENTATION_TAG = 0x0112


def known_orientation(orientation: object) -> int:
    """`orientation` where it is one of the eight, else 1: as stored."""
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def exif_orientation(exif: bytes) -> int:
    """The orientation tag of an EXIF block; 1 where there is none or it makes no sense.

    Only the one tag is looked for: the layout is that of a TIFF's first directory
    (TIFF 6.0, section 2), the tag 0x0112 of Exif 2.32.
    """
    start = 6 if exif.startswith(b"Exif\0\0") else 0
    order = {b"II": "<", b"MM": ">"}.get(exif[start : start + 2])
    if order is None:
        return 1
    try:
        directory = start + struct.unpack_from(order + "L", exif, start + 4)[0]
        count = struct.unpack_from(order + "H", exif, directory)[0]
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(order + "HH", exif, entry)
            if tag == ORIENTATION_TAG:
                value = {1: "B", 3: "H", 4: "L"}.get(kind, "H")
                return known_orientation(struct.unpack_from(order + value, exif, entry + 8)[0])
    except struct.error:
        pass
    return 1
