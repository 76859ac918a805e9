"""Defines the result of a benchmark: ratios, their goals, and raw figures."""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Sequence

from imageshards.progress import text_table


@dataclasses.dataclass(frozen=True)
class Figure:
    """Measured figure with a goal.

    Attributes:
        name: Name of the figure, with its unit.
        values: One value for each round; the median counts.
        goal: Limit for the median.
        at_least: Whether the median must be at least the goal, rather than at most the goal.
    """

    name: str
    values: tuple[float, ...]
    goal: float
    at_least: bool = True

    @property
    def median(self) -> float:
        """Median of all rounds."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool:
        """Whether the median meets the goal."""
        return self.median >= self.goal if self.at_least else self.median <= self.goal

    def line(self) -> str:
        """Returns e.g. `images/s: 0.96 (0.95 to 0.97 in 3 rounds), goal >= 0.95: met`."""
        sign = ">=" if self.at_least else "<="
        return (
            f"{self.name}: {self.median:.3g} ({min(self.values):.3g} to {max(self.values):.3g} in "
            f"{len(self.values)} rounds), goal {sign} {self.goal:g}: "
            f"{'met' if self.met else 'MISSED'}"
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of one benchmark.

    Attributes:
        name: Name of the benchmark.
        work: Description of the measured work in one line.
        columns: Names of the raw figures, with units.
        rows: Side → medians of the raw figures over all rounds.
        figures: Figures with goals.
        notes: Explanations of the figures.
    """

    name: str
    work: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[float, ...]]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Returns the table and the figures as text for a terminal."""
        cells = [("", *self.columns)]
        cells += [(side, *map(_number, raw)) for side, raw in self.rows.items()]
        lines = [f"{self.name}: {self.work}", *aligned(cells)]
        lines += [f"  {figure.line()}" for figure in self.figures]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, object]:
        """Returns the result as JSON values for results.json."""
        found = dataclasses.asdict(self)
        found["figures"] = [
            dataclasses.asdict(figure) | {"median": figure.median, "met": figure.met}
            for figure in self.figures
        ]
        return found


def medians(rounds: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Returns the median of each column."""
    return tuple(statistics.median(column) for column in zip(*rounds, strict=True))


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Formats a table: the header first, names in full and left-aligned, numbers right-aligned."""
    lines = text_table(rows[0], rows[1:], width=sys.maxsize).splitlines()
    return [f"  {line}" for line in lines]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
