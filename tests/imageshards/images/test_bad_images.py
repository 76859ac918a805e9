import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from imageshards.errors import ImageError
from imageshards.images.encode import encode_image
from imageshards.images.options import ImageOptions
from tests.support.icc_profiles import ADOBE_RGB, rgb_profile
from tests.support.pictures import JPEG, SMALL, animation, code_of, flat, opened, saved, scene

# pytest resets the filters by which Pillow is kept quiet.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")

_FRAME = JPEG.index(b"\xff\xc0")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty"),
        (b"hello, this is a text file\n", "not_an_image"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "git_lfs_pointer"),
        (b"\xef\xbb\xbf\n <HTML lang=en>", "web_page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code>', "web_page"),
        (b"\0" * 5000, "only_zeros"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "not_an_image"),
        (b"8BPS\0\1" + bytes(60), "unsupported_format"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp42", "unsupported_format"),
        (saved(scene(), "AVIF")[:-100], "truncated"),
        (saved(scene(), "HEIF")[:-100], "truncated"),
        (saved(scene(), "HEIF")[:300], "truncated"),
        (JPEG[:-400], "truncated"),
        (saved(scene(), "PNG")[:-300], "truncated"),
        (b"\xff\xd8\xfe\xe0 garbled", "corrupt"),
        (JPEG[: _FRAME + 5] + b"\xff\xff\xff\xff" + JPEG[_FRAME + 9 :], "too_many_pixels"),
        (saved(flat("F", 0.5), "TIFF"), "unsupported_mode"),
        (saved(flat("I", 70000), "TIFF"), "unsupported_mode"),
    ],
)
def test_each_kind_of_bad_file_has_its_code(data, code):
    assert code_of(data) == code


def test_thousands_of_scans_are_refused():
    data = saved(scene(), progressive=True)
    scan = data.rindex(b"\xff\xda")
    assert code_of(data[:-2] + data[scan:-2] * 500 + b"\xff\xd9") == "too_many_scans"
    # A sequential picture has further scans where the first one lacks components.
    scan = JPEG.index(b"\xff\xda")
    one = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + JPEG[scan + 14 : -2]
    assert code_of(JPEG[:scan] + one * 500 + b"\xff\xd9") == "too_many_scans"
    # What follows the picture is not counted: a phone's film, for one.
    encode_image(JPEG + b"\xff\xda" * 500, SMALL)


def test_a_very_thin_picture_cannot_make_a_huge_result():
    thin = saved(Image.new("1", (70000, 1)), "PNG")
    for mode in ("none", "shortest"):
        assert code_of(thin, ImageOptions(resize_mode=mode)) == "output_too_large"
    encode_image(thin, ImageOptions(resize_mode="crop"))
    thin = saved(Image.new("L", (100, 2)), "PNG")
    options = ImageOptions(1000, 1000, resize_mode="shortest", max_pixels=1_000_000)
    assert code_of(thin, options) == "output_too_large"
    encode_image(thin, dataclasses.replace(options, height_px=100, width_px=100))


_BY_FORMAT = {kind: saved(scene(), kind) for kind in ("PNG", "GIF", "WEBP", "BMP", "AVIF", "HEIF")}
_BY_FORMAT |= {
    "JPEG": JPEG,
    "progressive": saved(scene(), progressive=True),
    "CMYK": saved(scene().convert("CMYK")),
    "TIFF": saved(scene(), "TIFF", compression="tiff_lzw"),
    "Adobe RGB": saved(scene(), icc_profile=rgb_profile(ADOBE_RGB)),
}


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(_BY_FORMAT)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
    st.sampled_from([40, 400, 10**6]),
    st.just(1.0) | st.floats(0, 1),
)
def test_a_damaged_picture_is_encoded_or_rejected_with_a_code(kind, damage, reach, kept):
    data = bytearray(_BY_FORMAT[kind])
    for at, value in damage:
        data[int(at * min(reach, len(data)))] = value
    cut = bytes(data[: round(kept * len(data))])
    try:
        encoded = encode_image(cut, dataclasses.replace(SMALL, max_pixels=1_000_000))
    except ImageError:
        return
    assert opened(encoded).size == (encoded.width_px, encoded.height_px)


@pytest.mark.process
def test_nothing_is_printed_about_bad_files(tmp_path):
    bad_animation = bytearray(animation("PNG"))
    bad_animation[bad_animation.index(b"acTL") + 4 :][:4] = b"\0\0\0\0"
    fax = bytearray(saved(scene().convert("1"), "TIFF", compression="group4"))
    fax[20:60] = b"\x55" * 40
    files = {"a.png": bytes(bad_animation), "b.tif": bytes(fax), "c.tif": _BY_FORMAT["TIFF"][:-300]}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    code = (
        "import contextlib, pathlib, sys\n"
        "from imageshards import errors\n"
        "from imageshards.images import encode, options\n"
        "for file in pathlib.Path(sys.argv[1]).iterdir():\n"
        "    with contextlib.suppress(errors.ImageError):\n"
        "        encode.encode_image(file.read_bytes(), options.ImageOptions())\n"
    )
    command = [sys.executable, "-W", "always", "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
