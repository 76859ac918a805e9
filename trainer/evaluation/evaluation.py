"""Collects the measurements of a pass over a split; base classes of all kinds of evaluations."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

# At most this many labels or values of one example are shown.
MAX_SHOWN = 6
# At most this many outputs (records x labels, or x values) are kept, with 5 to 8 bytes each. A
# larger split is measured by every n-th record.
MAX_OUTPUTS = 64 * 1024**2
# The type of `trainer.cluster.hosts.Hosts.concatenate`, which joins arrays of all hosts.
Concatenate = Callable[..., dict[str, np.ndarray]]


class Share(float):
    """A figure from 0 to 1, which pages draw as a bar."""


class Table(NamedTuple):
    """The figures of each output of a model.

    Attributes:
        order: The order of the rows: `worst` output first, or the `first` output first.
        head: Titles of the columns, beginning with `class`, `label` or `value`.
        rows: Name and figures of each output; None for an unknown figure.
    """

    order: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | int | float | Share | None]]


class Collector:
    """A collector of this host's measurements during one pass; it keeps a row for each example.

    Args:
        kind: The class that `evaluation` returns.
        names: Names of the model's outputs.
        num_records: Number of records in the pass, over all hosts.
    """

    def __init__(self, kind: type[Evaluation], names: tuple[str, ...], num_records: int) -> None:
        self._kind, self._names = kind, names
        self._every = 1
        if kind.keeps_outputs:
            self._every = max(1, -(-num_records * len(names) // MAX_OUTPUTS))
        self._left_out = 0
        self._rows: list[dict[str, np.ndarray]] = []

    def add(self, batch: Mapping[str, np.ndarray]) -> None:
        """Adds a batch: the arrays of `measure`, `losses`, `record` and `weight`."""
        # Weight 0 marks broken records, and also padding, whose record number is -1.
        counted = batch["weight"] > 0
        self._left_out += int(np.sum((batch["record"] >= 0) & ~counted))
        counted &= batch["record"] % self._every == 0
        self._rows.append({k: values[counted] for k, values in batch.items() if k != "weight"})

    def evaluation(self, concatenate: Concatenate = lambda _, arrays: arrays) -> Any:
        """Returns the evaluation of all examples of all hosts, which call this together."""
        names = self._rows[0]
        mine = {name: np.concatenate([rows[name] for rows in self._rows]) for name in names}
        left_out = concatenate("left out", {"left_out": np.array([self._left_out])})["left_out"]
        # Hosts and replicas share the batches, so the rows are sorted back into record order.
        whole = concatenate("evaluation", mine)
        order = np.argsort(whole["record"], kind="stable")
        arrays = {name: values[order] for name, values in whole.items()}
        return self._kind(self._names, int(left_out.sum()), self._every, **arrays)


@dataclasses.dataclass(frozen=True)
class Evaluation(ABC):
    """The figures of a model on one split. Arrays have one entry per example, in record order.

    Each kind of target has a subclass. Its further attributes are the arrays of `measure`.

    Attributes:
        keeps_outputs: Whether the arrays have an entry for each output of the model.
        names: Names of the model's outputs: classes, labels or values.
        left_out: Number of broken records, which do not count as examples.
        every: 1 if every record was measured, n for every n-th record.
        record: int64, record numbers within the split.
        losses: float32, by the loss of the training.
    """

    keeps_outputs: ClassVar[bool] = True
    names: tuple[str, ...]
    left_out: int
    every: int
    record: np.ndarray
    losses: np.ndarray

    @staticmethod
    @abstractmethod
    def measure(outputs: tf.Tensor, label: tf.Tensor) -> dict[str, tf.Tensor]:
        """Measures outputs, float32 [b, outputs], against labels, in a TensorFlow graph."""

    @abstractmethod
    def figures(self) -> dict[str, float]:
        """Returns the main figures; NaN if there is nothing to measure."""

    @abstractmethod
    def table(self) -> Table:
        """Returns the figures of each output."""

    @abstractmethod
    def described(self, i: int) -> tuple[str, str]:
        """Returns two texts for example `i`: the true answer and the model's answer."""

    @property
    def estimate(self) -> str | None:
        """A sentence that says why figures are estimates; None if they are exact."""
        if self.every == 1:
            return None
        return f"Figures are estimates: 1 of every {self.every:,} records was measured."

    @property
    def num_examples(self) -> int:
        """Number of examples, without broken records."""
        return len(self.record)

    @property
    def loss(self) -> float:
        """The mean of `losses`; NaN without examples."""
        return mean(self.losses)

    def most_wrong(self) -> np.ndarray:
        """Returns the indices of wrong examples, the highest loss first."""
        return np.lexsort((self.record, -self.losses))


def mean(values: np.ndarray | Sequence[float]) -> float:
    """Returns the mean; NaN without values."""
    # In float32, the mean of a million losses would lose digits.
    return float(np.mean(values, dtype=np.float64)) if len(values) else math.nan


def share(part: float, whole: float) -> Share | None:
    """Returns `part` divided by `whole`; None for a `whole` of 0."""
    return Share(part / whole) if whole else None


def finite(value: float | None) -> float | None:
    """Returns the value; None for NaN and infinity, which JSON cannot represent."""
    return float(value) if value is not None and math.isfinite(value) else None


def plain(value: str | float | None) -> str | float | None:
    """Converts a cell of a table for JSON."""
    if isinstance(value, str):  # without the marks of `isolated`
        return value.translate({0x2068: None, 0x2069: None})
    return finite(value) if isinstance(value, float) else value


def isolated(name: str) -> str:
    """Encloses a name in marks of direction, so that Arabic or Hebrew does not move its context."""
    return f"\u2068{name}\u2069"
