import dataclasses
import runpy
import struct
import sys

import pytest
from PIL import AvifImagePlugin, Image, ImageChops, ImageStat, JpegImagePlugin

from imageshards.errors import ImageError
from imageshards.images import options
from imageshards.images.encode import encode_image
from imageshards.images.options import ImageOptions
from tests.support.pictures import (
    EXACT,
    SMALL,
    animation,
    colour_of,
    flat,
    lossless_jpeg,
    mean_difference,
    opened,
    opened_bytes,
    saved,
    scene,
    stored,
)


def _without_adobe_marker(jpeg):
    start = jpeg.index(b"\xff\xee")
    (length,) = struct.unpack_from(">H", jpeg, start + 2)
    return jpeg[:start] + jpeg[start + 2 + length :]


def _as_ycck(jpeg):
    transform = jpeg.index(b"Adobe") + 11
    return jpeg[:transform] + b"\x02" + jpeg[transform + 1 :]


def _palette(**params):
    picture = flat("P", 1)
    picture.putpalette([0, 0, 0, 20, 180, 60])
    return saved(picture, "PNG", **params)


_INK = (255, 0, 0, 0)  # Cyan. Pillow writes CMYK inverted, under Adobe's marker.
_RED, _CYAN, _WHITE, _GREEN = (200, 0, 0), (0, 255, 255), (255, 255, 255), (20, 180, 60)
_PLAIN_INK = _without_adobe_marker(saved(ImageChops.invert(flat("CMYK", _INK)), quality=100))
_IS_RED, _IS_CLEAR = flat("RGB", _RED), flat("RGBA", (0, 0, 255, 0))

# Name → file, colour in the middle, notes.
_DEEP = flat("I;16", 40 * 257)
_ODD: dict[str, tuple[bytes, tuple[int, ...], str]] = {
    "16 bit": (saved(_DEEP, "PNG"), (40, 40, 40), "grey not_jpeg sixteen_bit"),
    "gif": (animation("GIF"), _RED, "animated not_jpeg palette"),
    "adobe cmyk": (saved(flat("CMYK", _INK), quality=100), _CYAN, "cmyk"),
    "plain cmyk": (_PLAIN_INK, _CYAN, "cmyk"),
    # Inks (255, 0, 0) read as RGB are YCbCr (76, 85, 255); stored inverted by Pillow.
    "ycck": (_as_ycck(saved(flat("CMYK", (179, 170, 0, 0)), quality=100)), _CYAN, "cmyk"),
    "cmyk tiff": (saved(flat("CMYK", _INK), "TIFF"), _CYAN, "cmyk not_jpeg"),
    "grey jpeg": (saved(flat("L", 90)), (90, 90, 90), "grey"),
    "progressive": (saved(_IS_RED, progressive=True), _RED, "progressive"),
    "mpo": (animation("MPO"), _RED, ""),
    "png": (saved(_IS_RED, "PNG"), _RED, "not_jpeg"),
    "palette": (_palette(), _GREEN, "not_jpeg palette"),
    "half clear": (_palette(transparency=b"\xff\x80"), (137, 217, 157), "alpha not_jpeg palette"),
    "palette, clear": (_palette(transparency=1), _WHITE, "alpha not_jpeg palette"),
    "rgba": (saved(flat("RGBA", (0, 0, 255, 51)), "PNG"), (204, 204, 255), "alpha not_jpeg"),
    "la": (saved(flat("LA", (55, 0)), "PNG"), _WHITE, "alpha grey not_jpeg"),
    "webp alpha": (saved(_IS_CLEAR, "WEBP", lossless=True), _WHITE, "alpha not_jpeg"),
    "fax": (saved(flat("1", 1), "TIFF", compression="group4"), _WHITE, "grey not_jpeg"),
    "webp": (animation("WEBP"), _RED, "animated not_jpeg"),
    "apng": (animation("PNG"), _RED, "animated not_jpeg"),
    "bmp": (saved(_IS_RED, "BMP"), _RED, "not_jpeg"),
    "avif, clear": (saved(_IS_CLEAR, "AVIF"), _WHITE, "alpha not_jpeg"),
    "heic, clear": (saved(_IS_CLEAR, "HEIF"), _WHITE, "alpha not_jpeg"),
    "icc": (saved(_IS_RED, icc_profile=b"x" * 200), _RED, "icc_broken"),
}


@pytest.mark.parametrize("name", _ODD)
def test_odd_but_valid_pictures_keep_their_colours_and_have_notes(name):
    data, colour, notes = _ODD[name]
    assert colour_of(data) == pytest.approx(colour, abs=4)
    encoded = encode_image(data, EXACT)
    assert sorted(encoded.notes) == notes.split()
    assert (encoded.source_format in ("JPEG", "MPO")) == ("not_jpeg" not in notes)
    assert opened(encode_image(data, SMALL)).size == (64, 64)
    grey = encode_image(data, dataclasses.replace(SMALL, colorspace="grey"))
    assert (opened(grey).mode, grey.channels, grey.colorspace) == ("L", 1, "Grayscale")


