"""What was measured of a split, example by example, and what a kind of target sums up of it."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

# How many labels or values of one example are shown.
MAX_SHOWN = 6
# Joins arrays of all hosts: see `trainer.cluster.hosts.Hosts.concatenate`.
Concatenate = Callable[..., dict[str, np.ndarray]]


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


class Collector:
    """Collects what this host measures of one pass, batch by batch.

    A row for each example is kept. Subclasses sum up what would take too much memory to keep.

    Args:
        kind: The class that `evaluation` returns.
        names: Of the model's outputs.
        num_records: Records in the pass, those of all hosts together.
    """

    def __init__(self, kind: type[Evaluation], names: tuple[str, ...], num_records: int) -> None:
        self._kind, self._names, self._num_records = kind, names, num_records
        self._left_out = 0
        self._rows: list[dict[str, np.ndarray]] = []

    def add(self, batch: Mapping[str, np.ndarray]) -> None:
        """Adds the examples of a batch; rows of weight 0 are broken records, or fill the batch up.

        Besides what `measure` gives, `batch` has `losses`, `weight`, and `record`, which is -1 for
        rows that fill the batch up.
        """
        counted = batch["weight"] > 0
        self._left_out += int(np.sum((batch["record"] >= 0) & ~counted))
        rows = {name: values[counted] for name, values in batch.items() if name != "weight"}
        self._rows.append(self._kept(rows))

    def evaluation(self, concatenate: Concatenate = lambda _, arrays, join=None: arrays) -> Any:
        """Returns the evaluation of all examples of all hosts, which call this together."""
        names = self._rows[0]
        mine = {name: np.concatenate([rows[name] for rows in self._rows]) for name in names}
        left_out = concatenate("left out", {"left_out": np.array([self._left_out])})["left_out"]
        whole = concatenate("evaluation", mine)
        order = np.argsort(whole["record"], kind="stable")
        arrays = {name: values[order] for name, values in whole.items()}
        sums = self._sums(concatenate)
        return self._kind(self._names, int(left_out.sum()), **arrays, **sums)

    def _kept(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns those columns of a batch's examples that are kept, and sums up the others."""
        return rows

    def _sums(self, concatenate: Concatenate) -> dict[str, np.ndarray]:
        """Returns the sums over all hosts, by the names of an evaluation's attributes."""
        return {}


@dataclasses.dataclass(frozen=True)
class Evaluation(ABC):
    """The figures of a model on one split. Arrays have one entry per example, in record order.

    Each kind of target has a class of these, whose attributes are what its `measure` gives, and
    what its `Collector` sums up.

    Attributes:
        collector: Collects the measurements of a pass.
        names: Of the model's outputs, in their order: of classes, labels or values.
        left_out: Broken records, which are no examples.
        record: int64, number within the split.
        losses: float32, by the loss of the training, without label smoothing.
    """

    collector: ClassVar[type[Collector]] = Collector
    names: tuple[str, ...]
    left_out: int
    record: np.ndarray
    losses: np.ndarray

    @staticmethod
    @abstractmethod
    def measure(outputs: tf.Tensor, label: tf.Tensor) -> dict[str, tf.Tensor]:
        """TensorFlow: arrays by name, of float32 [b, outputs] and the `label` of a `Batch`."""

    @staticmethod
    def renumbered(label: tf.Tensor, ids: Sequence[int], num_outputs: int) -> tf.Tensor:
        """TensorFlow: labels by the model's outputs, those of the data's classes being `ids`."""
        return label

    def epoch_figures(self) -> dict[str, float]:
        """Those of `figures` that every epoch of a training has: they take no time."""
        return {"loss": self.loss}

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
    def estimate(self) -> str | None:
        """A sentence that names the figures that are estimates; None where all are exact."""
        return None

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


def mean(values: np.ndarray | Sequence[float]) -> float:
    """In float64: the mean of a million float32 losses would lose digits. NaN of nothing."""
    return float(np.mean(values, dtype=np.float64)) if len(values) else math.nan


def share(part: float, whole: float) -> Share | None:
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
