"""Renders the figures of a program, and small pictures, as one HTML file that needs no other.

Beside this file lie `style.css` and the templates `base.jinja` (the page around the sections) and
`kit.jinja` (tables, tiles, charts).
"""

from __future__ import annotations

import base64
import functools
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from imageshards.jpeg import decoded
from imageshards.manifest import BOX_FEATURES
from imageshards.text import counted

if TYPE_CHECKING:
    import jinja2
    from PIL import Image

# HTML forbids these control characters, and no browser shows them.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_JPEG_QUALITY = 80  # More quality is not visible at the size of a thumbnail.
_MAX_BOXES = 50  # More boxes would hide the picture.
# A bright line with a dark edge is visible on dark and on light pictures. JPEG blurs colours, so
# the line and its edge differ in brightness above all.
_LINE, _EDGE = (255, 255, 0), (0, 0, 0)


class Meter(NamedTuple):
    """A cell of a table: a bar filled by `share` (0 to 1) of its width, and a text beside it."""

    share: float
    text: str


# The cells of a table, row by row.
Rows = Sequence[Sequence[str | Meter]]


def render(package: str, template: str, **figures: Any) -> str:
    """Returns a page as one HTML document without outside resources.

    Args:
        package: The package with the template, which may use `base.jinja` and `kit.jinja`.
        template: The file name of the template.
        **figures: The variables of the template; all values are escaped.
    """
    text = _environment(package).get_template(template).render(figures)
    # File names may hold control characters, and bytes that are not UTF-8.
    return _CONTROL.sub("\ufffd", text).encode("utf-8", "replace").decode("utf-8")


@functools.cache
def _environment(package: str) -> jinja2.Environment:
    import jinja2  # Most runs of a program draw no page, so jinja2 is imported late.

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(each, ".") for each in (package, "imageshards.page")]
        ),
        autoescape=True,  # A class may be called `<script>`.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Templates call these functions as filters.
    environment.filters |= {
        function.__name__: function
        for function in (counted, data_uri, number, percent, share, size)
    }
    return environment


def number(value: float) -> str:
    """Formats a number: 1234567 → "1,234,567", 12345.6 → "12,346", 1.23456 → "1.235"."""
    is_whole = isinstance(value, int) or 1e4 <= abs(value) < 1e15
    return f"{value:,.0f}" if is_whole else f"{value:,.4g}"


def size(size_bytes: float) -> str:
    """Formats bytes with a decimal unit: 27_345_000 → "27.3 MB"."""
    units = ["B", "kB", "MB", "GB", "TB"]
    # Three digits round 999.5 up to 1000.
    while size_bytes >= 999.5 and len(units) > 1:
        size_bytes /= 1000
        del units[0]
    return f"{size_bytes:.0f} B" if units[0] == "B" else f"{size_bytes:.3g} {units[0]}"


def percent(share: float | None) -> str:
    """Formats a share with a no-break space: 0.0214 → "2.1 %"; None → "–"."""
    if share is None:
        return "–"
    if share in (0, 1):
        return f"{100 * share:.0f}\u00a0%"
    # Rounding must not turn a share into all or nothing.
    return f"{min(max(100 * share, 0.1), 99.9):.1f}\u00a0%"


def share(part: float, whole: float) -> str:
    """Formats a part of a whole like `percent`, with two digits for a rare part."""
    value = part / whole if whole else 0.0
    return f"{100 * value:.2g}\u00a0%" if 0 < value < 0.01 else percent(value)


def thumbnail(encoded: object, side_px: int) -> Image.Image | None:
    """Returns an RGB picture, at most `side_px` wide and high; None if it cannot be decoded."""
    picture = decoded(encoded, (side_px, side_px))
    if picture is not None:
        picture.thumbnail((side_px, side_px))
    return picture


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
