"""A fingerprint of what a picture shows, to find near duplicates: 64 bits that differ little.

The difference hash ("dHash") of Neal Krawetz, "Kind of Like That", 2013
(https://www.hackerfactor.com/blog/index.php?/archives/529-Kind-of-Like-That.html): the picture is
made 9x8 pixels small and grey, and each bit says whether a pixel is darker than its right
neighbour. Pictures that were resized or compressed anew differ in 0 to 6 bits, those of different
scenes in about 32.
"""

from __future__ import annotations

from PIL import Image

from imageshards.jpeg import can_draft, open_picture

_SIZE_PX = (9, 8)
# Eight points a side and cell. Averaging all 256x256 pixels takes five times as long and finds
# the same copies: on 200 photos that were halved, compressed at quality 30 or cropped by 2 %, the
# mean distances are 1.0, 0.8 and 3.6 bits, of all pixels 0.6, 0.5 and 4.3.
_SAMPLED_PX = (72, 64)
_LEFT_PIXELS = [9 * row + column for row in range(8) for column in range(8)]


def difference_hash(picture: Image.Image) -> int:
    """The difference hash of a picture, 0 to 2**64 - 1; takes about 40 us for any size.

    Args:
        picture: Upright, `RGB` or `L`. The bits go row by row from the top left, the first is the
            highest; `(a ^ b).bit_count()` is the distance of two hashes.
    """
    sampled = picture.resize(_SAMPLED_PX, Image.Resampling.NEAREST).convert("L")
    small = sampled.resize(_SIZE_PX, Image.Resampling.BILINEAR)
    pixels = small.tobytes()
    bits = ["1" if pixels[left] < pixels[left + 1] else "0" for left in _LEFT_PIXELS]
    return int("".join(bits), 2)


def hash_of_jpeg(encoded: object) -> int | None:
    """The difference hash of a record's picture; None where it cannot be decoded."""
    if not isinstance(encoded, bytes):
        return None
    try:
        with open_picture(encoded) as picture:
            if can_draft(encoded):
                picture.draft("RGB", _SAMPLED_PX)
            return difference_hash(picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError):
        return None
