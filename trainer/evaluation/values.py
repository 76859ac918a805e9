"""Evaluates a model of values, such as a price or a position: the errors of its predictions."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import tensorflow as tf

from imageshards.page import number
from trainer.evaluation.evaluation import MAX_SHOWN, Collector, Concatenate, Evaluation, Table

_ERRORS = ("mse", "mae", "rmse", "r2")


class ValuesCollector(Collector):
    """A collector that sums up errors, and keeps the first `MAX_SHOWN` values of each example."""

    def __init__(self, kind: type[Evaluation], names: tuple[str, ...], num_records: int) -> None:
        super().__init__(kind, names, num_records)
        self._moments = np.zeros((5, len(self._names)))

    def _kept(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        label, predicted = rows["label"], rows["predicted"]
        if len(label):
            true = label.astype(np.float64)
            off, middle = predicted - true, np.mean(true, 0)
            squares = [np.sum(one**2, 0) for one in (true - middle, off)]
            counts = np.full(len(middle), len(true))
            own = np.stack([counts, middle, *squares, np.sum(np.abs(off), 0)])
            self._moments = _joined(self._moments, own)
        return rows | {"label": label[:, :MAX_SHOWN], "predicted": predicted[:, :MAX_SHOWN]}

    def _sums(self, concatenate: Concatenate) -> dict[str, np.ndarray]:
        mine = {"moments": self._moments}
        return concatenate("values", mine, lambda parts: functools.reduce(_joined, parts))


@dataclasses.dataclass(frozen=True)
class ValuesEvaluation(Evaluation):
    """The evaluation of predicted values.

    Attributes:
        label, predicted: float32 [examples, values], the first `MAX_SHOWN` values at most.
        moments: float64 [5, values]: number of examples; mean of the true values; sums of their
            squared distances from the mean, of squared errors, and of absolute errors.
    """

    collector = ValuesCollector
    label: np.ndarray
    predicted: np.ndarray
    moments: np.ndarray

    @staticmethod
    def measure(outputs: tf.Tensor, label: tf.Tensor) -> dict[str, tf.Tensor]:
        """Measures values [b, values] against true values, float32 [b] or [b, values]."""
        return {"label": tf.reshape(label, tf.shape(outputs)), "predicted": outputs}

    def figures(self) -> dict[str, float]:
        # The figures are means over all values, except for the root, which is of the mean square.
        squared, absolute, _, explained = np.mean(self._errors(), 0).tolist()
        known = (self.loss, squared, absolute, math.sqrt(squared), explained)
        return dict(zip(("loss", *_ERRORS), known, strict=True))

    def table(self) -> Table:
        rows = zip(self.names, self._errors().tolist(), strict=True)
        return Table("first", ("value", *_ERRORS), [(name, *errors) for name, errors in rows])

    def described(self, i: int) -> tuple[str, str]:
        more = ", …" * (len(self.names) > MAX_SHOWN)
        true, said = (
            ", ".join(map(number, of[i].tolist())) + more for of in (self.label, self.predicted)
        )
        return true, said

    def _errors(self) -> np.ndarray:
        """Returns `_ERRORS` of each value, float64 [values, 4]; NaN for R² without variance."""
        count, _, varies, squared, absolute = self.moments
        examples = np.where(count > 0, count, math.nan)
        explained = 1 - squared / np.where(varies > 0, varies, math.nan)
        errors = squared / examples, absolute / examples, np.sqrt(squared / examples), explained
        return np.stack(errors, 1)


def _joined(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Adds up the moments of two sets of examples, after Chan, Golub and LeVeque, 1983."""
    # Plain sums of squares would lose the digits of a variance that is small beside the mean.
    count, apart = one[0] + other[0], other[1] - one[1]
    share = other[0] / np.maximum(count, 1)
    middle, squares = one[1] + apart * share, apart**2 * one[0] * share
    return np.stack([count, middle, one[2] + other[2] + squares, *(one[3:] + other[3:])])
