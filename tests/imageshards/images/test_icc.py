import dataclasses

import numpy as np
import pytest
from PIL import Image

from imageshards.images.decode import srgb_transform, to_srgb
from imageshards.images.encode import encode_image
from tests.support.icc_profiles import (
    ADOBE_RGB,
    DISPLAY_P3,
    SRGB,
    cmyk_profile,
    grey_profile,
    in_srgb,
    rgb_profile,
)
from tests.support.pictures import EXACT, SMALL, colour_of, flat, opened, saved, scene

P3 = rgb_profile(DISPLAY_P3)
DROP = dataclasses.replace(EXACT, icc="drop")
# An orange that Display P3 and Adobe RGB tell apart from sRGB, inside of it.
ORANGE = (190, 120, 60)


@pytest.mark.parametrize("space", [DISPLAY_P3, ADOBE_RGB], ids=["Display P3", "Adobe RGB"])
def test_every_colour_is_within_a_level_of_the_reference(space):
    levels = np.stack(np.meshgrid(*[range(0, 256, 15)] * 3, indexing="ij"), -1).reshape(18, -1, 3)
    transform, note = srgb_transform(rgb_profile(space), "RGB")
    assert transform and note == "icc_converted"
    found = np.asarray(to_srgb(Image.fromarray(levels.astype(np.uint8)), transform), float)
    expected = in_srgb(levels.astype(float), space)
    assert np.abs(found - expected).max() <= 1.5 and np.abs(found - expected).mean() < 0.4
    assert np.abs(levels - expected).max() > 60


def _with(picture, kind, profile, **params):
    return saved(picture, kind, icc_profile=profile, **params)


_PALETTE = flat("P", 1)
_PALETTE.putpalette([0, 0, 0, *ORANGE])
_EXPECTED = tuple(in_srgb(np.array(ORANGE, float), DISPLAY_P3))
_LUMA = (float(np.dot(_EXPECTED, (0.299, 0.587, 0.114))),)
_BEST = {"quality": 100, "subsampling": "4:4:4"}
_FLAT = flat("RGB", ORANGE)
_LARGE_P3 = P3 + bytes(3 << 20)  # more than Pillow reads
_P3_FILES = {
    "png, large profile": _with(_FLAT, "PNG", _LARGE_P3),
    "jpeg": _with(_FLAT, "JPEG", P3, **_BEST),
    "png": _with(_FLAT, "PNG", P3),
    "palette": _with(_PALETTE, "PNG", P3),
    "webp": _with(_FLAT, "WEBP", P3, lossless=True),
    "avif": _with(_FLAT, "AVIF", P3, **_BEST),
    "heic": _with(_FLAT, "HEIF", P3, quality=-1, chroma=444),
}


@pytest.mark.parametrize("name", _P3_FILES)
def test_profiles_of_all_formats_are_converted_in_colour_and_grey(name):
    data = _P3_FILES[name]
    assert max(abs(a - b) for a, b in zip(ORANGE, _EXPECTED, strict=True)) > 8
    assert colour_of(data) == pytest.approx(_EXPECTED, abs=3)
    assert colour_of(data, DROP) == pytest.approx(ORANGE, abs=3)
    grey = dataclasses.replace(EXACT, colorspace="grey")
    assert colour_of(data, grey) == pytest.approx(_LUMA, abs=3)
    assert "icc_converted" in encode_image(data, SMALL).notes
    assert "icc_profile_dropped" in encode_image(data, DROP).notes
    for options in (EXACT, SMALL):
        assert "icc_profile" not in opened(encode_image(data, options)).info


def test_grey_cmyk_and_transparent_pictures_are_converted():
    dark = grey_profile(1.0)  # 128 of 255 is half the light
    assert colour_of(_with(flat("L", 128), "PNG", dark)) == pytest.approx((188,) * 3, abs=2)
    assert colour_of(_with(flat("LA", (128, 0)), "PNG", dark)) == (255,) * 3
    half = _with(flat("RGBA", (*ORANGE, 128)), "PNG", P3)
    assert colour_of(half) == pytest.approx([(255 + level) / 2 for level in _EXPECTED], abs=3)
    # Black ink of lightness 50, a grey of 119, on white; as RGB it could be any inks.
    press, black = cmyk_profile(255, 128), flat("CMYK", (0, 0, 0, 255))
    for kind in ("JPEG", "TIFF"):
        assert colour_of(_with(black, kind, press)) == pytest.approx((119,) * 3, abs=3)
    assert colour_of(saved(black)) == pytest.approx((0,) * 3, abs=4)
    for colour in ((0,) * 4, (255, 0, 0, 0)):
        paper = _with(flat("CMYK", colour), "TIFF", press)
        assert colour_of(paper) == pytest.approx((255,) * 3, abs=2)
    # A grey JPEG of a camera that writes its profile of RGB all the same.
    grey = saved(flat("L", 90), icc_profile=rgb_profile((SRGB[0], 1.0)))
    assert colour_of(grey) == pytest.approx((159,) * 3, abs=3)
    # What becomes grey is converted in colour.
    green = (40, 200, 60)
    expected = float(np.dot(in_srgb(np.array(green, float), ADOBE_RGB), (0.299, 0.587, 0.114)))
    assert abs(expected - np.dot(green, (0.299, 0.587, 0.114))) > 8
    data = _with(flat("RGB", green), "JPEG", rgb_profile(ADOBE_RGB), **_BEST)
    options = dataclasses.replace(EXACT, colorspace="grey")
    assert colour_of(data, options) == pytest.approx((expected,), abs=3)


@pytest.mark.parametrize(
    ("mode", "profile", "note"),
    [
        ("RGB", rgb_profile(SRGB), "icc_srgb"),
        ("L", rgb_profile(SRGB), "icc_srgb"),
        ("RGB", b"x" * 200, "icc_broken"),
        ("RGB", P3[:300], "icc_broken"),
        ("RGB", grey_profile(1.0), "icc_broken"),
        ("CMYK", P3, "icc_broken"),
        ("CMYK", cmyk_profile(255, 0)[:1200], "icc_broken"),
        ("RGB", P3.ljust(5 << 20, b"\0"), "icc_broken"),
    ],
    ids=range(8),
)
def test_pictures_without_a_usable_profile_keep_every_bit(mode, profile, note):
    picture = scene().convert(mode)
    plain, with_profile = encode_image(saved(picture), SMALL), _with(picture, "JPEG", profile)
    found = encode_image(with_profile, SMALL)
    dropped = encode_image(with_profile, dataclasses.replace(SMALL, icc="drop"))
    assert found.data == plain.data == dropped.data
    assert found.notes == (*plain.notes, note)


def test_a_shrunk_and_turned_picture_is_converted_like_a_whole_one():
    photo = scene(640, 480).convert("RGB").point(lambda level: 60 + level // 2)
    exif = Image.Exif()
    exif[0x0112] = 6
    data = _with(photo, "JPEG", P3, quality=97, exif=exif)
    made = np.asarray(opened(encode_image(data, dataclasses.replace(SMALL, quality=100))), float)
    plain = opened(encode_image(data, dataclasses.replace(SMALL, quality=100, icc="drop")))
    assert np.abs(made - in_srgb(np.asarray(plain, float), DISPLAY_P3)).mean() < 2
