"""A record's picture against what the record and the manifest say of it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

_MODES = {1: "L", 3: "RGB"}


def size_problem(height: int, width: int, channels: int, image: Mapping[str, Any]) -> str:
    """Why a size in pixels cannot come from the manifest's image options; "" if it can.

    Args:
        height, width: Of the encoded picture, in pixels.
        channels: 1 or 3.
        image: The manifest's `image`.
    """
    if channels != image.get("channels", channels):
        return f"it has {channels} channels; the manifest says {image['channels']}"
    size, mode = image["size"], image["mode"]
    target = (size, size) if isinstance(size, int) else tuple(size)
    if min(height, width) < 1:
        return f"its size is {width}x{height} px"
    if mode == "none":
        return ""
    if mode == "shortest":
        right = min(height, width) == target[0]
        smaller = min(height, width) < target[0]
    else:
        right = (height, width) == target
        smaller = height <= target[0] and width <= target[1]
    if right or (smaller and image.get("only_shrink")):
        return ""
    return (
        f"its size is {width}x{height} px, which --resize_mode {mode} to "
        f"{target[1]}x{target[0]} px does not give"
    )


def picture_problem(encoded: bytes, height: int, width: int, channels: int) -> str:
    """Why JPEG bytes do not decode to what their record says; "" if they do."""
    from PIL import Image

    # Our own pictures, already limited by the build: a large one is no bomb here.
    Image.MAX_IMAGE_PIXELS = None
    try:
        with Image.open(io.BytesIO(encoded)) as picture:
            found = (picture.format, picture.size, picture.mode)
            if found == ("JPEG", (width, height), _MODES.get(channels)):
                picture.load()
                return ""
    except (OSError, SyntaxError, ValueError) as e:
        return f"the picture does not decode ({e})".rstrip(".")
    return (
        f"the picture is {found[0]} {found[1][0]}x{found[1][1]} px {found[2]}; the record says "
        f"JPEG {width}x{height} px with {channels} channels"
    )
