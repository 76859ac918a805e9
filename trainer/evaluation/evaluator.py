"""Measures a model on a split; each example counts once for any batch size and replica count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf
from keras.callbacks import CallbackList

from imageshards.progress import with_progress
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.dataset.batch import Batch, input_of
from trainer.dataset.subset import class_ids
from trainer.evaluation.evaluation import Collector, Evaluation
from trainer.evaluation.kinds import KINDS
from trainer.models.keras_internals import reads_logs
from trainer.models.step import Step, logs_of_hosts, make_test_step
from trainer.models.strategy import device_errors
from trainer.reader.broken_records import BrokenRecords
from trainer.reader.described import EvaluationData
from trainer.reader.stream import EvaluationStream


class Evaluator:
    """An evaluation of a compiled model by its own `test_step`, loss and metrics.

    Args:
        strategy: The strategy in whose scope the model was made. Its replicas, on all `hosts`,
            share each batch.
        broken: Counter of damaged records, which are left out.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        data: EvaluationData,
        broken: BrokenRecords,
        hosts: Hosts = ONE_HOST,
    ) -> None:
        self._model, self._data, self._broken, self._hosts = model, data, broken, hosts
        self._stream = EvaluationStream(data, strategy, broken)
        self._replicas = strategy.num_replicas_in_sync
        # Finding absent records waits for the device, so only batches that may have some pay.
        self._steps = [make_test_step(model, strategy, drops) for drops in (False, True)]

    def run(
        self, callbacks: CallbackList | None = None, show_progress: bool = False
    ) -> dict[str, float]:
        """Reads the split once, with the callbacks' hooks; returns the model's loss and metrics.

        Raises:
            UserError: A record cannot be read, or too many records are damaged.
        """
        callbacks = callbacks or CallbackList()
        self._model.reset_metrics()
        # The last logs sum up the pass.
        logs: dict[str, tf.Tensor] = {}
        with device_errors(self._data.batch_size):
            for number, batch in enumerate(_shown(self._stream, show_progress)):
                callbacks.on_test_batch_begin(number)
                logs = self._steps[self._may_lack_records(number)](batch)
                if reads_logs(callbacks.callbacks, "test"):
                    callbacks.on_test_batch_end(number, logs)
        self._broken.merge(self._hosts.gather("evaluation", self._broken.as_json()))
        with self._hosts.limited("The metrics of an evaluation"):
            return logs_of_hosts(self._model, logs, self._hosts.gather)

    def _may_lack_records(self, number: int) -> bool:
        """Returns whether a batch may have broken records, or padding for the last replicas."""
        is_full = (number + 1) * self._data.batch_size <= self._data.num_records
        return self._broken.limit > 0 or not (is_full or self._replicas == 1)


def measure(
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    stream: EvaluationStream,
    loss: keras.losses.Loss,
    classes: Sequence[str] = (),
    hosts: Hosts = ONE_HOST,
) -> Evaluation:
    """Measures a model that returns logits or values, example by example, and shows the progress.

    Args:
        strategy: The strategy in whose scope the model was made.
        stream: The batches; their damaged records are left out.
        loss: The loss of the training.
        classes: The model's classes, of which the data may have a part, in any order; empty for
            values.

    Raises:
        UserError: The data has a class that the model does not know, a record cannot be read, or
            too many records are damaged.
    """
    data, broken = stream.data, stream.broken
    ids = class_ids(data.subset, classes)
    kind = KINDS[data.subset.dataset.target]
    step = _make_step(model, strategy, kind, loss, None if ids == (*range(len(classes)),) else ids)
    names = tuple(classes) or data.subset.output_names
    collector = Collector(kind, names, data.num_records)
    pending: dict[str, tf.Tensor] | None = None

    def collect() -> None:
        if pending is not None:
            parts = {k: strategy.experimental_local_results(v) for k, v in pending.items()}
            collector.add({k: np.concatenate([one.numpy() for one in v]) for k, v in parts.items()})

    with device_errors(data.batch_size):
        for batch in _shown(stream, hosts.is_chief):
            measured = step(batch)
            # Collecting lags a batch behind, so that the devices work while the host collects.
            collect()
            pending = measured
        collect()
    broken.merge(hosts.gather("evaluation", broken.as_json()))
    found: Evaluation = collector.evaluation(hosts.concatenate)
    return found


def _make_step(
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    kind: type[Evaluation],
    loss: keras.losses.Loss,
    ids: tuple[int, ...] | None,
) -> Step:
    """Returns a function that measures every example of one distributed batch.

    `ids` are the model's outputs for the data's classes; None if both are in the same order.
    """

    def on_replica(batch: Batch) -> dict[str, tf.Tensor]:
        outputs = tf.cast(model(input_of(batch), training=False), tf.float32)
        label = batch["label"]
        if ids is not None:
            label = renumbered(label, ids, outputs.shape[-1])
        known = {"record": batch["record"], "weight": batch["weight"]}
        # `call` returns a loss for each example, while `__call__` would return the mean.
        return known | {"losses": loss.call(label, outputs)} | kind.measure(outputs, label)

    # The length of padded sequences differs between batches and must not cause new traces.
    @tf.function(autograph=False, reduce_retracing=True)
    def step(batch: Batch) -> dict[str, tf.Tensor]:
        return strategy.run(on_replica, args=(batch,))

    return step


def renumbered(label: tf.Tensor, ids: Sequence[int], num_outputs: int) -> tf.Tensor:
    """Converts class ids, or a 0 or 1 for each class, from the data's classes to the model's."""
    if label.dtype.is_integer:
        return tf.gather(tf.constant(ids, tf.int64), label)
    # Labels that the data does not know become 0.
    return tf.matmul(label, tf.one_hot(ids, num_outputs))


def _shown(stream: EvaluationStream, shows_progress: bool) -> Iterator[Batch]:
    batches = stream.batches()
    if not shows_progress:
        return batches
    return with_progress(batches, stream.data.steps, "batches", "evaluating")
