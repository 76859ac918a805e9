import pytest
from PIL import Image

from imageshards.page import draw_boxes, thumbnail
from tests.support.pictures import saved

NAN = float("nan")


def encoded(size, mode="RGB", kind="JPEG"):
    return saved(Image.new(mode, size, 200), kind)


@pytest.mark.parametrize(
    ("given", "expected"), [((400, 200), (64, 32)), ((30, 600), (3, 64)), ((20, 10), (20, 10))]
)
@pytest.mark.parametrize(("mode", "kind"), [("RGB", "JPEG"), ("L", "JPEG"), ("P", "PNG")])
def test_a_thumbnail_fits_and_is_never_enlarged(given, expected, mode, kind):
    picture = thumbnail(encoded(given, mode, kind), 64)
    assert picture is not None
    assert (picture.size, picture.mode) == (expected, "RGB")


def test_large_jpegs_have_a_thumbnail_but_bombs_and_damaged_pictures_have_none(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert thumbnail(encoded((400, 200)), 64) is not None
    bomb = encoded((400, 200), kind="PNG")
    for refused in (bomb, b"", b"no picture", encoded((400, 200))[:300]):
        assert thumbnail(refused, 64) is None
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize("shade", [0, 255])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_outline_of_a_box_is_bright_with_a_dark_edge_and_the_picture_stays(shade, mode):
    colour = (shade,) * 3
    picture = Image.new("RGB", (40, 20), colour).convert(mode)
    drawn = draw_boxes(picture, [(0.25, 0.5, 0.5, 1.0), (0.0, 0.0, 1.0, 1.0)])
    assert picture.convert("RGB").getcolors() == [(800, colour)]
    assert (drawn.mode, drawn.size) == ("RGB", (40, 20))
    all_of_it = [(x, y) for x in range(40) for y in range(20)]
    bright = {at for at in all_of_it if drawn.getpixel(at) not in ((0, 0, 0), (255, 255, 255))}
    whole = {(x, y) for x, y in all_of_it if x in (0, 39) or y in (0, 19)}
    small = {(x, y) for x in range(10, 20) for y in range(10, 20) if x in (10, 19) or y == 10}
    assert bright == whole | small
    assert drawn.getpixel((9, 15)) == drawn.getpixel((15, 9)) == (0, 0, 0)
    assert drawn.getpixel((15, 15)) == drawn.getpixel((5, 15)) == colour


@pytest.mark.parametrize(
    "box",
    [
        (), (0.1, 0.1, 0.9), (0.1, 0.1, 0.9, None), (b"", 0, 1, 1), (10**400, 0, 1, 1), None,
        (NAN, 0, 1, 1), (0, 0, 1, NAN), (0.9, 0.1, 0.1, 0.9), (0.5, 0.5, 0.5, 0.9), (2, 2, 3, 3),
    ],
)  # fmt: skip
def test_a_malformed_box_is_skipped(box):
    picture = Image.new("RGB", (20, 20), 200)
    assert draw_boxes(picture, [box]).tobytes() == picture.tobytes()
    good = (0.2, 0.2, 0.8, 0.8)
    assert draw_boxes(picture, [box, good]).tobytes() == draw_boxes(picture, [good]).tobytes()


def test_a_small_box_has_a_pixel_and_many_boxes_do_not_hide_the_picture():
    picture = Image.new("RGB", (20, 20), 200)
    assert draw_boxes(picture, [(0.999, 0.999, 1.0, 1.0)]).tobytes() != picture.tobytes()
    boxes = [(i / 1000, 0.0, 1.0, 1.0) for i in range(1000)]
    assert draw_boxes(picture, boxes).getpixel((15, 10)) == (200, 0, 0)
