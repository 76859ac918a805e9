"""What was measured of a split, example by example, and what a kind of target sums up of it."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np


class Share(float):
    """A figure from 0 to 1: pages draw it as a bar."""


class Table(NamedTuple):
    """Figures of single outputs, the `worst` or the `first` ones in front, as `order` says.

    `head` begins with what an output is called, a row with its name; None where a figure is not
    known.
    """

    order: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | int | float | Share | None]]


@dataclasses.dataclass(frozen=True)
class Evaluation(ABC):
    """The figures of a model on one split. Arrays have one entry per example, in record order.

    Each kind of target has a class of these, whose attributes are what its `measure` gives.

    Attributes:
        names: Of the model's outputs, in their order: of classes, labels or values.
        left_out: Broken records, which are no examples.
        record: int64, number within the split.
        losses: float32, by the loss of the training, without label smoothing.
    """

    names: tuple[str, ...]
    left_out: int
    record: np.ndarray
    losses: np.ndarray

    @classmethod
    def of(cls, names: tuple[str, ...], whole: Mapping[str, np.ndarray]) -> Self:
        """What was measured of all examples, in any order, and of what fills up batches.

        Besides what `measure` gives, `whole` has `record`, -1 for what fills up, and `weight`, 0
        for that and for broken records.
        """
        counted = whole["weight"] > 0
        left_out = int(np.sum((whole["record"] >= 0) & ~counted))
        order = np.flatnonzero(counted)
        order = order[np.argsort(whole["record"][order], kind="stable")]
        arrays = {name: values[order] for name, values in whole.items() if name != "weight"}
        return cls(names, left_out, **arrays)

    @staticmethod
    @abstractmethod
    def measure(outputs: Any, label: Any) -> dict[str, Any]:
        """TensorFlow: arrays by name, of float32 [b, outputs] and the `label` of a `Batch`."""

    @staticmethod
    def renumbered(label: Any, ids: Sequence[int], num_outputs: int) -> Any:
        """TensorFlow: labels by the model's outputs, those of the data's classes being `ids`."""
        return label

    @abstractmethod
    def figures(self) -> dict[str, float]:
        """The main figures; NaN where there is nothing to measure."""

    @abstractmethod
    def table(self) -> Table:
        """Figures of single outputs."""

    @abstractmethod
    def described(self, i: int) -> tuple[str, str]:
        """What example `i` is, and what the model says that it is."""

    @property
    def num_examples(self) -> int:
        """Each counted once; broken records are none, but `left_out`."""
        return len(self.record)

    @property
    def loss(self) -> float:
        """The mean of `losses`; NaN where there is no example."""
        return mean(self.losses)

    def most_wrong(self) -> np.ndarray:
        """Indices of the examples that are wrong, the highest loss first."""
        return np.lexsort((self.record, -self.losses))


def mean(values: Any) -> float:
    """In float64: the mean of a million float32 losses would lose digits. NaN of nothing."""
    return float(np.mean(values, dtype=np.float64)) if len(values) else math.nan


def share(part: Any, whole: Any) -> Share | None:
    """`part` of `whole`; None of nothing."""
    return Share(part / whole) if whole else None


def finite(value: float | None) -> float | None:
    """The value, or None where it is NaN or infinite, which JSON has no number for."""
    return float(value) if value is not None and math.isfinite(value) else None


def plain(value: str | float | None) -> str | float | None:
    """A cell of a table as JSON has it."""
    if isinstance(value, str):
        return value.translate({0x2068: None, 0x2069: None})
    return finite(value) if isinstance(value, float) else value


def isolated(name: str) -> str:
    """A name, which may be written from right to left: what stands beside it is not moved."""
    return f"\u2068{name}\u2069"
