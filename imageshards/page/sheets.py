"""Small pictures: thumbnails, pictures inside a page, and contact sheets."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from imageshards.jpeg import can_draft, open_picture

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

    Font = ImageFont.ImageFont | ImageFont.FreeTypeFont

COLUMNS = 8
GAP_PX = 8
CAPTION_PX = 18

# The light page's colours: a sheet is seen outside of it.
_PAPER, _INK, _TRACK = (251, 250, 248), (80, 86, 94), (239, 238, 234)
# At this size more quality would not be visible.
_JPEG_QUALITY = 80


def thumbnail(encoded: bytes, side_px: int) -> Image.Image | None:
    """A picture in RGB, at most `side_px` wide and high; None where it cannot be decoded."""
    try:
        with open_picture(encoded) as picture:
            if can_draft(encoded):
                picture.draft("RGB", (side_px, side_px))
            else:
                picture.load()  # else `thumbnail` drafts
            picture.thumbnail((side_px, side_px))
            return picture.convert("RGB")
    except (OSError, SyntaxError, ValueError):
        return None


def data_uri(picture: Image.Image) -> str:
    """A picture inside the page."""
    buffer = io.BytesIO()
    picture.save(buffer, "jpeg", quality=_JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def contact_sheet(
    pictures: Sequence[Image.Image], captions: Sequence[str], side_px: int
) -> Image.Image:
    """Pictures in rows of `COLUMNS`, a line of text under each, cut where there is no room.

    All are RGB, none is larger than `side_px`, the sides of a picture's place.
    """
    from PIL import Image, ImageDraw

    columns = max(1, min(COLUMNS, len(pictures)))
    rows = max(1, -(-len(pictures) // COLUMNS))
    step_x, step_y = side_px + GAP_PX, side_px + CAPTION_PX + GAP_PX
    sheet = Image.new("RGB", (columns * step_x + GAP_PX, rows * step_y + GAP_PX), _PAPER)
    draw, font = ImageDraw.Draw(sheet), _font()
    for i, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        x, y = GAP_PX + i % COLUMNS * step_x, GAP_PX + i // COLUMNS * step_y
        draw.rectangle((x, y, x + side_px - 1, y + side_px - 1), fill=_TRACK)
        sheet.paste(
            picture, (x + (side_px - picture.width) // 2, y + (side_px - picture.height) // 2)
        )
        draw.text((x, y + side_px + 2), _fitted(caption, side_px, draw, font), fill=_INK, font=font)
    return sheet


def _font() -> Font:
    from PIL import ImageFont

    try:
        return ImageFont.truetype("DejaVuSans.ttf", 11)
    except OSError:  # Pillow's own font knows Latin letters only.
        return ImageFont.load_default(size=12)


def _fitted(text: str, width_px: int, draw: ImageDraw.ImageDraw, font: Font) -> str:
    """As much of a text as there is room for, on one line."""
    whole = fitting = " ".join(text[:200].split())
    while draw.textlength(fitting, font=font) > width_px:
        whole = whole[:-1]
        fitting = whole + "…"
    return fitting
