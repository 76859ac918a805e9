"""Computes how a picture is turned, cropped, scaled and padded, and where its boxes end up."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from imageshards.images.options import ImageOptions

Box = tuple[float, float, float, float]
"""`xmin, xmax, ymin, ymax`, relative to the picture's sides (0..1)."""

ORIENTATION_TAG = 0x0112  # of EXIF
# EXIF orientation → the steps that turn stored pixels upright: (swap the axes, then mirror
# left-right, then mirror top-bottom). CIPA DC-008 (Exif 2.32), tag 0x0112.
TURNS: dict[int, tuple[bool, bool, bool]] = {
    1: (False, False, False), 2: (False, True, False), 3: (False, True, True),
    4: (False, False, True), 5: (True, False, False), 6: (True, True, False),
    7: (True, True, True), 8: (True, False, True),
}  # fmt: skip


class CanvasLayout(NamedTuple):
    """The placement of an upright picture on the output canvas, in pixels.

    Attributes:
        crop: `left, top, right, bottom` of the part that is kept, in source pixels.
        content: `width, height` of the kept part after resizing.
        canvas: `width, height` of the output.
        offset: `x, y` of the content on the canvas.
    """

    crop: tuple[float, float, float, float]
    content: tuple[int, int]
    canvas: tuple[int, int]
    offset: tuple[int, int] = (0, 0)

    @property
    def shrink(self) -> float:
        """Source pixels per output pixel, along the axis that shrinks less; below 1 if enlarged."""
        left, top, right, bottom = self.crop
        return min((right - left) / self.content[0], (bottom - top) / self.content[1])


class BoxTransform(NamedTuple):
    """The mapping of boxes from a source picture to the output.

    Attributes:
        orientation: EXIF orientation to turn the boxes by; 1 for none.
        visible: `left, top, right, bottom` of the kept part of the upright picture (0..1).
        content: `left, top, right, bottom` of the same part on the output (0..1).
        size_px: `width, height` of the picture that the boxes refer to, before any turn.
    """

    orientation: int = 1
    visible: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    content: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    size_px: tuple[int, int] = (1, 1)


def swaps_axes(orientation: int) -> bool:
    """Returns whether the upright picture's width is the stored height."""
    return TURNS[orientation][0]


def known_orientation(orientation: object) -> int:
    """Returns a valid orientation, else 1, which means as stored."""
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def exif_orientation(exif: bytes) -> int:
    """Returns the orientation in an EXIF block, 1..8; 1 if it is missing or invalid.

    Pillow's reader would parse every tag, which takes longer and warns about the mistakes of
    cameras. The layout is TIFF 6.0, section 2, with the tag 0x0112 of Exif 2.32.
    """
    start = 6 if exif.startswith(b"Exif\0\0") else 0
    order = {b"II": "<", b"MM": ">"}.get(exif[start : start + 2])
    if order is None:
        return 1
    try:
        directory = start + struct.unpack_from(order + "L", exif, start + 4)[0]
        count = struct.unpack_from(order + "H", exif, directory)[0]
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(order + "HH", exif, entry)
            if tag == ORIENTATION_TAG:
                value = {1: "B", 3: "H", 4: "L"}.get(kind, "H")
                return known_orientation(struct.unpack_from(order + value, exif, entry + 8)[0])
    except struct.error:
        pass
    return 1


