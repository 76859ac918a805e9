"""What a compiled model says of the validation split by its own loss and metrics."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.callbacks import CallbackList

from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.dataset.spec import Batch
from trainer.models.step import make_test_step
from trainer.models.strategy import memory_errors
from trainer.reader.batches import EvaluationData
from trainer.reader.broken_records import BrokenRecordHandler
from trainer.reader.stream import Reading, distributed, next_batch


class Validation:
    """A pass over the validation split with the model's own `test_step`.

    Args:
        model: Compiled and built.
        strategy: Whose replicas share each batch.
        data: The split.
        broken_handler: Replaces broken records.
        hosts: Those that share each batch.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        data: EvaluationData,
        broken_handler: BrokenRecordHandler,
        hosts: Hosts = ONE_HOST,
    ) -> None:
        self._model, self._strategy, self._data = model, strategy, data
        self._broken_handler, self._hosts = broken_handler, hosts
        self._subset = broken_handler.open(data.subset)
        self._batches: Any = None
        self._step = make_test_step(model, strategy)

    def __call__(self, callbacks: CallbackList) -> dict[str, float]:
        """The figures, by name.

        Args:
            callbacks: Whose hooks are called before and after each batch.

        Raises:
            UserError: A record is broken, and must not be left out.
        """
        model = self._model
        while True:
            model.reset_metrics()
            logs, error = self._run(callbacks)
            if not any(self._hosts.gather("validation", error is not None)):
                break
            self._subset = self._broken_handler.handle(self._data.subset, None, error)
            self._batches = None
        with self._hosts.limited("The metrics of a validation"):
            means = {
                name: float(keras.ops.convert_to_numpy(value))
                for name, value in model._get_metrics_result_or_logs(logs).items()
            }
        # Metrics are sums over all hosts; what else a step has returned is this one's.
        of_hosts = self._hosts.gather("validation logs", means)
        found = {name: _mean([one[name] for one in of_hosts]) for name in means}
        if "loss" in found and self._strategy.num_replicas_in_sync > 1:
            found["loss"] = self._without_fill_ups(found["loss"])
        return found

    def _run(self, callbacks: CallbackList) -> tuple[dict[str, Any], tf.errors.OpError | None]:
        """What the last step returned, and what a broken record ended the pass with."""
        logs: dict[str, Any] = {}
        iterator = Reading(self._opened, self._subset, hosts=self._hosts)
        for step in range(self._data.steps):
            callbacks.on_test_batch_begin(step)
            try:
                batch = next_batch(iterator)
            except tf.errors.OpError as e:
                return {}, e
            with memory_errors(self._data.batch_size):
                logs = self._step(batch)
            callbacks.on_test_batch_end(step, logs)
        return logs, None

    def _opened(self, number: int) -> Iterator[Batch]:
        if self._batches is None:
            data = dataclasses.replace(self._data, subset=self._subset)
            self._batches = distributed(self._strategy, data.batches)
        return itertools.islice(iter(self._batches), number, None)

    def _without_fill_ups(self, mean: float) -> float:
        """The mean loss over the split's examples, given that over them and what fills up.

        Keras divides by the number of examples whatever they weigh. Penalties of the model,
        which are in every mean, are not divided by anything.
        """
        losses = self._model._get_regularization_losses()
        penalties = float(sum(float(keras.ops.convert_to_numpy(loss)) for loss in losses))
        count = self._data.steps * self._data.batch_size
        return (mean - penalties) * count / self._data.num_records + penalties


def _mean(values: Sequence[float]) -> float:
    """As TensorFlow takes it over replicas, so that hosts and replicas give the same bits."""
    return float(np.sum(np.array(values, np.float32)) / np.float32(len(values)))
