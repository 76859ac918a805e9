"""Makes the metrics of a model's outputs: accuracy, and metrics of Keras by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from imageshards.errors import Arg, UserError

# For each kind of target: common names of metrics → Keras's class and its arguments.
_SHORT: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "class": {
        "top5": ("SparseTopKCategoricalAccuracy", {"k": 5}),
        "auc": ("AUC", {"multi_label": True}),
        "f1": ("F1Score", {}),
    },
    "labels": {
        "binary_accuracy": ("BinaryAccuracy", {}),
        # The area under the curve of precision and recall, averaged over the labels.
        "auc_pr": ("AUC", {"multi_label": True, "curve": "PR"}),
        "auc": ("AUC", {"multi_label": True}),
        "f1": ("F1Score", {"threshold": 0.5}),
    },
    "values": {
        "mae": ("MeanAbsoluteError", {}),
        "rmse": ("RootMeanSquaredError", {}),
        "r2": ("R2Score", {}),
        "mape": ("MeanAbsolutePercentageError", {}),
    },
}
# The metrics of every run.
ALWAYS = {
    "class": ("accuracy",),
    "labels": ("binary_accuracy", "auc_pr"),
    "values": ("mae", "rmse"),
}


class Accuracy(keras.metrics.Mean):
    """The share of examples whose class has the highest logit.

    If labels are shares of classes, after MixUp, the class with the largest share is the label.
    Keras's own accuracy copies the logits from the device to the host.
    """

    def __init__(self, name: str = "accuracy") -> None:
        super().__init__(name=name)

    def update_state(
        self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor | None = None
    ) -> None:
        """Adds class ids [b] or shares [b, K], logits [b, K] and weights [b]."""
        right = ops.equal(tf.argmax(y_pred, -1), class_ids(y_true))
        super().update_state(ops.cast(right, "float32"), sample_weight)


class OfOutputs(keras.metrics.Metric):
    """A metric of Keras on probabilities or values, which it computes from a model's outputs."""

    def __init__(
        self, metric: keras.metrics.Metric, num_outputs: int, target: str = "class"
    ) -> None:
        super().__init__(name=metric.name)
        self.metric, self.num_outputs, self.target = metric, num_outputs, target
        # The variables must exist before the first step, when a checkpoint is restored.
        if not metric.variables:
            labels = ops.zeros([1], "int64") if target == "class" else ops.zeros([1, num_outputs])
            self.update_state(labels, ops.zeros([1, num_outputs]), ops.ones([1]))
            metric.reset_state()

    def update_state(
        self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor | None = None
    ) -> None:
        """Adds labels as in a `Batch`, outputs [b, K] and weights [b]."""
        y_pred = ops.cast(y_pred, "float32")
        if self.target == "class":
            y_pred, y_true = ops.softmax(y_pred), class_ids(y_true)
            # Keras's metrics of a class take one-hot labels, unless their name has "Sparse".
            if "Sparse" not in type(self.metric).__name__:
                y_true = ops.one_hot(y_true, self.num_outputs)
        elif self.target == "labels":
            # After MixUp, the labels of the picture with the larger share count.
            y_pred, y_true = ops.sigmoid(y_pred), ops.cast(y_true >= 0.5, "float32")
        else:
            y_true = ops.reshape(y_true, [-1, self.num_outputs])
        self.metric.update_state(y_true, y_pred, sample_weight=sample_weight)

    def result(self) -> tf.Tensor:
        """Returns the metric; a mean over classes leaves out classes without examples."""
        metric = self.metric
        if isinstance(metric, keras.metrics.AUC) and metric.multi_label:
            # The counts of any threshold add up to all examples, so the first one will do.
            counts = metric.true_positives[0] + metric.false_negatives[0] > 0
            if metric.curve.name == "ROC":  # undefined if every example has a label
                counts &= metric.false_positives[0] + metric.true_negatives[0] > 0
            metric.label_weights = ops.cast(counts, "float32")
            found = metric.result()
        elif isinstance(metric, keras.metrics.FBetaScore) and metric.average is None:
            counts = metric.true_positives + metric.false_negatives > 0
            found = ops.sum(ops.where(counts, metric.result(), 0.0)) / ops.sum(
                ops.cast(counts, "float32")
            )
        else:
            return metric.result()
        return ops.where(ops.any(counts), found, math.nan)

    def reset_state(self) -> None:
        """Forgets all examples."""
        self.metric.reset_state()


def make_metrics(
    names: Sequence[str], num_outputs: int, target: str = "class"
) -> list[keras.metrics.Metric]:
    """Makes the metrics of every run for this kind of target, and the metrics called `names`.

    Call it inside the strategy's scope.

    Raises:
        UserError: A name is unknown for this kind of target.
    """
    short = _SHORT[target]
    ours: list[keras.metrics.Metric] = [Accuracy()] if target == "class" else []
    names = [*([] if ours else ALWAYS[target]), *(name.lower() for name in names)]
    if unknown := [name for name in names if name not in short]:
        raise UserError(
            argument="metrics",
            received=repr(unknown[0]),
            expected=f"{' or '.join(short)}, as the target is {target}",
            remedy="compile other metrics into the model of " + Arg("model", "module:function"),
        )
    kinds = {name: short[name] for name in names}
    return ours + [
        OfOutputs(getattr(keras.metrics, kind)(**options, name=name), num_outputs, target)
        for name, (kind, options) in kinds.items()
    ]


def class_ids(labels: tf.Tensor) -> tf.Tensor:
    """Returns class ids, int64 [b], from ids [b] or from the largest of shares [b, K]."""
    return ops.cast(tf.argmax(labels, -1) if len(labels.shape) == 2 else labels, "int64")
