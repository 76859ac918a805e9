import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from imageshards.images.encode import encode_image
from imageshards.images.options import ImageOptions
from imageshards.jpeg import can_draft, eight_bits, open_picture, plain_png
from tests.support.pictures import JPEG, flat, saved

_SOI, _SCAN = b"\xff\xd8", b"\xff\xda\0\x08\x01\x01\0\x01\0\0"


def frame(kind):
    return bytes([0xFF, kind]) + b"\0\x0b\x08\0\x08\0\x08\x01\x01\x11\0"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(JPEG, True, id="baseline"),
        pytest.param(saved(flat("L", 9), exif=b"Exif\0\0" + frame(0xC3)), True, id="in the EXIF"),
        pytest.param(_SOI + b"\xff\xff" + frame(0xC1) + _SCAN, True, id="extended, fill bytes"),
        pytest.param(_SOI + b"junk\xff\0\xff\xd3" + frame(0xC0) + _SCAN, True, id="after junk"),
        pytest.param(_SOI + b"junk" + frame(0xC3) + _SCAN, False, id="lossless after junk"),
        pytest.param(_SOI + frame(0xC9) + _SCAN, False, id="arithmetic"),
        pytest.param(_SOI + frame(0xC0) + frame(0xC3) + _SCAN, False, id="two frames"),
        pytest.param(_SOI + _SCAN + frame(0xC0), False, id="no frame before the scan"),
        pytest.param(JPEG[:30], False, id="cut off"),
    ],
)
def test_draft_is_only_used_for_huffman_coded_dct_frames(data, expected):
    assert can_draft(data) is expected


def _png(*kinds: bytes, size: int = 0, behind: bool) -> bytes:
    """A PNG with texts of so many characters, before or behind its pixels."""
    png = saved(flat("RGB", (9, 90, 200)), "PNG")
    packed = zlib.compress(b"x" * size)
    contents = {
        b"tEXt": b"workflow\0" + b"x" * size,
        b"zTXt": b"workflow\0\0" + packed,
        b"iTXt": b"workflow\0\1\0\0\0" + packed,
    }
    chunks = b""
    for kind in kinds:
        body = kind + contents[kind]
        chunks += struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    at = png.index(b"IEND" if behind else b"IDAT") - 4
    return png[:at] + chunks + png[at:]


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    ("kinds", "size"),
    [
        ([b"tEXt"], 2_000_000),
        ([b"zTXt"], 2_000_000),
        ([b"iTXt"], 2_000_000),
        ([b"zTXt"] * 70, 10**6),
    ],
)
def test_a_png_with_long_texts_is_the_picture_without_them(kinds, size, behind):
    plain, texted = _png(behind=behind), _png(*kinds, size=size, behind=behind)
    options = ImageOptions(16, 16)
    assert encode_image(texted, options) == encode_image(plain, options)
    assert open_picture(texted).tobytes() == open_picture(plain).tobytes()
    assert plain_png(plain[:-20])[0] == plain[:-20] and plain_png(JPEG) == (JPEG, b"")


def test_a_picture_whose_header_says_too_many_pixels_is_not_opened():
    bomb = bytearray(JPEG)
    at = bomb.index(b"\xff\xc0") + 5
    bomb[at : at + 4] = (60_000).to_bytes(2, "big") * 2
    with pytest.raises(ValueError, match="60000x60000 pixels"):
        open_picture(bytes(bomb))
    assert open_picture(JPEG).size == (160, 120)
    for broken in (b"\xff\xd8\xff", b"RIFF", saved(flat("RGB", 9), "TIFF")):
        with pytest.raises((OSError, ValueError)):
            open_picture(broken)


def test_sixteen_bits_keep_their_whole_range():
    deep = Image.fromarray(np.array([[0, 257, 65535]], np.uint16))
    assert list(eight_bits(deep).tobytes()) == [0, 1, 255]
    assert eight_bits(flat("RGB", 9)).mode == "RGB"
