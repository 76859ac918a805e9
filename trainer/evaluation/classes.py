"""Evaluates a classifier: accuracy, and recall, precision and confusions of each class."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from imageshards.page import percent
from trainer.evaluation.evaluation import Evaluation, Table, isolated, mean, share

TOP = 5


@dataclasses.dataclass(frozen=True)
class ClassEvaluation(Evaluation):
    """The evaluation of logits for classes, of which each example has exactly one.

    Attributes:
        label, predicted: int64, class ids of the model.
        rank: int64, number of classes whose logit is higher than the label's.
        probability_of_label, probability_of_prediction: float32.
    """

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

    @staticmethod
    def renumbered(label: tf.Tensor, ids: Sequence[int], num_outputs: int) -> tf.Tensor:
        return tf.gather(tf.constant(ids, tf.int64), label)

    def epoch_figures(self) -> dict[str, float]:
        """Returns loss and accuracy."""
        return super().epoch_figures() | {"accuracy": mean(self.predicted == self.label)}

    def figures(self) -> dict[str, float]:
        """Adds top-5 accuracy, NaN for up to five classes, and the unweighted mean of recalls."""
        examples, _, right = self._counts()
        return self.epoch_figures() | {
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
        """Counts the examples of each class, its predictions, and its right predictions."""
        right = self.label[self.label == self.predicted]
        found = (self.label, self.predicted, right)
        return tuple(np.bincount(ids, minlength=len(self.names)) for ids in found)