def test_transparent_pixels_show_the_background_in_colour_and_grey():
    data = saved(flat("RGBA", (255, 255, 255, 0)), "PNG")
    blue = dataclasses.replace(EXACT, background=(0, 0, 255))
    assert colour_of(data, blue) == pytest.approx((0, 0, 255), abs=3)
    grey = dataclasses.replace(blue, colorspace="grey")
    assert colour_of(data, grey) == pytest.approx((29,), abs=2)
    # The colour of transparent pixels does not bleed.
    picture = Image.new("RGBA", (64, 64), (255, 0, 0, 0))
    picture.paste((255, 255, 255, 255), (0, 0, 32, 64))
    made = opened(encode_image(saved(picture, "PNG"), ImageOptions(16, 16)))
    assert not any(made.convert("L").histogram()[:246])


def _turned(orientation, kind):
    """The scene stored so that EXIF `orientation` turns it upright."""
    picture = stored(scene(80, 60), orientation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    more: dict[str, dict[str, object]] = {
        "TIFF": {"tiffinfo": {0x0112: orientation}},
        "PNG": {"exif": exif},
        "JPEG": {"exif": exif, "quality": 100, "subsampling": "4:4:4"},
        "WEBP": {"exif": exif, "lossless": True},
        "AVIF": {"exif": exif, "quality": 100, "subsampling": "4:4:4"},
        "HEIF": {"exif": exif.tobytes(), "quality": 100, "chroma": 444},
    }
    return saved(picture, kind, **more[kind])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "HEIF"])
@pytest.mark.parametrize("orientation", range(1, 10))
def test_exif_orientation_is_applied_once(kind, orientation):
    encoded = encode_image(_turned(orientation, kind), EXACT)
    assert (encoded.width_px, encoded.height_px) == (80, 60)
    assert ("exif_rotated" in encoded.notes) == (2 <= orientation <= 8 and kind != "HEIF")
    assert b"Exif" not in encoded.data
    assert mean_difference(opened(encoded), scene(80, 60)) < 6


def test_a_heic_without_its_extra_names_the_package_to_install(monkeypatch):
    assert {".avif", ".heic", ".heif"} <= set(options.EXTENSIONS)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ImageError, match="every machine.*imageshards\\[heif\\]") as error:
        encode_image(saved(scene(), "HEIF"), SMALL)
    assert error.value.code == "unsupported_format"
    monkeypatch.setattr(AvifImagePlugin, "SUPPORTED", False)
    with pytest.raises(ImageError, match="AVIF support not installed") as error:
        encode_image(saved(scene(), "AVIF"), SMALL)
    assert error.value.code == "unsupported_format"
    without = runpy.run_path(options.__file__)["EXTENSIONS"]
    assert ".avif" in without and not {".heic", ".heif"} & set(without)


@pytest.mark.parametrize(("order", "head"), [("<", b"II*\0"), (">", b"MM\0*")])
def test_a_damaged_exif_is_ignored(order, head):
    exif = head + struct.pack(order + "LHHHLHH", 8, 1, 0x0112, 3, 1, 6, 0)
    assert "exif_rotated" in encode_image(saved(scene(), exif=b"Exif\0\0" + exif), SMALL).notes
    for kept in range(0, 32, 2):
        encode_image(saved(scene(), exif=b"Exif\0\0" + exif[:kept] + b"\xff" * kept), SMALL)


@pytest.mark.parametrize(("name", "size"), [("Landscape_6", 64), ("Portrait_1", 104)])
def test_a_draft_looks_like_a_full_decode(exif_orientation, name, size):
    data = (exif_orientation / f"{name}.jpg").read_bytes()
    options = ImageOptions(size, size, resize_mode="crop", quality=100, subsampling="4:4:4")
    fast = opened(encode_image(data, options))
    # As PNG the same pixels are decoded whole.
    picture = opened_bytes(data)
    png = saved(picture, "PNG", exif=picture.getexif(), compress_level=0)
    difference = ImageChops.difference(fast, opened(encode_image(png, options)))
    assert max(ImageStat.Stat(difference).rms) < 2.5  # 40 dB


@pytest.mark.parametrize("colorspace", ["rgb", "grey"])
def test_a_lossless_jpeg_is_not_drafted(monkeypatch, colorspace):
    """Pillow 12.3 would write outside of its memory, and the process would be killed."""
    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "draft", lambda *given: pytest.fail("draft"))
    encoded = encode_image(lossless_jpeg(), ImageOptions(32, 32, colorspace=colorspace))
    assert encoded.notes == ("grey",)
    assert set(opened(encoded).convert("L").tobytes()) == {128}


def test_a_slight_shrink_decodes_the_whole_picture():
    data = saved(scene(400, 300), quality=95)
    same, options = saved(opened_bytes(data), "PNG"), ImageOptions(100, 100)
    # Half would leave 1.5 decoded pixels for each.
    assert encode_image(data, options).data == encode_image(same, options).data


def test_nearest_keeps_values_that_a_draft_would_mix():
    stripes = Image.new("L", (512, 512))
    for x in range(0, 512, 2):
        stripes.paste(255, (x, 0, x + 1, 512))
    data = saved(stripes, quality=100)
    made = opened(encode_image(data, ImageOptions(16, 16, filter="nearest", colorspace="grey")))
    histogram = made.histogram()
    assert sum(histogram[:30] + histogram[226:]) == 16 * 16
