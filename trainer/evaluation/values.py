"""Values, as a price or a place: how far off the predicted ones are."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from imageshards.page import number
from trainer.evaluation.evaluation import Evaluation, Table

_ERRORS = ("mse", "mae", "rmse", "r2")


@dataclasses.dataclass(frozen=True)
class ValuesEvaluation(Evaluation):
    """Of numbers.

    Attributes:
        label, predicted: float32 [examples, values].
    """

    label: np.ndarray
    predicted: np.ndarray

    @staticmethod
    def measure(outputs: Any, label: Any) -> dict[str, Any]:
        """Of values, and true ones, float32 [b] or [b, values]."""
        return {"label": tf.reshape(label, tf.shape(outputs)), "predicted": outputs}

    def figures(self) -> dict[str, float]:
        """Means over the values; the root is that of the mean."""
        squared, absolute, _, explained = np.mean(self._errors(), 0).tolist()
        known = (self.loss, squared, absolute, math.sqrt(squared), explained)
        return dict(zip(("loss", *_ERRORS), known, strict=True))

    def table(self) -> Table:
        """In the order of the outputs."""
        rows = zip(self.names, self._errors().tolist(), strict=True)
        return Table("first", ("value", *_ERRORS), [(name, *errors) for name, errors in rows])

    def described(self, i: int) -> tuple[str, str]:
        """Its values and those predicted."""
        true, said = (", ".join(map(number, of[i].tolist())) for of in (self.label, self.predicted))
        return true, said

    def _errors(self) -> np.ndarray:
        """`_ERRORS` of each value, float64 [values, 4]; R², the explained share of its variance, is
        NaN where it does not vary.
        """
        true = self.label.astype(np.float64)
        off = self.predicted - true
        if not len(off):
            return np.full((len(self.names), len(_ERRORS)), math.nan)
        squared, varies = np.mean(off**2, 0), np.var(true, 0)
        explained = 1 - squared / np.where(varies > 0, varies, math.nan)
        return np.stack([squared, np.mean(np.abs(off), 0), np.sqrt(squared), explained], 1)
