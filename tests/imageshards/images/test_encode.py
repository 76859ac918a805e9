import dataclasses
import subprocess
import sys

import pytest
from PIL import Image, JpegImagePlugin, PngImagePlugin

from imageshards.images.encode import encode_image, tune_allocator
from imageshards.images.options import FILTERS, ImageOptions
from tests.support.pictures import JPEG, SMALL, code_of, opened, saved, scene

pytestmark = pytest.mark.process


def test_filter_quality_and_subsampling_are_those_of_the_file():
    made = {encode_image(JPEG, dataclasses.replace(SMALL, filter=f)).data for f in FILTERS}
    assert len(made) == len(FILTERS)
    of_quality = [dataclasses.replace(SMALL, quality=quality) for quality in (10, 90, 100)]
    sizes = [len(encode_image(JPEG, options).data) for options in of_quality]
    assert sizes == sorted(set(sizes))
    for code, subsampling in enumerate(("4:4:4", "4:2:2", "4:2:0")):
        encoded = encode_image(JPEG, dataclasses.replace(SMALL, subsampling=subsampling))
        assert JpegImagePlugin.get_sampling(opened(encoded)) == code


def test_only_shrink_keeps_a_small_picture_as_it_is_on_the_canvas():
    checks = Image.new("L", (40, 20))
    checks.putdata([255 * ((x + y) % 2) for y in range(20) for x in range(40)])
    options = ImageOptions(100, 100, resize_mode="pad", quality=100)
    small = encode_image(saved(checks, "PNG"), dataclasses.replace(options, only_shrink=True))
    large = encode_image(saved(checks, "PNG"), options)
    assert "enlarged" not in small.notes and "enlarged" in large.notes
    assert opened(small).convert("L").point([255] * 128 + [0] * 128).getbbox() == (30, 40, 70, 60)


@pytest.mark.parametrize("colorspace", ["rgb", "grey"])
def test_background_surrounds_a_padded_picture(colorspace):
    options = ImageOptions(
        40, 80, resize_mode="pad", background=(10, 200, 90), colorspace=colorspace, quality=100
    )
    picture = opened(encode_image(saved(Image.new("RGB", (20, 20))), options)).convert("RGB")
    luma = round(0.299 * 10 + 0.587 * 200 + 0.114 * 90)
    around = (10, 200, 90) if colorspace == "rgb" else (luma,) * 3
    for x, colour in ((3, around), (76, around), (40, (0, 0, 0))):
        assert picture.getpixel((x, 20)) == pytest.approx(colour, abs=3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF"])
def test_bytes_and_pixels_are_limited(kind):
    data = saved(scene(), kind)
    just = dataclasses.replace(SMALL, max_pixels=160 * 120, max_bytes=len(data))
    encode_image(data, just)
    assert code_of(data, dataclasses.replace(just, max_pixels=160 * 120 - 1)) == "too_many_pixels"
    assert code_of(data, dataclasses.replace(just, max_bytes=len(data) - 1)) == "too_many_bytes"


def test_no_metadata_survives():
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", "secret")
    exif = Image.Exif()
    exif[0x010E] = "secret"
    for mode in ("none", "crop"):
        options = dataclasses.replace(SMALL, resize_mode=mode)
        for data in (
            saved(scene(), exif=exif, comment=b"secret", icc_profile=b"secret", dpi=(300, 300)),
            saved(scene(), "PNG", pnginfo=info, exif=exif, icc_profile=b"secret"),
        ):
            encoded = encode_image(data, options)
            assert b"secret" not in encoded.data
            assert not {"exif", "comment", "icc_profile", "dpi"} & set(opened(encoded).info)


@pytest.mark.parametrize("colorspace", ["rgb", "grey"])
def test_pixel_sums_are_exact_and_change_nothing_else(colorspace):
    options = ImageOptions(resize_mode="none", colorspace=colorspace)
    picture = scene()
    data = saved(picture, "PNG")
    summed = encode_image(data, options, want_sums=True)
    assert dataclasses.replace(summed, pixel_sums=None) == encode_image(data, options)
    sums = summed.pixel_sums
    bands = picture.split() if colorspace == "rgb" else (picture.convert("L"),)
    assert sums is not None
    for channel, band in zip(sums, bands, strict=True):
        values = band.tobytes()
        assert tuple(channel) == (len(values), sum(values), sum(v * v for v in values))


def test_encoding_is_deterministic_and_imports_little():
    once = encode_image(JPEG, SMALL)
    tune_allocator()
    assert encode_image(JPEG, SMALL) == once
    code = (
        "import sys; from imageshards.images import encode, options\n"
        "made = encode.encode_image(sys.stdin.buffer.read(), options.ImageOptions(64, 64))\n"
        "sys.stdout.buffer.write(made.data)\n"
        "sys.exit(str({'numpy', 'apache_beam', 'tensorflow'} & set(sys.modules) or ''))"
    )
    other = subprocess.run([sys.executable, "-c", code], input=JPEG, capture_output=True)
    assert (other.stdout, other.stderr.strip()) == (once.data, b"")
