"""Embedded ICC profiles: pictures of other colour spaces become sRGB, as those of records are."""

from __future__ import annotations

import functools
import io

from PIL import Image, ImageChops, ImageCms
from PIL.ImageCms import ImageCmsTransform

# CMYK profiles, which hold tables, have up to 3 MB. The cache below keeps some of them.
_MAX_PROFILE_BYTES = 4 << 20

# A profile's colour space → the mode it is applied in, and Pillow modes that can become that one.
# Grey pictures with a profile of RGB are common: grey is a colour of it, too.
_GREY = ("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N")
_COLOURED = ("P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "YCbCr")
_SPACES = {
    "GRAY": ("L", _GREY), "RGB ": ("RGB", _GREY + _COLOURED), "CMYK": ("CMYK", ("CMYK",)),
}  # fmt: skip

# Levels by which a profile changes colours, at most, that is sRGB: those of four makers differ by
# 0 or 1, the nearest of other spaces by 9.
_ROUNDING = 2


@functools.lru_cache(maxsize=16)
def srgb_transform(profile: bytes, mode: str) -> tuple[ImageCmsTransform | None, str]:
    """What makes pictures of Pillow's `mode` with this profile sRGB, and the note that says so.

    Relative colorimetric with black point compensation, as in image editors: without it the black
    of a press would become a dark grey. Between spaces of RGB that changes nothing.

    Returns:
        The transform for `to_srgb` and `icc_converted`. Or None, as the pixels can stay exactly as
        they are, with `icc_srgb`, or `icc_broken` for a profile that cannot be used.
    """
    try:
        given = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        applied, modes = _SPACES[given.profile.xcolor_space]
        if mode not in modes or len(profile) > _MAX_PROFILE_BYTES:
            return None, "icc_broken"
        transform = ImageCms.buildTransform(
            given, ImageCms.createProfile("sRGB"), applied, "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )  # fmt: skip
    except (ImageCms.PyCMSError, OSError, LookupError, TypeError, ValueError):
        return None, "icc_broken"
    if applied != "CMYK":
        steps = range(0, 256, 17)
        cube = bytes(level for r in steps for g in steps for b in steps for level in (r, g, b))
        colours = Image.frombytes("RGB", (64, 64), cube).convert(applied)
        change = ImageChops.difference(to_srgb(colours, transform), colours.convert("RGB"))
        if max(change.tobytes()) <= _ROUNDING:
            return None, "icc_srgb"
    return transform, "icc_converted"


def to_srgb(image: Image.Image, transform: ImageCmsTransform) -> Image.Image:
    """Pixels by a transform: `RGB`, or `RGBA` of a picture with alpha, which stays as it is."""
    converted = transform.apply(image.convert(transform.input_mode))
    if image.mode in ("LA", "RGBA"):
        converted.putalpha(image.getchannel("A"))
    return converted
