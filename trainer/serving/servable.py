"""A trained model as something to serve: files and raw columns in, classes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer.augment.decode import batch_pictures
from trainer.dataset.spec import ModelCard
from trainer.serving.columns import Columns
from trainer.serving.preprocess import record_jpegs

IMAGE_BYTES = "image_bytes"
SIGNATURE = "serving_default"


class Servable(tf.Module):
    """What `tf.saved_model.save` writes: the model with everything before and behind it.

    Attributes:
        classes: Variable, string [classes]: their names, in the order of the ids.
        labels: Asset with the same names, one per line.
        columns: Which raw columns a request brings besides the file.

    Args:
        model: The `keras.Model`, logits out.
        card: How it was trained.
        transform: Folder of the data set's tensorflow-transform graph, or None.
        labels_file: Text file for `labels`, or None.

    Raises:
        UserError: The transform cannot be loaded.
    """

    def __init__(
        self, model: Any, card: ModelCard, transform: str | None, labels_file: str | None = None
    ):
        super().__init__()
        self.columns = Columns(card.inputs, transform)
        self.classes = tf.Variable(card.classes, trainable=False, name="classes")
        self.labels = tf.saved_model.Asset(labels_file) if labels_file else None
        # Not the model itself: Keras would trace each of its layers once more.
        self._weights = [variable.value for variable in model.variables]
        self._pictures = batch_pictures(card.inputs.image, card.inputs.size)
        self._options = card.inputs.image.options
        self._predict = _probabilities(model)

    def signatures(self) -> dict[str, Any]:
        """The concrete functions to save, by name."""

        def serve(image_bytes: Any, **columns: Any) -> dict[str, Any]:
            return self._serve(image_bytes, columns)

        spec = tf.TensorSpec((None,), tf.string, IMAGE_BYTES)
        function = tf.function(serve, autograph=False).get_concrete_function(
            spec, **self.columns.signature
        )
        return {SIGNATURE: function}

    def _serve(self, image_bytes: Any, columns: dict[str, Any]) -> dict[str, Any]:
        records = record_jpegs(image_bytes, self._options)
        inputs: Any = self._pictures(records, tf.zeros_like(records, tf.int64))
        if self.columns.signature or self.columns.reads_picture:
            inputs = {"image": inputs, **self.columns(columns, records)}
        probabilities = self._predict(inputs)
        best = tf.argmax(probabilities, -1)
        return {
            "class": tf.gather(self.classes, best),
            "class_id": best,
            "probability": tf.reduce_max(probabilities, -1),
            "probabilities": probabilities,
        }


def top(
    probabilities: Sequence[float], classes: Sequence[str], count: int
) -> list[tuple[str, int, float]]:
    """The `count` most probable classes of one picture: (name, id, probability), best first."""
    order = sorted(range(len(classes)), key=lambda i: (-probabilities[i], i))[:count]
    return [(classes[i], i, float(probabilities[i])) for i in order]


def _probabilities(model: Any) -> Any:
    def predict(inputs: Any) -> Any:
        return tf.nn.softmax(tf.cast(model(inputs, training=False), tf.float32))

    return predict
