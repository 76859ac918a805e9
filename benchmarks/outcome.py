"""What a benchmark found: ratios, the goal, and the raw figures beside them."""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Sequence

from imageshards.progress import text_table


@dataclasses.dataclass(frozen=True)
class Figure:
    """One thing a goal is set for.

    Attributes:
        name: What it is, with its unit.
        values: One for each round; the median counts.
        goal: What the median must reach.
        at_least: Whether more is better.
    """

    name: str
    values: tuple[float, ...]
    goal: float
    at_least: bool = True

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return self.median >= self.goal if self.at_least else self.median <= self.goal

    def line(self) -> str:
        """`images/s: 0.96 (0.95 to 0.97 in 3 rounds), goal >= 0.95: met`."""
        sign = ">=" if self.at_least else "<="
        return (
            f"{self.name}: {self.median:.3g} ({min(self.values):.3g} to {max(self.values):.3g} in "
            f"{len(self.values)} rounds), goal {sign} {self.goal:g}: "
            f"{'met' if self.met else 'MISSED'}"
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one benchmark found.

    Attributes:
        name: Of the benchmark.
        work: What was done, in a line.
        columns: Names of raw figures, with units.
        rows: Side → medians of its raw figures over the rounds.
        figures: What goals are set for.
        notes: Sentences to read the figures by.
    """

    name: str
    work: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[float, ...]]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The table that people see."""
        cells = [("", *self.columns)]
        cells += [(side, *map(_number, raw)) for side, raw in self.rows.items()]
        lines = [f"{self.name}: {self.work}", *aligned(cells)]
        lines += [f"  {figure.line()}" for figure in self.figures]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, object]:
        """For results.json."""
        found = dataclasses.asdict(self)
        found["figures"] = [
            dataclasses.asdict(figure) | {"median": figure.median, "met": figure.met}
            for figure in self.figures
        ]
        return found


def medians(rounds: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Column by column."""
    return tuple(statistics.median(column) for column in zip(*rounds, strict=True))


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a table, the header first: names to the left, whole, numbers to the right."""
    lines = text_table(rows[0], rows[1:], width=sys.maxsize).splitlines()
    return [f"  {line}" for line in lines]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
