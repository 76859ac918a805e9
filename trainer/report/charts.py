"""Computes charts: places of lines and points, axes and texts, which `kit.jinja` draws as SVG."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from imageshards.page import number

# A line between few points looks like many points, so shorter lines show their points.
MAX_DOTS = 30
# More points would overlap and make the page large.
MAX_POINTS = 2000
# The two equal steps of an axis, times a power of ten.
_STEPS = (1, 2, 2.5, 5, 10)
_MAX_TICKS = 6

Unit = Callable[[float], str]


class Dot(NamedTuple):
    """A point in percent from the left and from the top; `title` shows on hover."""

    x: float
    y: float
    title: str

    @property
    def at(self) -> str:
        """The coordinates in the syntax of an SVG path."""
        return f"{self.x:.4g} {self.y:.4g}"


class Line(NamedTuple):
    """One line of a chart.

    Attributes:
        name: The name in the legend.
        kind: The class in the style sheet: `front`, `back`, `cloud` for separate points, or `best`
            for a single marked point.
        path: The SVG path, in percent from the left and from the top.
        dots: The visible points.
    """

    name: str
    kind: str
    path: str
    dots: Sequence[Dot]


class Chart(NamedTuple):
    """A chart of lines over numbered steps, or of points.

    Attributes:
        title, subtitle: The heading.
        description: The text for a screen reader.
        scale: The numbers at the top, the half and the foot of the vertical axis.
        ticks: (percent from the left, text) of each mark below the chart.
        lines: The lines, from the back to the front.
    """

    title: str
    subtitle: str
    description: str
    scale: tuple[str, str, str]
    ticks: Sequence[tuple[float, str]]
    lines: Sequence[Line] = ()


class Curves(NamedTuple):
    """The lines of one chart, of training and of validation.

    Attributes:
        title, unit: The heading, and the meaning of the values.
        key: The key of a training figure in metrics.jsonl.
        least: The least end of an axis from zero; None for an axis around the values.
        is_share: Whether the values are shares, which are shown in percent.
    """

    title: str
    unit: str
    key: str
    least: float | None = None
    is_share: bool = False


def line_chart(
    wanted: Curves, history: Sequence[Mapping[str, Any]], best: int | None = None
) -> Chart | None:
    """Draws figures of at least two epochs; a value that is not finite leaves a gap.

    Args:
        wanted: The figures, of which `history` has one object for each epoch.
        history: The objects of metrics.jsonl.
        best: The index of the best epoch, which is marked on the line of the validation.

    Returns:
        The chart, without empty lines; None if all lines are empty.
    """
    title, subtitle, key, least, is_share = wanted
    unit: Unit = (lambda value: f"{100 * value:.3g}\u00a0%") if is_share else number
    epochs = [record["epoch"] for record in history]
    values = {
        name: np.array([record.get(each) for record in history], float)
        for name, each in (("training", key), ("validation", f"val_{key}"))
    }
    known = {name: line[np.isfinite(line)] for name, line in values.items()}
    known = {name: line for name, line in known.items() if len(line)}
    if not known:
        return None
    shown = np.concatenate([*known.values()])
    bottom, top = _axis(float(shown.min()), float(shown.max()), least)

    def across(epoch: int) -> float:
        return 100 * (epoch - epochs[0]) / (epochs[-1] - epochs[0])

    def dot(name: str, index: int) -> Dot | None:
        epoch, value = epochs[index], float(values[name][index])
        if not math.isfinite(value):
            return None
        # SVG counts from the top.
        y = 100 * (top - value) / (top - bottom)
        return Dot(across(epoch), y, f"epoch {epoch}, {name}: {unit(value)}")

    drawn = []
    for name in known:
        dots = [dot(name, i) for i in range(len(epochs))]
        kind = "front" if name == list(known)[-1] else "back"
        seen = [d for d in dots if d] if len(epochs) <= MAX_DOTS else []
        drawn.append(Line(name, kind, _path(dots), seen))
    if best is not None and "validation" in known and (mark := dot("validation", best)):
        drawn.append(Line("best loss", "best", "", [mark]))
    courses = [f"{name} {unit(float(v[0]))} to {unit(float(v[-1]))}" for name, v in known.items()]
    return Chart(
        title,
        subtitle,
        f"{title}, {subtitle}, epoch {epochs[0]} to {epochs[-1]}: {'; '.join(courses)}.",
        _scale(bottom, top, unit),
        [(across(epoch), str(epoch)) for epoch in _ticks(epochs[0], epochs[-1])],
        lines=drawn,
    )


def scatter_chart(
    title: str, subtitle: str, across: Sequence[float], up: Sequence[float]
) -> Chart | None:
    """Draws points on two axes of the same scale, and the line of equal values.

    The chart has at most `MAX_POINTS` of the finite points; None without a finite point.
    """
    pairs = [(x, y) for x, y in zip(across, up, strict=True) if math.isfinite(x + y)]
    if not pairs:
        return None
    bottom, top = _axis(min(map(min, pairs)), max(map(max, pairs)), None)
    every = -(-len(pairs) // MAX_POINTS)  # Rounded up, so that at most MAX_POINTS are left.
    seen = [[100 * (v - bottom) / (top - bottom) for v in pair] for pair in pairs[::every]]
    some = f", every {every}th of them shown" if every > 1 else ""
    scale = _scale(bottom, top, number)
    return Chart(
        title,
        subtitle,
        f"{title}, {subtitle}, {scale[2]} to {scale[0]}: {number(len(pairs))} points{some}.",
        scale,
        list(zip((0.0, 50.0, 100.0), reversed(scale), strict=True)),
        lines=[
            Line("equal", "back", "M0 100L100 0", ()),
            Line("points", "cloud", "".join(f"M{x:.4g} {100 - y:.4g}h0" for x, y in seen), ()),
        ],
    )


def _path(dots: Sequence[Dot | None]) -> str:
    """Returns the SVG path of a line through points, with a gap for each None."""
    path, pen = "", "M"
    for dot in dots:
        path += f"{pen}{dot.at}" if dot else ""
        pen = "L" if dot else "M"
    return path


def _axis(low: float, high: float, least: float | None) -> tuple[float, float]:
    """Returns both ends of an axis that has round numbers at its ends and its half."""
    if least is not None and low >= 0:
        low, high = 0.0, max(high, least)
    # Equal values need an axis with some height; its step is half of the value.
    flat = high - low <= 1e-6 * abs(high)
    step = _round_up((abs(high) if flat else high - low) / 2)
    while math.floor(low / step) * step + 2 * step < high:
        step = _round_up(step * 1.01)
    bottom = math.floor(low / step) * step
    return bottom, bottom + 2 * step


def _ticks(first: int, last: int) -> list[int]:
    """Returns both ends, and evenly spaced numbers between them."""
    between = min(_MAX_TICKS, last - first)
    return [round(first + (last - first) * i / between) for i in range(between + 1)]


def _scale(bottom: float, top: float, unit: Unit) -> tuple[str, str, str]:
    """Returns the texts at the top, the half and the foot of an axis."""
    whole, half, foot = (
        unit(int(v) if v == int(v) else v) for v in (top, (top + bottom) / 2, bottom)
    )
    return whole, half, foot


def _round_up(value: float) -> float:
    """Rounds up to a number of `_STEPS` times a power of ten; 1 for 0."""
    if value < sys.float_info.min:  # Floats below have no exact power of ten.
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in _STEPS if power * step >= value * 0.9999)
