"""Damage that Pillow keeps to itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.images.damage import damage_of
from beam_pipeline.images.encode import encode_image
from imageshards.errors import ImageError
from tests.support.pictures import JPEG, SMALL, damaged_jpeg, flat, lossless_jpeg, saved, scene

WHOLE = {
    "baseline": JPEG,
    "progressive": saved(scene(), progressive=True),
    "grey": saved(scene().convert("L")),
    "cmyk": saved(scene().convert("CMYK")),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_whole_jpeg_has_none_and_a_damaged_one_has_though_pillow_decodes_it(kind):
    assert damage_of(WHOLE[kind]) == ""
    damaged = damaged_jpeg(WHOLE[kind])
    assert encode_image(damaged, SMALL).data != encode_image(WHOLE[kind], SMALL).data
    assert damage_of(damaged).startswith("Corrupt JPEG data")


@pytest.mark.parametrize("data", [b"", saved(flat("RGB", 9), "PNG"), lossless_jpeg(64)])
def test_what_cannot_be_looked_at_has_none(data):
    assert damage_of(data) == ""


@given(st.data())
def test_any_bytes_have_an_answer(data):
    at = data.draw(st.integers(2, len(JPEG)))
    assert isinstance(damage_of(JPEG[:at] + data.draw(st.binary(max_size=9)) + JPEG[at:]), str)


def test_real_broken_jpegs_that_pillow_decodes(broken_jpegs):
    found = []
    for path in sorted(broken_jpegs.iterdir()):
        try:
            encode_image(path.read_bytes(), SMALL)
        except ImageError:
            continue
        found.append(damage_of(path.read_bytes()))
    assert (len(found), sum(map(bool, found))) == (16, 10)
