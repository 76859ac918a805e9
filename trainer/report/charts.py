"""Computes charts: places of lines and points, axes and texts, which `kit.jinja` draws as SVG."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from imageshards.page import number

# A line between few points looks like many points, so shorter lines show their points.
MAX_DOTS = 30
# More points would overlap and make the page large.
MAX_POINTS = 2000
# The ends of an axis from zero, times a power of ten; the half of each number is round, too.
_ROUND = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)
# The two equal steps of an axis that does not begin at zero, times a power of ten.
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


def line_chart(
    title: str,
    subtitle: str,
    steps: Sequence[int],
    lines: Mapping[str, Sequence[float | None]],
    noun: str,
    *,
    least: float | None = None,
    best: tuple[str, str, int] | None = None,
    unit: Unit = number,
) -> Chart | None:
    """Draws lines over at least two numbered steps; a value that is not finite leaves a gap.

    Args:
        title, subtitle: The heading.
        steps: Rising numbers, for example of epochs.
        lines: Name → a value for each step; the last line is in front.
        noun: The name of a step.
        least: The least end of an axis from zero; None for an axis around the values.
        best: (name in the legend, name of a line, index of a step) of a point to mark.
        unit: Formats a value.

    Returns:
        The chart, without empty lines; None if all lines are empty.
    """
    finite = {
        name: [v if v is not None and math.isfinite(v) else None for v in values]
        for name, values in lines.items()
    }
    found = {name: values for name, values in finite.items() if set(values) != {None}}
    if not found:
        return None
    known = {name: [v for v in values if v is not None] for name, values in found.items()}
    shown = [v for values in known.values() for v in values]
    bottom, top = _axis(min(shown), max(shown), least)

    def across(step: int) -> float:
        return 100 * (step - steps[0]) / (steps[-1] - steps[0])

    def dot(name: str, index: int) -> Dot | None:
        step, value = steps[index], found[name][index]
        if value is None:
            return None
        # SVG counts from the top.
        y = 100 * (top - value) / (top - bottom)
        return Dot(across(step), y, f"{noun} {step}, {name}: {unit(value)}")

    drawn = []
    for name in found:
        dots = [dot(name, i) for i in range(len(steps))]
        kind = "front" if name == list(found)[-1] else "back"
        seen = [d for d in dots if d] if len(steps) <= MAX_DOTS else []
        drawn.append(Line(name, kind, _path(dots), seen))
    if best and best[1] in found and (mark := dot(*best[1:])):
        drawn.append(Line(best[0], "best", "", [mark]))
    courses = [f"{name} {unit(v[0])} to {unit(v[-1])}" for name, v in known.items()]
    return Chart(
        title,
        subtitle,
        f"{title}, {subtitle}, {noun} {steps[0]} to {steps[-1]}: {'; '.join(courses)}.",
        _scale(bottom, top, unit),
        [(across(step), str(step)) for step in _step_ticks(steps[0], steps[-1])],
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
        return 0.0, _round_up(max(high, least))
    # Equal values need an axis with some height; its step is half of the value.
    flat = high - low <= 1e-6 * abs(high)
    step = _round_up((abs(high) if flat else high - low) / 2, _STEPS)
    while math.floor(low / step) * step + 2 * step < high:
        step = _round_up(step * 1.01, _STEPS)
    bottom = math.floor(low / step) * step
    return bottom, bottom + 2 * step


def _step_ticks(first: int, last: int) -> list[int]:
    """Returns both ends, and round numbers between them that are not too close."""
    every = 1
    while (last - first) / every > _MAX_TICKS:
        # The distances are 1, 2, 5, 10, 20, 50, …
        every = every * 5 // 2 if str(every)[0] == "2" else every * 2
    # The text of a mark that is too close to an end would overlap the text of the end.
    inner = range(-(-(first + 1) // every) * every, last, every)
    return [first, *(s for s in inner if min(s - first, last - s) >= every * 0.6), last]


def _scale(bottom: float, top: float, unit: Unit) -> tuple[str, str, str]:
    """Returns the texts at the top, the half and the foot of an axis."""
    whole, half, foot = (
        unit(int(v) if v == int(v) else v) for v in (top, (top + bottom) / 2, bottom)
    )
    return whole, half, foot


def _round_up(value: float, steps: Sequence[float] = _ROUND) -> float:
    """Rounds up to a number of `steps` times a power of ten; 1 for 0."""
    if value < sys.float_info.min:  # Floats below have no exact power of ten.
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in steps if power * step >= value * 0.9999)
