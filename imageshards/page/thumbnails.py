"""Small pictures, and how they are inside a page."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

from imageshards.jpeg import DECODE_ERRORS, can_draft, eight_bits, open_picture

if TYPE_CHECKING:
    from PIL import Image

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
            small = eight_bits(picture)
            small.thumbnail((side_px, side_px))
            return small.convert("RGB")
    except DECODE_ERRORS:
        return None


def data_uri(picture: Image.Image) -> str:
    """A picture inside the page."""
    buffer = io.BytesIO()
    picture.save(buffer, "jpeg", quality=_JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
