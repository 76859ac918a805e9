"""Small pictures, and how they are inside a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from imageshards.jpeg import DECODE_ERRORS, can_draft, eight_bits, open_picture
from imageshards.manifest import BOX_FEATURES

if TYPE_CHECKING:
    from PIL import Image

# At this size more quality would not be visible.
_JPEG_QUALITY = 80
# More boxes would hide the picture.
_MAX_BOXES = 50
# A bright line with a dark edge is visible on dark and on light pictures. JPEG blurs colours, so
# the line differs from its edge in brightness above all.
_LINE, _EDGE = (255, 255, 0), (0, 0, 0)


def thumbnail(encoded: bytes, side_px: int) -> Image.Image | None:
    """A picture in RGB, at most `side_px` wide and high; None where it cannot be decoded."""
    try:
        with open_picture(encoded) as picture:
            if can_draft(encoded):
                picture.draft("RGB", (side_px, side_px))
            else:
                picture.load()  # else `thumbnail` drafts
            small = eight_bits(picture)
            small.thumbnail((side_px, side_px))
            return small.convert("RGB")
    except DECODE_ERRORS:
        return None


def draw_boxes(
    picture: Image.Image, boxes: Iterable[tuple[float, float, float, float]]
) -> Image.Image:
    """A copy of a picture, in RGB, with the outlines of its first `_MAX_BOXES` boxes.

    Args:
        boxes: (xmin, ymin, xmax, ymax) of each, 0 to 1 of the width and of the height. Boxes that
            are malformed or outside of the picture are skipped.
    """
    from PIL import ImageDraw

    drawn = picture.convert("RGB") if picture.mode != "RGB" else picture.copy()
    pen = ImageDraw.Draw(drawn)
    places = (_pixels(box, drawn.size) for box in boxes)
    for left, upper, right, lower in islice(filter(None, places), _MAX_BOXES):
        pen.rectangle((left - 1, upper - 1, right + 1, lower + 1), outline=_EDGE)
        pen.rectangle((left, upper, right, lower), outline=_LINE)
    return drawn


def record_boxes(features: Mapping[str, Any]) -> Iterator[Any]:
    """The boxes of a record as `draw_boxes` takes them; none where the sides do not match."""
    sides = xmin, xmax, ymin, ymax = [features.get(name, ()) for name in BOX_FEATURES]
    if len(set(map(len, sides))) == 1:
        yield from zip(xmin, ymin, xmax, ymax, strict=True)


def _pixels(box: Sequence[float], size: tuple[int, int]) -> tuple[int, int, int, int] | None:
    """The first and the last column and row of a box, clipped; None for a box without pixels."""
    try:
        left, upper, right, lower = (min(max(float(side), 0.0), 1.0) for side in box)
    except (OverflowError, TypeError, ValueError):
        return None
    if not (left < right and upper < lower):  # NaN is not less, either
        return None
    width, height = size
    x, y = min(round(left * width), width - 1), min(round(upper * height), height - 1)
    return x, y, max(x, round(right * width) - 1), max(y, round(lower * height) - 1)


def data_uri(picture: Image.Image) -> str:
    """A picture inside the page."""
    buffer = io.BytesIO()
    picture.save(buffer, "jpeg", quality=_JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
