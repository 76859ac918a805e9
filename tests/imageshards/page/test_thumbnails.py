"""Small pictures: what can be decoded, and how it is inside a page."""

from __future__ import annotations

import base64

import pytest
from PIL import Image, JpegImagePlugin

from imageshards.page import data_uri, thumbnail
from tests.support.pictures import lossless_jpeg, opened_bytes, saved


def encoded(size: tuple[int, int], mode: str = "RGB", kind: str = "JPEG") -> bytes:
    return saved(Image.new(mode, size, 200), kind)


@pytest.mark.parametrize(
    ("given", "expected"), [((400, 200), (64, 32)), ((30, 600), (3, 64)), ((20, 10), (20, 10))]
)
@pytest.mark.parametrize(("mode", "kind"), [("RGB", "JPEG"), ("L", "JPEG"), ("P", "PNG")])
def test_a_thumbnail_fits_and_is_never_enlarged(
    given: tuple[int, int], expected: tuple[int, int], mode: str, kind: str
) -> None:
    picture = thumbnail(encoded(given, mode, kind), 64)
    assert picture is not None
    assert (picture.size, picture.mode) == (expected, "RGB")


def test_a_lossless_jpeg_is_not_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        JpegImagePlugin.JpegImageFile,
        "draft",
        lambda picture, *given: pytest.fail("draft") if picture.tile else None,  # not decoded yet
    )
    picture = thumbnail(lossless_jpeg(), 64)
    assert picture is not None and picture.size == (64, 64)


def test_large_jpegs_have_thumbnails_and_the_limit_of_the_process_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert thumbnail(encoded((400, 200)), 64) is not None
    assert thumbnail(encoded((400, 200), kind="PNG"), 64) is None  # no record's, so a bomb
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize("damaged", [b"", b"no picture", encoded((400, 200))[:300]])
def test_an_undecodable_picture_has_no_thumbnail(damaged: bytes) -> None:
    assert thumbnail(damaged, 64) is None


def test_a_picture_inside_a_page_is_the_picture() -> None:
    head, _, content = data_uri(Image.new("RGB", (5, 7))).partition(",")
    assert head == "data:image/jpeg;base64"
    assert opened_bytes(base64.b64decode(content)).size == (5, 7)
