"""Evaluates the kinds of targets: a class, any number of labels, and values such as a price."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from imageshards.page import number, percent
from trainer.evaluation.evaluation import (
    MAX_SHOWN,
    Evaluation,
    Share,
    Table,
    finite,
    isolated,
    mean,
    share,
)

TOP = 5
_ERRORS = ("mse", "mae", "rmse", "r2")


@dataclasses.dataclass(frozen=True)
class ClassEvaluation(Evaluation):
    """The evaluation of logits for classes, of which each example has exactly one.

    Attributes:
        label, predicted: int64, class ids of the model.
        rank: int64, number of classes whose logit is higher than the label's.
        probability_of_label, probability_of_prediction: float32.
    """

    keeps_outputs = False
    label: np.ndarray
    predicted: np.ndarray
    rank: np.ndarray
    probability_of_label: np.ndarray
    probability_of_prediction: np.ndarray

    @staticmethod
    def measure(outputs: tf.Tensor, label: tf.Tensor) -> dict[str, tf.Tensor]:
        """Measures logits [b, classes] against class ids, int64 [b]."""
        log_probability = tf.nn.log_softmax(outputs)
        of_label = tf.gather(log_probability, label, batch_dims=1)
        # The first of several equal logits ranks highest, as in argmax. No comparison with a NaN is
        # true, so a class with a NaN is never behind the label, and a label with a NaN ranks last.
        ids = tf.range(tf.shape(outputs, tf.int64)[1])[tf.newaxis, :]
        mine = tf.gather(outputs, label, batch_dims=1)[:, tf.newaxis]
        behind = (outputs < mine) | (tf.equal(outputs, mine) & (ids > label[:, tf.newaxis]))
        num_behind = tf.reduce_sum(tf.cast(behind, tf.int64), 1)
        return {
            "label": label,
            "predicted": tf.argmax(outputs, -1),
            "rank": tf.shape(outputs, tf.int64)[1] - 1 - num_behind,
            "probability_of_label": tf.exp(of_label),
            "probability_of_prediction": tf.exp(tf.reduce_max(log_probability, -1)),
        }

    def figures(self) -> dict[str, float]:
        """Returns loss, accuracy, top-5 accuracy (NaN for up to five classes), mean of recalls."""
        examples, _, right = self._counts()
        return {
            "loss": self.loss,
            "accuracy": mean(self.predicted == self.label),
            "top5_accuracy": mean(self.rank < TOP) if len(self.names) > TOP else math.nan,
            "mean_class_accuracy": mean(right[examples > 0] / examples[examples > 0]),
        }

    def table(self) -> Table:
        """Lists the classes with examples: the lowest recall first, then the larger class."""
        examples, predicted, right = self._counts()
        # The most frequent confusion of each class comes first, and `setdefault` keeps it.
        taken: dict[int, str] = {}
        for label, predicted_as, times in self.confusions():
            taken.setdefault(label, f"{isolated(self.names[predicted_as])} ({times:,})")
        present = [i for i in range(len(self.names)) if examples[i]]
        present.sort(key=lambda i: (right[i] / examples[i], -examples[i], self.names[i]))
        rows = []
        for i in present:
            shares = (share(right[i], count) for count in (examples[i], predicted[i]))
            rows.append((self.names[i], int(examples[i]), *shares, taken.get(i)))
        head = ("class", "examples", "recall", "precision", "most often taken for")
        return Table("worst", head, rows)

    def described(self, i: int) -> tuple[str, str]:
        own, other = self.probability_of_label[i], self.probability_of_prediction[i]
        return (
            f"{isolated(self.names[self.label[i]])} ({percent(float(own))})",
            f"{isolated(self.names[self.predicted[i]])} ({percent(float(other))})",
        )

    def most_wrong(self) -> np.ndarray:
        order = super().most_wrong()
        return order[(self.predicted != self.label)[order]]

    def confusions(self) -> list[list[int]]:
        """Returns [class id, predicted class id, count] of each confusion, most frequent first."""
        # The full matrix would grow with the square of the number of classes.
        wrong = self.label != self.predicted
        pairs, counts = np.unique(
            np.stack([self.label[wrong], self.predicted[wrong]]), axis=1, return_counts=True
        )
        order = np.lexsort((pairs[1], pairs[0], -counts))
        found: list[list[int]] = np.stack([*pairs, counts])[:, order].T.tolist()
        return found

    def _counts(self) -> tuple[np.ndarray, ...]:
        right = self.label[self.label == self.predicted]
        found = (self.label, self.predicted, right)
        return tuple(np.bincount(ids, minlength=len(self.names)) for ids in found)


@dataclasses.dataclass(frozen=True)
class LabelsEvaluation(Evaluation):
    """The evaluation of logits for labels of which an example may have any number.

    A label is predicted if its logit is not negative.

    Attributes:
        label: bool [examples, labels].
        logits: float32 [examples, labels].
    """

    label: np.ndarray
    logits: np.ndarray

    @staticmethod
    def measure(outputs: tf.Tensor, label: tf.Tensor) -> dict[str, tf.Tensor]:
        """Takes logits, and labels, float32 [b, labels], which are 1 for each true label."""
        return {"label": label > 0.5, "logits": outputs}

    def figures(self) -> dict[str, float]:
        # The mean skips labels without examples, whose average precision is NaN.
        found = [one for one in self._average_precisions if not math.isnan(one)]
        return {"loss": self.loss, "mean_average_precision": mean(found)}

    def table(self) -> Table:
        """Lists the labels by average precision, the lowest first, then labels without examples."""
        predicted = self.logits >= 0
        counts = [np.sum(one, 0) for one in (self.label, predicted, self.label & predicted)]
        rows = []
        for name, average, own in zip(
            self.names, self._average_precisions, np.stack(counts, 1).tolist(), strict=True
        ):
            shares = [share(own[2], count) for count in own[:2]]
            known = None if finite(average) is None else Share(average)
            rows.append((name, *own, known, *shares))
        rows.sort(key=lambda row: math.inf if row[4] is None else row[4])
        head = ("label", "examples", "predicted", "right")
        return Table("worst", (*head, "average precision", "recall", "precision"), rows)

    def described(self, i: int) -> tuple[str, str]:
        # The sigmoid of the logits, without overflow.
        shares = np.exp(-np.logaddexp(0, -self.logits[i].astype(np.float64)))
        # The most probable of the true labels, and of the predicted labels.
        best = np.argsort(-self.logits[i], kind="stable")
        own, said = (
            [f"{isolated(self.names[k])} ({percent(float(shares[k]))})" for k in best[found[best]]]
            for found in (self.label[i], self.logits[i] >= 0)
        )
        return _listed(own), _listed(said)

    def most_wrong(self) -> np.ndarray:
        order = super().most_wrong()
        return order[np.any(self.label != (self.logits >= 0), 1)[order]]

    @functools.cached_property
    def _average_precisions(self) -> list[float]:
        return [average_precision(*one) for one in zip(self.label.T, self.logits.T, strict=True)]


def _listed(names: list[str]) -> str:
    return ", ".join([*names[:MAX_SHOWN], *["…"] * (len(names) > MAX_SHOWN)]) or "without label"


def average_precision(relevant: np.ndarray, score: np.ndarray) -> float:
    """Returns the precision at each relevant example's threshold, averaged over these examples.

    This is Σ (Rₙ - Rₙ₋₁) Pₙ over the thresholds, highest first, with recall R and precision P.
    Equal scores, float [n], are one threshold. NaN if no example is `relevant`, bool [n].
    """
    if not len(score):
        return math.nan
    order = np.argsort(-score, kind="stable")
    ranked, hits = score[order], np.cumsum(relevant[order])
    if not hits[-1]:
        return math.nan
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    found = np.diff(hits[ends], prepend=0)
    return float(np.sum(found * (hits[ends] / (ends + 1))) / hits[-1])


@dataclasses.dataclass(frozen=True)
class ValuesEvaluation(Evaluation):
    """The evaluation of predicted values.

    Attributes:
        label, predicted: float32 [examples, values].
    """

    label: np.ndarray
    predicted: np.ndarray

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
            ", ".join(map(number, of[i, :MAX_SHOWN].tolist())) + more
            for of in (self.label, self.predicted)
        )
        return true, said

    def _errors(self) -> np.ndarray:
        """Returns `_ERRORS` of each value, float64 [values, 4]; NaN for R² without variance."""
        return np.array(
            [_errors_of(*one) for one in zip(self.label.T, self.predicted.T, strict=True)]
        )


def _errors_of(label: np.ndarray, predicted: np.ndarray) -> tuple[float, ...]:
    """Returns `_ERRORS` of one value of each example."""
    # In float32, small distances between large values would lose their digits.
    true = label.astype(np.float64)
    off = predicted - true
    squared = mean(off**2)
    explained = 1 - squared / true.var() if len(true) and np.ptp(true) else math.nan
    return squared, mean(np.abs(off)), math.sqrt(squared), explained


KINDS: Mapping[str, type[Evaluation]] = {
    "class": ClassEvaluation,
    "labels": LabelsEvaluation,
    "values": ValuesEvaluation,
}
