"""Resize geometry: what is cropped, scaled and padded, and where boxes go. Arithmetic only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from imageshards.images.options import ImageOptions

Box = tuple[float, float, float, float]
"""`xmin, xmax, ymin, ymax`, relative to the picture's sides (0..1)."""

# EXIF orientation → (swap the axes, then mirror left-right, then mirror top-bottom): what
# makes the stored pixels upright. CIPA DC-008 (Exif 2.32), tag 0x0112.
TURNS: dict[int, tuple[bool, bool, bool]] = {
    1: (False, False, False),
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}


class CanvasLayout(NamedTuple):
    """How an upright picture becomes the output canvas, in pixels.

    Attributes:
        crop: `left, top, right, bottom` of the part that is kept, in source pixels.
        content: `width, height` the kept part is resized to.
        canvas: `width, height` of the output.
        offset: `x, y` of the content on the canvas.
    """

    crop: tuple[float, float, float, float]
    content: tuple[int, int]
    canvas: tuple[int, int]
    offset: tuple[int, int] = (0, 0)

    @property
    def shrink(self) -> float:
        """Source pixels per output pixel, along the axis that shrinks less; below 1: enlarged."""
        left, top, right, bottom = self.crop
        return min((right - left) / self.content[0], (bottom - top) / self.content[1])


class BoxTransform(NamedTuple):
    """How boxes given on the source map to the output.

    Attributes:
        orientation: EXIF orientation the boxes still have to follow; 1 for none.
        visible: `left, top, right, bottom` of the kept part of the upright picture (0..1).
        content: Where that part lies on the output, likewise (0..1).
        size_px: `width, height` of the picture that the boxes are given on, before any turn.
    """

    orientation: int = 1
    visible: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    content: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    size_px: tuple[int, int] = (1, 1)


def swaps_axes(orientation: int) -> bool:
    """Whether the upright picture's width is the stored height."""
    return TURNS[orientation][0]


def canvas_layout(width_px: int, height_px: int, options: ImageOptions) -> CanvasLayout:
    """The layout of an upright picture of `width_px` x `height_px` under `options`."""
    whole = (0.0, 0.0, float(width_px), float(height_px))
    target = (options.width_px, options.height_px)
    if options.resize_mode == "none":
        return CanvasLayout(whole, (width_px, height_px), (width_px, height_px))
    if options.resize_mode == "shortest":
        size = _shortest(width_px, height_px, options)
        return CanvasLayout(whole, size, size)
    if options.resize_mode == "crop":
        return _crop(width_px, height_px, target, options.only_shrink)
    if options.resize_mode == "pad":
        return _pad(width_px, height_px, target, options.only_shrink)
    if options.only_shrink:
        target = (min(target[0], width_px), min(target[1], height_px))
    return CanvasLayout(whole, target, target)


def _rounded(length: float) -> int:
    """The nearest whole number of pixels, halves up, at least one."""
    return max(1, int(length + 0.5))


def _shortest(width_px: int, height_px: int, options: ImageOptions) -> tuple[int, int]:
    side = options.height_px
    if options.only_shrink:
        side = min(side, width_px, height_px)
    if width_px <= height_px:
        return side, _rounded(height_px * side / width_px)
    return _rounded(width_px * side / height_px), side


def _crop(
    width_px: int, height_px: int, target: tuple[int, int], only_shrink: bool
) -> CanvasLayout:
    kept_width, kept_height = float(width_px), float(height_px)
    if target[0] * height_px >= target[1] * width_px:
        kept_height = width_px * target[1] / target[0]
    else:
        kept_width = height_px * target[0] / target[1]
    # The exact middle, in fractions of a pixel: a mirrored picture gives the mirrored crop.
    left, top = (width_px - kept_width) / 2, (height_px - kept_height) / 2
    size = target
    if only_shrink and kept_width < target[0]:
        size = (_rounded(kept_width), _rounded(kept_height))
    return CanvasLayout((left, top, width_px - left, height_px - top), size, size)


def _pad(width_px: int, height_px: int, target: tuple[int, int], only_shrink: bool) -> CanvasLayout:
    scale = min(target[0] / width_px, target[1] / height_px)
    if only_shrink:
        scale = min(scale, 1.0)
    width = min(target[0], _rounded(width_px * scale))
    height = min(target[1], _rounded(height_px * scale))
    offset = ((target[0] - width) // 2, (target[1] - height) // 2)
    whole = (0.0, 0.0, float(width_px), float(height_px))
    return CanvasLayout(whole, (width, height), target, offset)


def box_transform(
    layout: CanvasLayout, width_px: int, height_px: int, orientation: int = 1
) -> BoxTransform:
    """What `map_boxes` needs, for an upright source of `width_px` x `height_px`."""
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
    """A crop of the upright picture, `left, top, right, bottom`, in the pixels as stored.

    `width_px` and `height_px` are those of the upright picture.
    """
    swap, mirror_x, mirror_y = TURNS[orientation]
    left, top, right, bottom = crop
    if mirror_x:
        left, right = width_px - right, width_px - left
    if mirror_y:
        top, bottom = height_px - bottom, height_px - top
    return (top, left, bottom, right) if swap else (left, top, right, bottom)


def _upright(box: Box, orientation: int) -> Box:
    swap, mirror_x, mirror_y = TURNS[orientation]
    xmin, xmax, ymin, ymax = box
    if swap:
        xmin, xmax, ymin, ymax = ymin, ymax, xmin, xmax
    if mirror_x:
        xmin, xmax = 1 - xmax, 1 - xmin
    if mirror_y:
        ymin, ymax = 1 - ymax, 1 - ymin
    return xmin, xmax, ymin, ymax


def _map_axis(
    low: float, high: float, visible: tuple[float, float], content: tuple[float, float]
) -> tuple[float, float] | None:
    clipped_low, clipped_high = max(low, visible[0]), min(high, visible[1])
    # A box that only touches the visible part from outside is outside; a box that was a
    # line or a point before stays one.
    if not clipped_low <= clipped_high or clipped_low == clipped_high and low < high:
        return None
    scale = (content[1] - content[0]) / (visible[1] - visible[0])
    ends = [content[0] + (end - visible[0]) * scale for end in (clipped_low, clipped_high)]
    return max(content[0], ends[0]), min(content[1], ends[1])


def map_boxes(boxes: Iterable[Box], transform: BoxTransform) -> list[tuple[int, Box]]:
    """Boxes on the source, as boxes on the output.

    Boxes follow the EXIF orientation (when they were given on the stored pixels), are
    clipped to the part of the picture that is kept, and move with it.

    Args:
        boxes: `xmin, xmax, ymin, ymax` in 0..1; ends outside 0..1 are clipped.
        transform: `EncodedImage.box_transform`.

    Returns:
        `(index, box)` for every box of which something is left, in the given order.
        Boxes wholly outside, reversed boxes and boxes with a NaN are left out.
    """
    left, top, right, bottom = transform.visible
    to_left, to_top, to_right, to_bottom = transform.content
    mapped = []
    for index, box in enumerate(boxes):
        xmin, xmax, ymin, ymax = _upright(box, transform.orientation)
        if not (xmin <= xmax and ymin <= ymax):
            continue
        x = _map_axis(xmin, xmax, (left, right), (to_left, to_right))
        y = _map_axis(ymin, ymax, (top, bottom), (to_top, to_bottom))
        if x is not None and y is not None:
            mapped.append((index, (x[0], x[1], y[0], y[1])))
    return mapped
