"""Metrics of a model's outputs: accuracy, and Keras's own by their names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from imageshards.errors import Arg, UserError

if TYPE_CHECKING:
    import tensorflow as tf

# What the field calls them → what Keras does, with its arguments; by the kind of the target.
_SHORT: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "class": {
        "top5": ("SparseTopKCategoricalAccuracy", {"k": 5}),
        "auc": ("AUC", {"multi_label": True}),
        "f1": ("F1Score", {"average": "macro"}),
    },
    "labels": {
        "binary_accuracy": ("BinaryAccuracy", {}),
        # The area under precision against recall, of each label, and the mean of these.
        "auc_pr": ("AUC", {"multi_label": True, "curve": "PR"}),
        "auc": ("AUC", {"multi_label": True}),
        "f1": ("F1Score", {"average": "macro", "threshold": 0.5}),
    },
    "values": {
        "mae": ("MeanAbsoluteError", {}),
        "rmse": ("RootMeanSquaredError", {}),
        "r2": ("R2Score", {}),
        "mape": ("MeanAbsolutePercentageError", {}),
    },
}
# Those of every run.
ALWAYS = {
    "class": ("accuracy",),
    "labels": ("binary_accuracy", "auc_pr"),
    "values": ("mae", "rmse"),
}
_TAKEN = {
    "class": "class probabilities", "labels": "probabilities of labels", "values": "numbers"
}  # fmt: skip
_OF_ONE_CLASS = ("Sparse", "Categorical", "TopK")


class Accuracy(keras.metrics.Mean):
    """The share of examples whose class has the highest logit.

    Of labels that are shares of classes, as MixUp makes them, the largest share counts.
    """

    def __init__(self, name: str = "accuracy") -> None:
        super().__init__(name=name)

    def update_state(
        self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor | None = None
    ) -> None:
        """Class ids [b] or shares [b, K], logits [b, K], weights [b]."""
        right = ops.equal(ops.argmax(y_pred, -1), class_ids(y_true))
        super().update_state(ops.cast(right, "float32"), sample_weight)


class OfOutputs(keras.metrics.Metric):
    """One of Keras's metrics given what a model's outputs mean: probabilities, or values.

    Of a class, metrics with `Sparse` in their name get class ids, all others one-hot labels.
    """

    def __init__(
        self, metric: keras.metrics.Metric, num_outputs: int, target: str = "class"
    ) -> None:
        super().__init__(name=metric.name)
        self.metric, self.num_outputs, self.target = metric, num_outputs, target
        # Built now: a checkpoint is restored before the first step.
        if not metric.variables:
            labels = ops.zeros([1], "int64") if target == "class" else ops.zeros([1, num_outputs])
            self.update_state(labels, ops.zeros([1, num_outputs]), ops.ones([1]))
            metric.reset_state()

    def update_state(
        self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor | None = None
    ) -> None:
        """Labels as a `Batch` has them, outputs [b, K], weights [b]."""
        y_pred = ops.cast(y_pred, "float32")
        if self.target == "class":
            y_pred, y_true = ops.softmax(y_pred), class_ids(y_true)
            if "Sparse" not in type(self.metric).__name__:
                y_true = ops.one_hot(y_true, self.num_outputs)
        elif self.target == "labels":
            # Of the two pictures that MixUp mixed, those of the larger share count.
            y_pred, y_true = ops.sigmoid(y_pred), ops.cast(y_true >= 0.5, "float32")
        else:
            y_true = ops.reshape(y_true, [-1, self.num_outputs])
        self.metric.update_state(y_true, y_pred, sample_weight=sample_weight)

    def result(self) -> tf.Tensor:
        """The metric's own."""
        return self.metric.result()

    def reset_state(self) -> None:
        """Begins anew."""
        self.metric.reset_state()


def make_metrics(
    names: Sequence[str], num_outputs: int, target: str = "class"
) -> list[keras.metrics.Metric]:
    """Those of every run with such a target, and the metrics of these names.

    Create them inside the strategy's scope. A name is one of `_SHORT`, or a class in
    `keras.metrics` such as `AUC`.
    """
    ours: list[keras.metrics.Metric] = [Accuracy()] if target == "class" else []
    names = [*([] if ours else ALWAYS[target]), *names]
    names = [name.lower() if name.lower() in _SHORT[target] else name for name in names]
    return ours + [_make(name, num_outputs, target) for name in dict.fromkeys(names)]


def further_metrics(model: keras.Model) -> list[OfOutputs]:
    """The metrics of a compiled model besides accuracy; none of one that is not compiled."""
    if not model.compiled:
        return []
    # Keras keeps those of `compile` inside one of its own.
    found = [one for metric in model.metrics for one in getattr(metric, "metrics", [metric])]
    return [metric for metric in found if isinstance(metric, OfOutputs)]


def class_ids(labels: tf.Tensor) -> tf.Tensor:
    """int64 [b] from ids [b], or from shares [b, K], of which the largest counts."""
    return ops.cast(ops.argmax(labels, -1) if len(labels.shape) == 2 else labels, "int64")


def _make(name: str, num_outputs: int, target: str) -> keras.metrics.Metric:
    short = _SHORT[target]
    known, options = short.get(name.lower(), (name, {}))
    kind = getattr(keras.metrics, known, None)
    is_one = isinstance(kind, type) and issubclass(kind, keras.metrics.Metric)
    if kind is None or not is_one or not _fits(kind, target):
        public = [n for n in dir(keras.metrics) if n[0].isupper()]
        near = difflib.get_close_matches(name, [*short, *public], n=3) if not is_one else []
        hint = f" (near: {', '.join(near)})" if near else ""
        raise UserError(
            argument="metrics",
            received=repr(name),
            expected=f"{', '.join(short)}, or a class of keras.metrics that takes "
            f"{_TAKEN[target]}{hint}",
        )
    try:
        return OfOutputs(kind(**options, name=name.lower()), num_outputs, target)
    except (TypeError, ValueError) as e:
        raise UserError(
            argument="metrics",
            received=f"{name!r}, which Keras cannot make of {_TAKEN[target]} ({e})",
            expected="a metric that needs no arguments",
            remedy="compile the metric into the model of " + Arg("model", "module:function"),
        ) from e


def _fits(kind: type, target: str) -> bool:
    """Whether one of Keras's metrics can say anything of such a target."""
    if kind is keras.metrics.Accuracy:
        return False  # compares ids, not probabilities
    if target == "values":
        return kind.__module__.endswith("regression_metrics")
    return target == "class" or not any(word in kind.__name__ for word in _OF_ONE_CLASS)
