"""Makes small pictures, draws boxes on them, and embeds them in a page."""

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

_JPEG_QUALITY = 80  # More quality is not visible at this size.
_MAX_BOXES = 50  # More boxes would hide the picture.
# A bright line with a dark edge is visible on dark and on light pictures. JPEG blurs colours, so
# the line and its edge differ in brightness above all.
_LINE, _EDGE = (255, 255, 0), (0, 0, 0)


def thumbnail(encoded: bytes, side_px: int) -> Image.Image | None:
    """Returns an RGB picture, at most `side_px` wide and high; None if it cannot be decoded."""
    try:
        with open_picture(encoded) as picture:
            if can_draft(encoded):
                picture.draft("RGB", (side_px, side_px))
            else:
                picture.load()  # `thumbnail` would call `draft` on a picture that is not loaded.
            small = eight_bits(picture)
            small.thumbnail((side_px, side_px))
            return small.convert("RGB")
    except DECODE_ERRORS:
        return None


def draw_boxes(
    picture: Image.Image, boxes: Iterable[tuple[float, float, float, float]]
) -> Image.Image:
    """Returns an RGB copy of a picture with the outlines of its first boxes.

    Args:
        picture: The picture.
        boxes: (xmin, ymin, xmax, ymax) of each box, as shares of the width and the height.
            Malformed boxes and boxes outside of the picture are skipped.
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
    """Yields the boxes of a record for `draw_boxes`; none if the numbers of sides differ."""
    sides = xmin, xmax, ymin, ymax = [features.get(name, ()) for name in BOX_FEATURES]
    if len(set(map(len, sides))) == 1:
        yield from zip(xmin, ymin, xmax, ymax, strict=True)


def _pixels(box: Sequence[float], size: tuple[int, int]) -> tuple[int, int, int, int] | None:
    """Returns the first and last column and row of a box, clipped; None for an empty box."""
    try:
        left, upper, right, lower = (min(max(float(side), 0.0), 1.0) for side in box)
    except (OverflowError, TypeError, ValueError):
        return None
    if not (left < right and upper < lower):  # Any comparison with NaN is false.
        return None
    width, height = size
    x, y = min(round(left * width), width - 1), min(round(upper * height), height - 1)
    # A box that is smaller than a pixel still gets one.
    return x, y, max(x, round(right * width) - 1), max(y, round(lower * height) - 1)


def data_uri(picture: Image.Image) -> str:
    """Returns a picture as a JPEG in a `data:` URI."""
    buffer = io.BytesIO()
    picture.save(buffer, "jpeg", quality=_JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
