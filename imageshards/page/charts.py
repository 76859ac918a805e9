"""Bar charts as inline SVG, drawn in the colours of the page around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from imageshards.page.html import Markup, escape, number

WIDTH, HEIGHT = 380, 170
LEFT, RIGHT, TOP, BOTTOM = 50, 6, 10, 26

# More bars than this cannot be told apart.
MAX_BARS = 128


class Bar(NamedTuple):
    """One bar: solid up to `low`, pale from there to `high`; `title` shows on hover."""

    low: float
    high: float
    title: str


def figure(title: str, subtitle: str, svg: Markup) -> Markup:
    """A chart with its heading."""
    return Markup(
        f'<figure class="chart"><figcaption>{escape(title)}'
        f"<small>{escape(subtitle)}</small></figcaption>\n{svg}</figure>\n"
    )


def bars(
    data: Sequence[Bar],
    description: str,
    ticks: Sequence[tuple[float, str]],
    unit: Callable[[float], str] = number,
) -> Markup:
    """Bars side by side, from zero.

    Args:
        data: The bars.
        description: What a person who does not see the chart is told.
        ticks: (position in bars from the left, text) below the axis.
        unit: Writes a value at the left axis.
    """
    top = _round_up(max((bar.high for bar in data), default=0))
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    step = width / max(len(data), 1)
    gap = min(2.0, step * 0.15)
    base = TOP + height
    parts = []
    for share in (0.5, 1.0):
        y = base - height * share
        parts.append(
            f'<line class="axis" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        )
        value = top * share
        text = unit(int(value) if value == int(value) else value)
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
        )
    for i, bar in enumerate(data):
        x = LEFT + i * step + gap / 2
        rects = "".join(
            f'<rect class="{kind}" x="{x:.2f}" y="{base - height * value / top:.2f}" '
            f'width="{step - gap:.2f}" height="{height * value / top:.2f}"/>'
            for kind, value in (("bar-pale", bar.high), ("bar-full", bar.low))
            if value and not (kind == "bar-pale" and bar.high == bar.low)
        )
        parts.append(f"<g><title>{escape(bar.title)}</title>{rects}</g>")
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}"/>')
    for position, text in ticks:
        anchor = "start" if position <= 0 else "end" if position >= len(data) else "middle"
        x = LEFT + position * step
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{escape(text)}</text>'
        )
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(description)}">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def histogram(
    edges: Sequence[float],
    counts: Sequence[int],
    description: str,
    unit: Callable[[float], str] = number,
) -> Markup:
    """Counts over bins of equal drawn width, empty ones at both ends left out.

    Args:
        edges: Lower edge of every bin; the last bin is open.
        counts: As many as edges.
        description: What a person who does not see the chart is told.
        unit: Writes an edge below the axis.
    """
    filled = [i for i, count in enumerate(counts) if count] or [0]
    first, last = filled[0], filled[-1]
    data = []
    for i in range(first, last + 1):
        above = f"to {unit(edges[i + 1])}" if i + 1 < len(edges) else "and more"
        title = f"{unit(edges[i])} {above}: {number(counts[i])}"
        data.append(Bar(counts[i], counts[i], title))
    every = -(-len(data) // 5)
    ticks = [(float(i), unit(edges[first + i])) for i in range(0, len(data), every)]
    if last + 1 < len(edges):
        end = (float(len(data)), unit(edges[last + 1]))
        ticks = [tick for tick in ticks if len(data) - tick[0] >= every * 0.9] + [end]
    return bars(data, description, ticks)


def strip(
    values: Sequence[int],
    noun: str,
    description: str,
    unit: Callable[[float], str] = number,
    ends: tuple[str, str] | None = None,
) -> Markup:
    """One bar per value, or per group of neighbours where there are too many.

    Args:
        values: One per shard or class.
        noun: What each value belongs to.
        description: What a person who does not see the chart is told.
        unit: Writes a value.
        ends: Written below the first and the last bar; None for their numbers.
    """
    group = -(-len(values) // MAX_BARS)
    data = []
    for start in range(0, len(values), max(group, 1)):
        some = values[start : start + group]
        low, high = min(some), max(some)
        where = f"{noun} {start}" if len(some) == 1 else f"{noun} {start}–{start + len(some) - 1}"
        what = unit(low) if low == high else f"{unit(low)} to {unit(high)}"
        data.append(Bar(low, high, f"{where}: {what}"))
    first, last = ends or (f"{noun} 0", str(len(values) - 1))
    ticks = [(0.0, first), (float(len(data)), last)]
    return bars(data, description, ticks[: 2 if len(values) > 1 else 1], unit)


def _round_up(value: float) -> float:
    """The next number whose half and whole are easy to read; 1 for nothing."""
    if value <= 0:
        return 1
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    steps = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)
    return next(power * step for step in steps if power * step >= value * 0.9999)
