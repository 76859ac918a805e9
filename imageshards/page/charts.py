"""Charts that the page's style sheet draws: where lines and points are, and what is written."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from imageshards.page.page import number

# Lines between few points look like many, so up to this number the points are shown, too.
MAX_DOTS = 30
# More would hide each other, and make the page large.
MAX_POINTS = 2000
# Axes end at one of these times a power of ten: their halves are easy to read, too.
_ROUND = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)
# Steps of an axis that does not begin at zero.
_STEPS = (1, 2, 2.5, 5, 10)
_MAX_TICKS = 6

Unit = Callable[[float], str]


class Dot(NamedTuple):
    """A point of a line, in percent from the left and from the top; `title` shows on hover."""

    x: float
    y: float
    title: str

    @property
    def at(self) -> str:
        """Its place as a path of SVG has it."""
        return f"{self.x:.4g} {self.y:.4g}"


class Line(NamedTuple):
    """One line of a chart.

    Attributes:
        name: For the legend.
        kind: How the style sheet draws it: `front`, `back`, `cloud` for points that are not joined,
            or `best` for a point that stands out.
        path: In SVG, in percent from the left and from the top.
        dots: The points that are shown.
    """

    name: str
    kind: str
    path: str
    dots: Sequence[Dot]


class Chart(NamedTuple):
    """Lines over numbered steps, or points; a macro of `kit.jinja` sets them.

    Attributes:
        title, subtitle: Its heading.
        description: What a person who does not see the chart is told.
        scale: What is written at the top of the axis, at its half and at its foot.
        ticks: (percent of the width from the left, text) below it.
        lines: From the back to the front.
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
    """Values over numbered steps, two at least; a line has a gap where there is no finite value.

    A line without any is left out; None where none is left.

    Args:
        title, subtitle, steps: Its heading, and rising numbers, for example of epochs.
        lines: Name → a value for each step; the last line is in front of the others.
        noun: What a step is called.
        least: Where an axis from zero ends at least, whatever the values; None for an axis
            around the values.
        best: (name for the legend, line, index of the step) of a point that stands out, where
            there is such a line.
        unit: Writes a value.
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
    """Points on two axes of the same scale, and the line where both values are equal.

    Points without two finite values are left out; None where none is left. Of more than
    `MAX_POINTS` some are shown, evenly taken.
    """
    pairs = [(x, y) for x, y in zip(across, up, strict=True) if math.isfinite(x + y)]
    if not pairs:
        return None
    bottom, top = _axis(min(map(min, pairs)), max(map(max, pairs)), None)
    every = -(-len(pairs) // MAX_POINTS)
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
    """A line through points, interrupted where there is none."""
    path, pen = "", "M"
    for dot in dots:
        path += f"{pen}{dot.at}" if dot else ""
        pen = "L" if dot else "M"
    return path


def _axis(low: float, high: float, least: float | None) -> tuple[float, float]:
    """Both ends of an axis whose half is easy to read, too."""
    if least is not None and low >= 0:
        return 0.0, _round_up(max(high, least))
    flat = high - low <= 1e-6 * abs(high)
    step = _round_up((abs(high) if flat else high - low) / 2, _STEPS)
    while math.floor(low / step) * step + 2 * step < high:
        step = _round_up(step * 1.01, _STEPS)
    bottom = math.floor(low / step) * step
    return bottom, bottom + 2 * step


def _step_ticks(first: int, last: int) -> list[int]:
    """Both ends, and round numbers between them that keep their distance."""
    every = 1
    while (last - first) / every > _MAX_TICKS:
        every = every * 5 // 2 if str(every)[0] == "2" else every * 2  # 1, 2, 5, 10, 20, …
    inner = range(-(-(first + 1) // every) * every, last, every)
    return [first, *(s for s in inner if min(s - first, last - s) >= every * 0.6), last]


def _scale(bottom: float, top: float, unit: Unit) -> tuple[str, str, str]:
    """What is written at the top of an axis, at its half and at its foot."""
    whole, half, foot = (
        unit(int(v) if v == int(v) else v) for v in (top, (top + bottom) / 2, bottom)
    )
    return whole, half, foot


def _round_up(value: float, steps: Sequence[float] = _ROUND) -> float:
    """The next number that is one of `steps` times a power of ten; 1 for nothing."""
    if value < sys.float_info.min:  # below it there are not all powers of ten
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in steps if power * step >= value * 0.9999)
