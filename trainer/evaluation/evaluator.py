"""Measures a model on a split; each example counts once for any batch size and replica count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.callbacks import CallbackList

from imageshards.progress import with_progress
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.config import OptimizerConfig
from trainer.dataset.spec import Batch, MeanStd, Subset, input_of
from trainer.dataset.subset import class_ids
from trainer.evaluation.evaluation import Collector, Evaluation
from trainer.evaluation.kinds import KINDS
from trainer.models.keras_internals import reads_logs
from trainer.models.metrics import further_metrics
from trainer.models.optimizer import make_loss
from trainer.models.step import ReadError, Step, logs_of_hosts, make_test_step
from trainer.models.strategy import device_errors
from trainer.reader.batches import EvaluationData
from trainer.reader.broken_records import BrokenRecords
from trainer.reader.order import evaluation_order, without_copies
from trainer.reader.stream import distributed, next_batch
from trainer.reader.unreadable import explain


class Evaluator:
    """An evaluation of a model on one split, which can be repeated with the same traced graph.

    Args:
        strategy: The strategy in whose scope the model was made. Its replicas, on all `hosts`,
            share each batch.
        broken: Counter of damaged records, which are left out.
        classes: The model's classes (empty for values), of which the data may have a part, in any
            order; None for the classes of `data`.
        loss: The `--loss` of the training.
        mean_std: Statistics by which the training scaled the loss of values.
        own_step: Whether a user's compiled model is measured by its own `test_step`, loss and
            metrics. Any other model returns logits or values.

    Attributes:
        evaluation: Result of the last pass; None before, and with `own_step`.

    Raises:
        UserError: The data has a class that the model does not know.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        data: EvaluationData,
        broken: BrokenRecords,
        *,
        classes: Sequence[str] | None = None,
        loss: str | None = None,
        mean_std: MeanStd | None = None,
        own_step: bool = False,
        hosts: Hosts = ONE_HOST,
    ) -> None:
        self.evaluation: Evaluation | None = None
        dataset = data.subset.dataset
        self._model, self._strategy, self._hosts = model, strategy, hosts
        self._data, self._broken = data, broken
        self._batches: Any = None
        self._own_step = own_step
        if own_step:
            # Finding absent records waits for the device, so only batches that may have some pay.
            self._own_steps = [make_test_step(model, strategy, drops) for drops in (False, True)]
        else:
            classes = data.classes if classes is None else tuple(classes)
            self._names = classes or data.subset.output_names
            self._kind = KINDS[dataset.target]
            ids = class_ids(data.subset, classes)
            same = ids == tuple(range(len(classes)))
            by = make_loss(OptimizerConfig(loss=loss), dataset.target, len(self._names), mean_std)
            self._step = self._make_step(by, None if same else ids)

    @property
    def subset(self) -> Subset:
        """The split and classes that are read."""
        return self._data.subset

    def run(
        self, callbacks: CallbackList | None = None, show_progress: bool = False
    ) -> dict[str, float]:
        """Reads the split once; returns loss, accuracy of classes and the model's metrics.

        With `own_step`, the model's step computes all figures, and callbacks run around each batch.

        Raises:
            UserError: A record cannot be read, or too many records are damaged.
        """
        batches = self._read()
        if show_progress:
            batches = with_progress(batches, self._data.steps, "batches", "evaluating")
        with device_errors(self._data.batch_size):
            if self._own_step:
                callbacks = callbacks or CallbackList()
                self._model.reset_metrics()
                # The last logs sum up the pass.
                logs: dict[str, tf.Tensor] = {}
                for number, batch in enumerate(batches):
                    callbacks.on_test_batch_begin(number)
                    logs = self._own_steps[self._may_lack_records(number)](batch)
                    if reads_logs(callbacks.callbacks, "test"):
                        callbacks.on_test_batch_end(number, logs)
            else:
                collector = self._measure_examples(batches)
        self._broken.merge(self._hosts.gather("evaluation", self._broken.as_json()))
        with self._hosts.limited("The metrics of an evaluation"):
            if self._own_step:
                return logs_of_hosts(self._model, logs, self._hosts.gather)
            further = {one.name: float(one.result()) for one in further_metrics(self._model)}
        self.evaluation = found = collector.evaluation(self._hosts.concatenate)
        return found.epoch_figures() | further

    def _make_step(self, loss: keras.losses.Loss, ids: tuple[int, ...] | None) -> Step:
        """Returns a function that measures every example of one distributed batch.

        `ids` are the model's outputs for the data's classes; None if both are in the same order.
        """
        model, strategy, kind = self._model, self._strategy, self._kind
        metrics = further_metrics(model)

        def on_replica(batch: Batch) -> dict[str, tf.Tensor]:
            outputs = tf.cast(model(input_of(batch), training=False), tf.float32)
            label = batch["label"]
            if ids is not None:
                label = kind.renumbered(label, ids, outputs.shape[-1])
            for metric in metrics:
                metric.update_state(label, outputs, sample_weight=batch["weight"])
            known = {"record": batch["record"], "weight": batch["weight"]}
            # `call` returns a loss for each example, while `__call__` would return the mean.
            return known | {"losses": loss.call(label, outputs)} | kind.measure(outputs, label)

        # The length of padded sequences differs between batches and must not cause new traces.
        @tf.function(autograph=False, reduce_retracing=True)
        def step(batch: Batch) -> dict[str, tf.Tensor]:
            return strategy.run(on_replica, args=(batch,))

        return step

    def _may_lack_records(self, number: int) -> bool:
        """Returns whether a batch may have broken records, or padding for the last replicas."""
        is_full = (number + 1) * self._data.batch_size <= self._data.num_records
        return self._broken.limit > 0 or not (is_full or self._strategy.num_replicas_in_sync == 1)

    def _read(self) -> Iterator[Batch]:
        data, broken = self._data, self._broken
        # Every pass reads the same pipeline again.
        self._batches = self._batches or distributed(
            self._strategy, lambda slices: data.batches(slices, broken)
        )
        iterator = iter(self._batches)
        for number in range(self._data.steps):
            try:
                batch = next_batch(iterator)
            except ReadError as e:
                # The batch that cannot be read has the suspects, of which the error names one.
                subset, begin = without_copies(data.subset), number * data.batch_size
                end = min(begin + data.batch_size, subset.num_records)
                suspects = evaluation_order(subset, data.batch_size).records_at(begin, end)
                raise explain(e.error, subset, suspects, data.model_inputs) from e
            broken.count(data.subset.split.name, number + 1)
            yield batch

    def _measure_examples(self, batches: Iterable[Batch]) -> Collector:
        """Runs the step of `_make_step` on each batch; collects the results on the host."""
        for metric in further_metrics(self._model):
            metric.reset_state()
        collector = self._kind.collector(self._kind, self._names, self._data.num_records)
        pending = None
        for batch in batches:
            measured = self._step(batch)
            # Collecting lags a batch behind, so that the devices work while the host collects.
            if pending is not None:
                collector.add(self._of_replicas(pending))
            pending = measured
        if pending is not None:
            collector.add(self._of_replicas(pending))
        return collector

    def _of_replicas(self, measured: dict[str, tf.Tensor]) -> dict[str, np.ndarray]:
        return {
            name: np.concatenate(
                [part.numpy() for part in self._strategy.experimental_local_results(values)]
            )
            for name, values in measured.items()
        }
