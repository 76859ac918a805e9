"""Evaluation: every example counts exactly once, for any batch and number of replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.callbacks import CallbackList

from imageshards.errors import UserError
from imageshards.progress import with_progress
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.config import OptimizerConfig
from trainer.dataset.spec import Batch, MeanStd, Subset, input_of, value_names
from trainer.dataset.subset import class_ids
from trainer.evaluation.classes import ClassEvaluation
from trainer.evaluation.evaluation import Collector, Evaluation
from trainer.evaluation.labels import LabelsEvaluation
from trainer.evaluation.values import ValuesEvaluation
from trainer.models.metrics import further_metrics
from trainer.models.optimizer import make_loss
from trainer.models.step import Step, logs_of_hosts, make_test_step
from trainer.models.strategy import memory_errors
from trainer.reader.batches import EvaluationData
from trainer.reader.broken_records import BrokenRecords
from trainer.reader.order import evaluation_order, without_copies
from trainer.reader.stream import distributed, next_batch
from trainer.reader.unreadable import explain

# What is measured of each kind of target.
KINDS: Mapping[str, type[Evaluation]] = {
    "class": ClassEvaluation,
    "labels": LabelsEvaluation,
    "values": ValuesEvaluation,
}


class Evaluator:
    """Measures a model on one split, any number of times; its graph is traced once.

    Args:
        strategy: Whose replicas, on all `hosts`, share each batch; the model was made in its scope.
        broken: Counts damaged records, which are left out.
        classes: The model's, where the data may have fewer of them, or in another order, none of
            values; None for those of `data`.
        loss: The `--loss` of the training.
        mean_std: Of values: what the loss of the training was divided by.
        own_step: Whether the model is a compiled one of the user's, whose `test_step`, loss and
            metrics say how good it is. Otherwise it gives logits, or values.

    Attributes:
        evaluation: Every example of the last pass; None before it, and with `own_step`.

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
            self._step = make_test_step(model, strategy)
        else:
            classes = data.classes if classes is None else tuple(classes)
            self._names = classes or value_names(dataset.label_feature, dataset.target_shape)
            self._kind = KINDS[dataset.target]
            ids = class_ids(data.subset, classes)
            same = ids == tuple(range(len(classes)))
            by = make_loss(OptimizerConfig(loss=loss), dataset.target, len(self._names), mean_std)
            self._step = _make_step(model, strategy, self._kind, by, None if same else ids)

    @property
    def subset(self) -> Subset:
        """What is read."""
        return self._data.subset

    def run(
        self, callbacks: CallbackList | None = None, show_progress: bool = False
    ) -> dict[str, float]:
        """One pass: loss, of a class accuracy, and further metrics, or what the own step says.

        Hooks are called around each batch of such a step.

        Raises:
            UserError: A record cannot be read, or more are damaged than may be.
        """
        batches = self._read()
        if show_progress:
            batches = with_progress(batches, self._data.steps, "batches", "evaluating")
        with memory_errors(self._data.batch_size):
            if self._own_step:
                logs = self._take_own_steps(batches, callbacks or CallbackList())
            else:
                collector = self._measure_examples(batches)
        self._broken.merge(self._hosts.gather("evaluation", self._broken.as_json()))
        if not self._own_step:
            return self._figures(collector)
        with self._hosts.limited("The metrics of an evaluation"):
            return logs_of_hosts(self._model, logs, self._hosts.gather)

    def _read(self) -> Iterator[Batch]:
        data, broken = self._data, self._broken
        self._batches = self._batches or distributed(
            self._strategy, lambda slices: data.batches(slices, broken)
        )
        iterator = iter(self._batches)
        for number in range(self._data.steps):
            try:
                batch = next_batch(iterator)
            except tf.errors.OpError as e:
                raise self._explain(e, number) from e
            broken.count(data.subset.split.name, number + 1)
            yield batch

    def _take_own_steps(
        self, batches: Iterable[Batch], callbacks: CallbackList
    ) -> dict[str, tf.Tensor]:
        """What the last of the model's own steps returned; nothing where there was no batch."""
        self._model.reset_metrics()
        logs: dict[str, tf.Tensor] = {}
        for number, batch in enumerate(batches):
            callbacks.on_test_batch_begin(number)
            logs = self._step(batch)
            callbacks.on_test_batch_end(number, logs)
        return logs

    def _measure_examples(self, batches: Iterable[Batch]) -> Collector:
        """What `_make_step` measures of the examples of each batch, on the host."""
        for metric in further_metrics(self._model):
            metric.reset_state()
        collector = self._kind.collector(self._kind, self._names, self._data.num_records)
        pending = None
        for batch in batches:
            measured = self._step(batch)
            # One batch behind: the devices have work while the host collects.
            if pending is not None:
                collector.add(self._of_replicas(pending))
            pending = measured
        if pending is not None:
            collector.add(self._of_replicas(pending))
        return collector

    def _of_replicas(self, measured: dict[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """A batch's measurements, of all replicas."""
        return {
            name: np.concatenate(
                [part.numpy() for part in self._strategy.experimental_local_results(values)]
            )
            for name, values in measured.items()
        }

    def _explain(self, error: tf.errors.OpError, batch: int) -> UserError:
        """Returns what a person is told where reading a batch has failed."""
        data, subset = self._data, without_copies(self._data.subset)
        begin, order = batch * data.batch_size, evaluation_order(subset, data.batch_size)
        suspects = order.records_at(begin, min(begin + data.batch_size, subset.num_records))
        return explain(error, subset, suspects, data.model_inputs)

    def _figures(self, collector: Collector) -> dict[str, float]:
        with self._hosts.limited("The metrics of an evaluation"):
            further = {one.name: float(one.result()) for one in further_metrics(self._model)}
        self.evaluation = found = collector.evaluation(self._hosts.concatenate)
        return found.epoch_figures() | further


def _make_step(
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    kind: type[Evaluation],
    loss: keras.losses.Loss,
    ids: tuple[int, ...] | None,
) -> Step:
    """A function that measures every example of one distributed batch.

    `ids`: of the data's classes, where the model has others or another order.
    """
    metrics = further_metrics(model)

    def on_replica(batch: Batch) -> dict[str, tf.Tensor]:
        outputs = tf.cast(model(input_of(batch), training=False), tf.float32)
        label = batch["label"]
        if ids is not None:
            label = kind.renumbered(label, ids, outputs.shape[-1])
        for metric in metrics:
            metric.update_state(label, outputs, sample_weight=batch["weight"])
        known = {"record": batch["record"], "weight": batch["weight"]}
        return known | {"losses": loss.call(label, outputs)} | kind.measure(outputs, label)

    # Padded sequences change their length from batch to batch.
    @tf.function(autograph=False, reduce_retracing=True)
    def step(batch: Batch) -> dict[str, tf.Tensor]:
        return strategy.run(on_replica, args=(batch,))

    return step
