import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from imageshards.images.encode import encode_image
from imageshards.images.geometry import BoxTransform, canvas_layout, map_boxes
from imageshards.images.options import RESIZE_MODES, ImageOptions
from tests.support.pictures import opened_bytes, saved, stored

_SIDE = st.integers(1, 3000)
_RANGE = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted)
_BOXES = st.lists(st.tuples(_RANGE, _RANGE).map(lambda b: (*b[0], *b[1])), max_size=6)
_SIZES = st.tuples(st.integers(60, 220), st.integers(60, 220))
_TARGETS = st.tuples(st.integers(40, 150), st.integers(40, 150))
_MODES = st.sampled_from(RESIZE_MODES)
_FRAMES = st.sampled_from(["stored", "upright"])


def _options(mode, height, width, **more):
    return ImageOptions(height, height if mode == "shortest" else width, resize_mode=mode, **more)


@pytest.mark.parametrize(
    ("mode", "source", "target", "only_shrink", "crop", "content", "canvas", "offset"),
    [
        ("none", (500, 400), (9, 9), False, (0, 0, 500, 400), (500, 400), (500, 400), (0, 0)),
        ("stretch", (100, 400), (256, 128), True, (0, 0, 100, 400), (100, 128), (100, 128), (0, 0)),
        ("crop", (401, 500), (99, 99), False, (0, 49.5, 401, 450.5), (99, 99), (99, 99), (0, 0)),
        ("crop", (100, 200), (256, 256), True, (0, 50, 100, 150), (100, 100), (100, 100), (0, 0)),
        ("pad", (500, 400), (256, 256), False, (0, 0, 500, 400), (256, 205), (256, 256), (0, 25)),
        ("pad", (50, 100), (200, 200), True, (0, 0, 50, 100), (50, 100), (200, 200), (75, 50)),
        ("shortest", (500, 400), (64, 64), False, (0, 0, 500, 400), (80, 64), (80, 64), (0, 0)),
        ("shortest", (50, 100), (200, 200), True, (0, 0, 50, 100), (50, 100), (50, 100), (0, 0)),
        ("pad", (10000, 1), (64, 64), False, (0, 0, 10000, 1), (64, 1), (64, 64), (0, 31)),
    ],
)  # fmt: skip
def test_the_layout_of_a_mode(mode, source, target, only_shrink, crop, content, canvas, offset):
    options = _options(mode, target[1], target[0], only_shrink=only_shrink)
    layout = canvas_layout(source[0], source[1], options)
    assert layout.crop == pytest.approx(crop)
    assert (layout.content, layout.canvas, layout.offset) == (content, canvas, offset)


@given(st.sampled_from(RESIZE_MODES), _SIDE, _SIDE, st.integers(1, 512), st.integers(1, 512))
def test_only_shrink_never_enlarges_and_stays_inside(mode, width, height, to_height, to_width):
    layout = canvas_layout(width, height, _options(mode, to_height, to_width, only_shrink=True))
    left, top, right, bottom = layout.crop
    assert 0 <= left < right <= width and 0 <= top < bottom <= height
    # Half a pixel of rounding, and never less than one pixel.
    assert layout.content[0] <= max(1, right - left + 0.5)
    assert layout.content[1] <= max(1, bottom - top + 0.5)
    assert layout.content[0] + layout.offset[0] <= layout.canvas[0]
    assert layout.content[1] + layout.offset[1] <= layout.canvas[1]
    if mode == "pad":
        assert layout.canvas == (to_width, to_height)


@given(_BOXES)
def test_boxes_keep_every_bit_if_the_picture_does_not_change(boxes):
    assert map_boxes(boxes, BoxTransform()) == list(enumerate(boxes))


def test_boxes_are_clipped_to_the_visible_half_or_left_out():
    boxes = [(0.5, 0.75, 0.25, 0.75), (-3.0, 7.0, -1.0, 2.0), (0.0, 0.25, 0.0, 1.0)]
    boxes += [(0.6, 0.5, 0.0, 1.0), (math.nan, 0.5, 0.0, 1.0), (0.5, 0.5, 0.5, 0.5)]
    expected = [(0, (0.5, 1.0, 0.25, 0.75)), (1, (0.0, 1.0, 0.0, 1.0)), (5, (0.5,) * 4)]
    assert map_boxes(boxes, BoxTransform(1, visible=(0.25, 0.0, 0.75, 1.0))) == expected


@settings(max_examples=150, deadline=None)
@given(_SIZES, _RANGE, _RANGE, _MODES, _TARGETS, st.integers(1, 8), _FRAMES, st.booleans())
def test_a_drawn_rectangle_is_where_the_mapped_box_says(
    size, xs, ys, mode, target, orientation, frame, only_shrink
):
    width, height = size
    left, right = int(xs[0] * (width - 20)), int(xs[1] * (width - 20)) + 20
    top, bottom = int(ys[0] * (height - 20)), int(ys[1] * (height - 20)) + 20
    picture = Image.new("RGB", size)
    ImageDraw.Draw(picture).rectangle((left, top, right - 1, bottom - 1), fill="white")
    shown = picture if frame == "stored" else stored(picture, orientation)
    more = {"only_shrink": only_shrink, "background": (0, 0, 0), "subsampling": "4:4:4"}
    options = _options(mode, *target, bbox_frame=frame, **more)
    exif = Image.Exif()
    exif[0x0112] = orientation
    encoded = encode_image(saved(shown, subsampling="4:4:4", quality=95, exif=exif), options)
    assert encoded.box_transform.size_px == size
    box = (left / width, right / width, top / height, bottom / height)
    mapped = map_boxes([box], encoded.box_transform)
    seen = opened_bytes(encoded.data).convert("L").point([0] * 128 + [255] * 128).getbbox()
    w, h = encoded.width_px, encoded.height_px
    if not mapped:
        assert seen is None
        return
    xmin, xmax, ymin, ymax = mapped[0][1]
    if seen is None:  # A sliver at the edge of a crop may be fainter than half white.
        assert min((xmax - xmin) * w, (ymax - ymin) * h) < 1.5
        return
    assert seen == pytest.approx((xmin * w, ymin * h, xmax * w, ymax * h), abs=1.5)
