"""Bar charts that the page's style sheet draws: how high each bar is, and what is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from imageshards.page.page import number

# More bars than this cannot be told apart.
MAX_BARS = 128
# Axes end at one of these times a power of ten: their halves are easy to read, too.
_ROUND = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)


class Bar(NamedTuple):
    """One bar: solid up to `low`, pale from there to `high`; `title` shows on hover."""

    low: float
    high: float
    title: str


class BarChart(NamedTuple):
    """Bars side by side, from zero; `kit.jinja` has the macro that sets them.

    Attributes:
        title, subtitle: Its heading.
        description: What a person who does not see the chart is told.
        bars: Their heights, in percent of the axis.
        scale: What is written at the top of the axis and at its half.
        ticks: (percent of the width from the left, text) below the bars.
    """

    title: str
    subtitle: str
    description: str
    bars: Sequence[Bar]
    scale: tuple[str, str]
    ticks: Sequence[tuple[float, str]]


def histogram(
    title: str,
    subtitle: str,
    edges: Sequence[float],
    counts: Sequence[int],
    unit: Callable[[float], str] = number,
) -> BarChart:
    """Counts over bins of equal drawn width, empty ones at both ends left out.

    Args:
        title, subtitle: Its heading.
        edges: Lower edge of every bin; the last bin is open.
        counts: As many as edges.
        unit: Writes an edge below the axis.
    """
    filled = [i for i, count in enumerate(counts) if count] or [0]
    first, last = filled[0], filled[-1]
    bars = []
    for i in range(first, last + 1):
        above = f"to {unit(edges[i + 1])}" if i + 1 < len(edges) else "and more"
        bars.append(Bar(counts[i], counts[i], f"{unit(edges[i])} {above}: {number(counts[i])}"))
    every = -(-len(bars) // 5)
    ticks = [(i, unit(edges[first + i])) for i in range(0, len(bars), every)]
    if last + 1 < len(edges):
        end = (len(bars), unit(edges[last + 1]))
        ticks = [tick for tick in ticks if len(bars) - tick[0] >= every * 0.9] + [end]
    return _chart(title, subtitle, f"Histogram: {title}.", bars, ticks, number)


def strip(
    title: str,
    subtitle: str,
    description: str,
    values: Sequence[int],
    noun: str,
    unit: Callable[[float], str] = number,
    ends: tuple[str, str] | None = None,
) -> BarChart:
    """One bar per value, or per group of neighbours where there are too many.

    Args:
        title, subtitle, description: See `BarChart`.
        values: One per shard or class; one at least.
        noun: What each value belongs to.
        unit: Writes a value.
        ends: Written below the first and the last bar; None for their numbers.
    """
    group = -(-len(values) // MAX_BARS)
    bars = []
    for start in range(0, len(values), group):
        some = values[start : start + group]
        low, high = min(some), max(some)
        where = f"{noun} {start}" if len(some) == 1 else f"{noun} {start}–{start + len(some) - 1}"
        what = unit(low) if low == high else f"{unit(low)} to {unit(high)}"
        bars.append(Bar(low, high, f"{where}: {what}"))
    first, last = ends or (f"{noun} 0", str(len(values) - 1))
    ticks = [(0, first), (len(bars), last)][: min(2, len(values))]
    return _chart(title, subtitle, description, bars, ticks, unit)


def _chart(
    title: str,
    subtitle: str,
    description: str,
    bars: Sequence[Bar],
    ticks: Sequence[tuple[int, str]],
    unit: Callable[[float], str],
) -> BarChart:
    """Bars in the unit of their axis, ticks in bars from the left → both in percent."""
    top = _round_up(max(bar.high for bar in bars))
    whole, half = (unit(int(v) if v == int(v) else v) for v in (top, top / 2))
    return BarChart(
        title,
        subtitle,
        description,
        [Bar(100 * bar.low / top, 100 * bar.high / top, bar.title) for bar in bars],
        (whole, half),
        [(100 * position / len(bars), text) for position, text in ticks],
    )


def _round_up(value: float) -> float:
    """The next number whose half and whole are easy to read; 1 for nothing."""
    if value <= 0:
        return 1
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * step for step in _ROUND if power * step >= value * 0.9999)
