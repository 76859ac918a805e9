"""Loss and metrics for logits, against class ids and against mixed labels alike."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable("imageshards")
class CrossEntropy(keras.losses.Loss):
    """Cross-entropy of logits: the mean over a batch, so that a weight of 0 counts as loss 0.

    The divisor is the number of examples, not the sum of their weights: otherwise replicas
    with lighter examples would weigh more, and results would depend on their number.

    Args:
        num_classes: K.
        label_smoothing: Share of every label that is spread evenly over all classes.
    """

    def __init__(
        self, num_classes: int, label_smoothing: float = 0.0, name: str = "cross_entropy"
    ) -> None:
        super().__init__(name=name, reduction="sum_over_batch_size")
        self.num_classes = num_classes
        self.label_smoothing = label_smoothing

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Class ids [b] or shares [b, K], and logits [b, K] → float32 [b]."""
        if len(y_true.shape) < 2 and not self.label_smoothing:
            return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        if len(y_true.shape) < 2:
            y_true = ops.one_hot(ops.cast(y_true, "int32"), self.num_classes)
        return keras.losses.categorical_crossentropy(
            y_true, y_pred, from_logits=True, label_smoothing=self.label_smoothing
        )

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {
            "num_classes": self.num_classes,
            "label_smoothing": self.label_smoothing,
            "name": self.name,
        }


def make_loss(label_smoothing: float, num_classes: int) -> CrossEntropy:
    """The training loss; takes class ids int [b] or shares float [b, num_classes]."""
    return CrossEntropy(num_classes, label_smoothing)
