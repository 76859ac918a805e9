"""What a JPEG's markers tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageshards.jpeg import can_draft
from tests.support.pictures import JPEG, flat, lossless_jpeg, saved

_SOI, _SCAN = b"\xff\xd8", b"\xff\xda\0\x08\x01\x01\0\x01\0\0"


def frame(kind: int) -> bytes:
    return bytes([0xFF, kind]) + b"\0\x0b\x08\0\x08\0\x08\x01\x01\x11\0"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(JPEG, True, id="baseline"),
        pytest.param(saved(flat("RGB", 9), progressive=True), True, id="progressive"),
        pytest.param(saved(flat("L", 9), exif=b"Exif\0\0" + frame(0xC3)), True, id="in the EXIF"),
        pytest.param(_SOI + b"\xff\xff" + frame(0xC1) + _SCAN, True, id="extended, fill bytes"),
        pytest.param(_SOI + b"junk\xff\0\xff\xd3" + frame(0xC0) + _SCAN, True, id="after junk"),
        pytest.param(_SOI + b"junk" + frame(0xC3) + _SCAN, False, id="lossless after junk"),
        pytest.param(lossless_jpeg(), False, id="lossless"),
        pytest.param(_SOI + frame(0xC9) + _SCAN, False, id="arithmetic"),
        pytest.param(_SOI + frame(0xC0) + frame(0xC3) + _SCAN, False, id="two frames"),
        pytest.param(_SOI + _SCAN + frame(0xC0), False, id="no frame before the scan"),
        pytest.param(JPEG[:30], False, id="cut off"),
        pytest.param(b"", False, id="empty"),
    ],
)
def test_only_pictures_of_huffman_coded_dct_blocks_are_drafted(data, expected):
    assert can_draft(data) is expected


@given(st.binary(max_size=300), st.integers(0, 500))
def test_any_bytes_have_an_answer(noise, at):
    assert can_draft(JPEG[:at] + noise) in (True, False)
