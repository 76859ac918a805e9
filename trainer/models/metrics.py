"""Metrics of logits: accuracy, and Keras's own by their names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from imageshards.errors import UserError

# What the field calls them → what Keras does, with its arguments.
_SHORT: dict[str, tuple[str, dict[str, Any]]] = {
    "top5": ("SparseTopKCategoricalAccuracy", {"k": 5}),
    "auc": ("AUC", {"multi_label": True}),
    "f1": ("F1Score", {"average": "macro"}),
}


class Accuracy(keras.metrics.Mean):
    """The share of examples whose class has the highest logit.

    Of labels that are shares of classes, as MixUp makes them, the largest share counts.
    """

    def __init__(self, name: str = "accuracy") -> None:
        super().__init__(name=name)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Class ids [b] or shares [b, K], logits [b, K], weights [b]."""
        right = ops.equal(ops.argmax(y_pred, -1), class_ids(y_true))
        super().update_state(ops.cast(right, "float32"), sample_weight)


class OfProbabilities(keras.metrics.Metric):
    """One of Keras's metrics of [b, K] given probabilities where the model makes logits.

    Metrics with `Sparse` in their name get class ids, all others one-hot labels.
    """

    def __init__(self, metric: keras.metrics.Metric, num_classes: int) -> None:
        super().__init__(name=metric.name)
        self.metric = metric
        self.num_classes = num_classes
        # Built now: a checkpoint is restored before the first step.
        if not metric.variables:
            self.update_state(ops.zeros([1], "int64"), ops.zeros([1, num_classes]), ops.ones([1]))
            metric.reset_state()

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Class ids [b] or shares [b, K], logits [b, K], weights [b]."""
        labels = class_ids(y_true)
        if "Sparse" not in type(self.metric).__name__:
            labels = ops.one_hot(labels, self.num_classes)
        probabilities = ops.softmax(ops.cast(y_pred, "float32"))
        self.metric.update_state(labels, probabilities, sample_weight=sample_weight)

    def result(self) -> Any:
        """The metric's own."""
        return self.metric.result()

    def reset_state(self) -> None:
        """Begins anew."""
        self.metric.reset_state()


def make_metrics(names: Sequence[str], num_classes: int) -> list[keras.metrics.Metric]:
    """`Accuracy`, and the metrics of these names; create them inside the strategy's scope.

    A name is `top5`, `auc`, `f1`, or a class in `keras.metrics` such as `AUC`.
    """
    return [Accuracy(), *(_make(name, num_classes) for name in names)]


def further_metrics(model: keras.Model) -> list[OfProbabilities]:
    """The metrics of a compiled model besides accuracy; none of one that is not compiled."""
    if not model.compiled:
        return []
    # Keras keeps those of `compile` inside one of its own.
    found = [one for metric in model.metrics for one in getattr(metric, "metrics", [metric])]
    return [metric for metric in found if isinstance(metric, OfProbabilities)]


def class_ids(labels: Any) -> Any:
    """int64 [b] from ids [b], or from shares [b, K], of which the largest counts."""
    return ops.cast(ops.argmax(labels, -1) if len(labels.shape) == 2 else labels, "int64")


def _make(name: str, num_classes: int) -> keras.metrics.Metric:
    known, options = _SHORT.get(name.lower(), (name, {}))
    kind = getattr(keras.metrics, known, None)
    if not (isinstance(kind, type) and issubclass(kind, keras.metrics.Metric)):
        public = [n for n in dir(keras.metrics) if n[0].isupper()]
        near = difflib.get_close_matches(name, [*_SHORT, *public], n=3)
        hint = f" (near: {', '.join(near)})" if near else ""
        raise UserError(
            f"--metrics received {name!r}; expected {', '.join(_SHORT)}, or a class of "
            f"keras.metrics that takes class probabilities{hint}."
        )
    try:
        return OfProbabilities(kind(**options, name=name.lower()), num_classes)
    except (TypeError, ValueError) as e:
        raise UserError(
            f"--metrics received {name!r}, which Keras cannot make of class probabilities ({e}); "
            "expected one that needs no arguments: compile it into the model of --model "
            "module:function."
        ) from e
