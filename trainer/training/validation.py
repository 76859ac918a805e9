"""What a compiled model says of the validation split by its own loss and metrics."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from trainer.reader.batches import EvaluationData
from trainer.training.step import make_test_step


class Validation:
    """A pass over the validation split with the model's own `test_step`.

    Args:
        model: Compiled and built.
        strategy: Whose replicas share each batch.
        data: The split.
    """

    def __init__(
        self, model: keras.Model, strategy: tf.distribute.Strategy, data: EvaluationData
    ) -> None:
        self._model, self._data = model, data
        self._batches = strategy.experimental_distribute_dataset(data.dataset())
        self._step = make_test_step(model, strategy)

    def __call__(self) -> dict[str, float]:
        """The figures, by name, each with `val_` before it.

        Raises:
            tf.errors.OpError: A record cannot be read or understood.
        """
        model, logs = self._model, dict[str, Any]()
        model.reset_metrics()
        for batch in self._batches:
            logs = self._step(batch)
        found = {
            name: float(keras.ops.convert_to_numpy(value))
            for name, value in model._get_metrics_result_or_logs(logs).items()
        }
        if "loss" in found:
            found["loss"] = self._without_fill_ups(found["loss"])
        return {f"val_{name}": value for name, value in found.items()}

    def _without_fill_ups(self, mean: float) -> float:
        """The mean loss over the split's examples, given that over them and what fills up.

        Keras divides by the number of examples whatever they weigh. Penalties of the model,
        which are in every mean, are not divided by anything.
        """
        penalties = float(sum(float(keras.ops.convert_to_numpy(x)) for x in self._model.losses))
        count = self._data.steps * self._data.batch_size
        return (mean - penalties) * count / self._data.num_records + penalties
