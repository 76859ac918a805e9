"""Damage that libjpeg only warns about, such as shifted strips and grey blocks.

Pillow keeps these warnings to itself and decodes what there is. The strict decoding of simplejpeg
tells of them; at an eighth of the size it does little but read the entropy-coded data.
"""

from __future__ import annotations

from imageshards.jpeg import can_draft

# How libjpeg's warnings begin that are about pixels; others are about odd headers.
_OF_PIXELS = ("Corrupt JPEG data", "Premature end", "Inconsistent progression")


def damage_of(data: bytes) -> str:
    """What libjpeg warns of while it decodes a JPEG that Pillow decodes.

    Returns:
        Its sentence; "" if there is none, and of what libjpeg cannot decode at an eighth.
    """
    if not can_draft(data):
        return ""
    import simplejpeg  # only who asks for the check needs it

    for colorspace in ("GRAY", "CMYK"):  # what the one cannot be made of, the other can
        try:
            simplejpeg.decode_jpeg(
                data, colorspace, fastdct=True, fastupsample=True, min_height=1, min_width=1,
                min_factor=8, strict=True,
            )  # fmt: skip
            return ""
        except ValueError as e:
            found = str(e)
            if not found.startswith("Unsupported color conversion"):
                break
    return found if found.startswith(_OF_PIXELS) else ""