def canvas_layout(width_px: int, height_px: int, options: ImageOptions) -> CanvasLayout:
    """Returns the layout of an upright picture of `width_px` x `height_px`."""
    whole = (0.0, 0.0, float(width_px), float(height_px))
    target = (options.width_px, options.height_px)
    if options.resize_mode == "none":
        return CanvasLayout(whole, (width_px, height_px), (width_px, height_px))
    if options.resize_mode == "shortest":
        shortest = min(width_px, height_px)
        side = min(options.height_px, shortest) if options.only_shrink else options.height_px
        # The shortest side becomes exactly `side`.
        size = (_rounded(width_px * side / shortest), _rounded(height_px * side / shortest))
        return CanvasLayout(whole, size, size)
    if options.resize_mode == "crop":
        return _crop(width_px, height_px, target, options.only_shrink)
    if options.resize_mode == "pad":
        scale = min(target[0] / width_px, target[1] / height_px)
        if options.only_shrink:
            scale = min(scale, 1.0)
        width = min(target[0], _rounded(width_px * scale))
        height = min(target[1], _rounded(height_px * scale))
        offset = ((target[0] - width) // 2, (target[1] - height) // 2)
        return CanvasLayout(whole, (width, height), target, offset)
    if options.only_shrink:
        target = (min(target[0], width_px), min(target[1], height_px))
    return CanvasLayout(whole, target, target)


def _rounded(length: float) -> int:
    """Rounds to the nearest whole number of pixels, halves up, at least one."""
    return max(1, int(length + 0.5))


def _crop(
    width_px: int, height_px: int, target: tuple[int, int], only_shrink: bool
) -> CanvasLayout:
    kept_width, kept_height = float(width_px), float(height_px)
    if target[0] * height_px >= target[1] * width_px:
        kept_height = width_px * target[1] / target[0]
    else:
        kept_width = height_px * target[0] / target[1]
    # The crop has fractions of a pixel, so that a mirrored picture gives the mirrored crop.
    left, top = (width_px - kept_width) / 2, (height_px - kept_height) / 2
    size = target
    if only_shrink and kept_width < target[0]:
        size = (_rounded(kept_width), _rounded(kept_height))
    return CanvasLayout((left, top, width_px - left, height_px - top), size, size)


def box_transform(
    layout: CanvasLayout, width_px: int, height_px: int, orientation: int = 1
) -> BoxTransform:
    """Returns the mapping of boxes for an upright source of `width_px` x `height_px`."""
    left, top, right, bottom = layout.crop
    x, y = layout.offset
    width, height = layout.canvas
    return BoxTransform(
        orientation,
        (left / width_px, top / height_px, right / width_px, bottom / height_px),
        (x / width, y / height, (x + layout.content[0]) / width, (y + layout.content[1]) / height),
        (height_px, width_px) if swaps_axes(orientation) else (width_px, height_px),
    )


def to_stored(
    crop: tuple[float, float, float, float], width_px: int, height_px: int, orientation: int
) -> tuple[float, float, float, float]:
    """Converts a crop of the upright picture, of `width_px` x `height_px`, to the stored pixels."""
    swap, mirror_x, mirror_y = TURNS[orientation]
    left, top, right, bottom = crop
    if mirror_x:
        left, right = width_px - right, width_px - left
    if mirror_y:
        top, bottom = height_px - bottom, height_px - top
    return (top, left, bottom, right) if swap else (left, top, right, bottom)


def _map_axis(
    low: float, high: float, visible: tuple[float, float], content: tuple[float, float]
) -> tuple[float, float] | None:
    clipped_low, clipped_high = max(low, visible[0]), min(high, visible[1])
    # A box that touches the visible part only from outside is dropped, but a box that is a line
    # or a point already is kept.
    if not clipped_low <= clipped_high or clipped_low == clipped_high and low < high:
        return None
    scale = (content[1] - content[0]) / (visible[1] - visible[0])
    ends = [content[0] + (end - visible[0]) * scale for end in (clipped_low, clipped_high)]
    return max(content[0], ends[0]), min(content[1], ends[1])


def map_boxes(boxes: Iterable[Box], transform: BoxTransform) -> list[tuple[int, Box]]:
    """Maps boxes on the source to boxes on the output.

    Boxes are turned by the EXIF orientation, clipped to the kept part of the picture, and moved
    with it.

    Args:
        boxes: `xmin, xmax, ymin, ymax` in 0..1; ends outside 0..1 are clipped.
        transform: `EncodedImage.box_transform`.

    Returns:
        `(index, box)` for each box that is at least partly visible, in the given order. Reversed
        boxes and boxes with a NaN are dropped.
    """
    left, top, right, bottom = transform.visible
    to_left, to_top, to_right, to_bottom = transform.content
    swap, mirror_x, mirror_y = TURNS[transform.orientation]
    mapped = []
    for index, (xmin, xmax, ymin, ymax) in enumerate(boxes):
        if swap:
            xmin, xmax, ymin, ymax = ymin, ymax, xmin, xmax
        if mirror_x:
            xmin, xmax = 1 - xmax, 1 - xmin
        if mirror_y:
            ymin, ymax = 1 - ymax, 1 - ymin
        if not (xmin <= xmax and ymin <= ymax):  # False for a NaN, too.
            continue
        x = _map_axis(xmin, xmax, (left, right), (to_left, to_right))
        y = _map_axis(ymin, ymax, (top, bottom), (to_top, to_bottom))
        if x is not None and y is not None:
            mapped.append((index, (x[0], x[1], y[0], y[1])))
    return mapped
