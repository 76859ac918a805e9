"""Converts pictures to sRGB, the colour space of records, by their embedded ICC profiles."""

from __future__ import annotations

import functools
import io

from PIL import Image, ImageChops, ImageCms
from PIL.ImageCms import ImageCmsTransform

# CMYK profiles contain tables and have up to 3 MB. The cache below keeps up to 16 profiles.
_MAX_PROFILE_BYTES = 4 << 20

# A profile's colour space → the mode that the profile applies to, and the Pillow modes that can be
# converted to this mode. Grey pictures with an RGB profile are common, and grey is an RGB colour.
_GREY = ("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N")
_COLOURED = ("P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "YCbCr")
_SPACES = {
    "GRAY": ("L", _GREY), "RGB ": ("RGB", _GREY + _COLOURED), "CMYK": ("CMYK", ("CMYK",)),
}  # fmt: skip

# A profile that changes colours by at most this many levels counts as sRGB. The sRGB profiles of
# four makers change 0 or 1, and the most similar profile of a different space changes 9.
_ROUNDING = 2


@functools.lru_cache(maxsize=16)
def srgb_transform(profile: bytes, mode: str) -> tuple[ImageCmsTransform | None, str]:
    """Returns the conversion to sRGB of pictures with this profile and Pillow `mode`.

    Returns:
        The transform for `to_srgb`, and the note `icc_converted`. If the pixels stay as they are,
        the transform is None, and the note `icc_srgb`, or `icc_broken` for an unusable profile.
    """
    try:
        given = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        applied, modes = _SPACES[given.profile.xcolor_space]
        if mode not in modes or len(profile) > _MAX_PROFILE_BYTES:
            return None, "icc_broken"
        # As in image editors: without black point compensation the black of a press, which is not
        # quite black, would become dark grey. Between RGB spaces it changes nothing.
        transform = ImageCms.buildTransform(
            given, ImageCms.createProfile("sRGB"), applied, "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )  # fmt: skip
    except (ImageCms.PyCMSError, OSError, LookupError, TypeError, ValueError):
        return None, "icc_broken"
    if applied != "CMYK":
        # Profiles of sRGB differ in their bytes, so their effect on a grid of colours is compared.
        steps = range(0, 256, 17)
        cube = bytes(level for r in steps for g in steps for b in steps for level in (r, g, b))
        colours = Image.frombytes("RGB", (64, 64), cube).convert(applied)
        change = ImageChops.difference(to_srgb(colours, transform), colours.convert("RGB"))
        if max(change.tobytes()) <= _ROUNDING:
            return None, "icc_srgb"
    return transform, "icc_converted"


def to_srgb(image: Image.Image, transform: ImageCmsTransform) -> Image.Image:
    """Applies a transform; returns `RGB`, or `RGBA` with unchanged alpha for `LA` and `RGBA`."""
    converted = transform.apply(image.convert(transform.input_mode))
    if image.mode in ("LA", "RGBA"):
        converted.putalpha(image.getchannel("A"))
    return converted
