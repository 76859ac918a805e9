"""Contact sheets: the pictures of a batch, small, with a line under each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

COLUMNS = 8
THUMB_PX = 144
GAP_PX = 8
CAPTION_PX = 18

_PAPER, _INK, _TRACK = (251, 250, 248), (80, 86, 94), (239, 238, 234)


def contact_sheet(pictures: np.ndarray, captions: Sequence[str]) -> Image.Image:
    """Pictures in rows of `COLUMNS`, a caption under each.

    Args:
        pictures: uint8 [n, height, width, 3 or 1].
        captions: One per picture; cut where there is no room.

    Returns:
        An RGB picture.
    """
    from PIL import Image, ImageDraw

    columns = max(1, min(COLUMNS, len(pictures)))
    rows = max(1, -(-len(pictures) // COLUMNS))
    step_x, step_y = THUMB_PX + GAP_PX, THUMB_PX + CAPTION_PX + GAP_PX
    sheet = Image.new("RGB", (columns * step_x + GAP_PX, rows * step_y + GAP_PX), _PAPER)
    draw, font = ImageDraw.Draw(sheet), _font()
    for i, (pixels, caption) in enumerate(zip(pictures, captions, strict=True)):
        x, y = GAP_PX + i % COLUMNS * step_x, GAP_PX + i // COLUMNS * step_y
        draw.rectangle((x, y, x + THUMB_PX - 1, y + THUMB_PX - 1), fill=_TRACK)
        thumb = _thumb(pixels)
        sheet.paste(thumb, (x + (THUMB_PX - thumb.width) // 2, y + (THUMB_PX - thumb.height) // 2))
        draw.text((x, y + THUMB_PX + 2), _fitted(caption, draw, font), fill=_INK, font=font)
    return sheet


def _thumb(pixels: np.ndarray) -> Image.Image:
    """The picture as large as fits; small ones are enlarged, their pixels kept square."""
    from PIL import Image

    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")
    scale = THUMB_PX / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.BOX if scale < 1 else Image.Resampling.NEAREST)


def _font() -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    from PIL import ImageFont

    try:
        return ImageFont.truetype("DejaVuSans.ttf", 11)
    except OSError:  # Pillow's own font knows Latin letters only.
        return ImageFont.load_default(size=12)


def _fitted(
    text: str,
    draw: ImageDraw.ImageDraw,
    font: ImageFont.ImageFont | ImageFont.FreeTypeFont,
) -> str:
    """As much of a text as there is room for, on one line."""
    text = " ".join(text[:200].split())
    if draw.textlength(text, font=font) <= THUMB_PX:
        return text
    while text and draw.textlength(text + "…", font=font) > THUMB_PX:
        text = text[:-1]
    return text + "…"
