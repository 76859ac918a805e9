"""Any number of labels: of each of them its average precision, and how often it is found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from imageshards.page import percent
from trainer.evaluation.evaluation import Evaluation, Share, Table, finite, isolated, mean, share

# So many are shown of a picture.
_MAX_NAMES = 6


@dataclasses.dataclass(frozen=True)
class LabelsEvaluation(Evaluation):
    """Of logits for labels of which an example may have any number.

    Attributes:
        label: bool [examples, labels].
        logits: float32 [examples, labels]; a label is predicted where it is not negative.
    """

    label: np.ndarray
    logits: np.ndarray

    @staticmethod
    def measure(outputs: Any, label: Any) -> dict[str, Any]:
        """Of logits, and 1 for each label that an example has, float32 [b, labels]."""
        return {"label": label > 0.5, "logits": outputs}

    @staticmethod
    def renumbered(label: Any, ids: Sequence[int], num_outputs: int) -> Any:
        """0 for labels that the data does not know."""
        return tf.matmul(label, tf.one_hot(ids, num_outputs))

    def figures(self) -> dict[str, float]:
        """The mean is that over the labels that an example has."""
        found = [one for one in self._average_precisions() if not math.isnan(one)]
        return {"loss": self.loss, "mean_average_precision": mean(found)}

    def table(self) -> Table:
        """The lowest average precision first, last the labels that no example has."""
        rows = []
        for name, average, has, predicted in zip(
            self.names, self._average_precisions(), self.label.T, self.logits.T >= 0, strict=True
        ):
            counts = [int(np.sum(one)) for one in (has, predicted, has & predicted)]
            shares = [share(counts[2], count) for count in counts[:2]]
            known = None if finite(average) is None else Share(average)
            rows.append((name, *counts, known, *shares))
        rows.sort(key=lambda row: math.inf if row[4] is None else row[4])
        head = ("label", "examples", "predicted", "right")
        return Table("worst", (*head, "average precision", "recall", "precision"), rows)

    def described(self, i: int) -> tuple[str, str]:
        """Labels with their probabilities, the most probable ones first, six at most."""
        logits = self.logits[i].astype(np.float64)
        shares, order = np.exp(-np.logaddexp(0, -logits)), np.argsort(-logits, kind="stable")
        own, said = (
            [f"{isolated(self.names[k])} ({percent(float(shares[k]))})" for k in order if of[k]]
            for of in (self.label[i], logits >= 0)
        )
        return _listed(own), _listed(said)

    def most_wrong(self) -> np.ndarray:
        """Of examples with a mistake only."""
        order = super().most_wrong()
        return order[np.any((self.logits >= 0) != self.label, 1)[order]]

    def _average_precisions(self) -> list[float]:
        return [average_precision(*one) for one in zip(self.label.T, self.logits.T, strict=True)]


def _listed(names: list[str]) -> str:
    return ", ".join([*names[:_MAX_NAMES], *["…"] * (len(names) > _MAX_NAMES)]) or "without label"


def average_precision(relevant: np.ndarray, score: np.ndarray) -> float:
    """The precision at the threshold that finds a relevant example, averaged over all of them.

    That is Σ (Rₙ - Rₙ₋₁) Pₙ over the thresholds, highest first, with recall R and precision P;
    equal scores, float [n], are one threshold. NaN where nothing is `relevant`, bool [n].
    """
    order = np.argsort(-score, kind="stable")
    ranked, hits = score[order], np.cumsum(relevant[order])
    if not relevant.any():
        return math.nan
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    new_hits = np.diff(hits[ends], prepend=0)
    return float(np.sum(new_hits * (hits[ends] / (ends + 1))) / hits[-1])
