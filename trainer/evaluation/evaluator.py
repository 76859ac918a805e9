"""Evaluation: every example counts exactly once, for any batch and number of replicas."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from imageshards.progress import with_progress
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.dataset.spec import Batch, Subset, model_input
from trainer.dataset.subset import class_ids
from trainer.models.metrics import further_metrics
from trainer.models.strategy import memory_errors
from trainer.reader import order
from trainer.reader.batches import EvaluationData
from trainer.reader.broken_records import BrokenRecordHandler
from trainer.reader.stream import (
    Reading,
    distributed,
    is_framing_error,
    next_batch,
    record_numbers,
)

TOP = 5


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The figures of a model on one split. Arrays have one entry per example, in record order.

    Attributes:
        classes: The model's, in the order of its outputs.
        num_examples: Each counted once.
        left_out: Broken records, which are no examples.
        loss: Mean cross-entropy, without label smoothing; NaN where there is no example.
        accuracy: Share of examples whose class got the highest probability.
        top5_accuracy: Share of those whose class is among the five highest; None for five
            classes or fewer.
        record: int64, number within the split.
        label, predicted: int64, class ids of the model.
        probability_of_label, probability_of_prediction: float32.
        losses: float32, cross-entropy.
        metrics: Those that the model was compiled with besides accuracy, by name.
    """

    classes: tuple[str, ...]
    num_examples: int
    left_out: int
    loss: float
    accuracy: float
    top5_accuracy: float | None
    record: np.ndarray
    label: np.ndarray
    predicted: np.ndarray
    probability_of_label: np.ndarray
    probability_of_prediction: np.ndarray
    losses: np.ndarray
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Evaluator:
    """Evaluates a model on one split, any number of times; its graph is traced once.

    Args:
        model: Gives logits; its variables live in `strategy`'s scope.
        strategy: Whose replicas share each batch.
        data: What is read.
        broken_handler: Replaces broken records; None to raise TensorFlow's error.
        classes: The model's, where the data may have fewer of them, or in another order;
            None for those of `data`.
        hosts: Those that share each batch.

    Raises:
        UserError: The data has a class that the model does not know.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        data: EvaluationData,
        broken_handler: BrokenRecordHandler | None = None,
        classes: Sequence[str] | None = None,
        hosts: Hosts = ONE_HOST,
    ) -> None:
        self.classes = tuple(classes) if classes is not None else data.classes
        self._strategy, self._hosts = strategy, hosts
        self._whole = data.subset
        # The figures do not depend on the order, but a broken record is found by its position.
        options = dataclasses.replace(data.read_options, fast_order=False)
        subset = broken_handler.open(data.subset) if broken_handler else data.subset
        self._data = dataclasses.replace(data, subset=subset, read_options=options)
        self._broken_handler = broken_handler
        self._batches: Any = None
        ids = class_ids(data.subset, self.classes)
        self._metrics = further_metrics(model)
        self._step = _make_step(model, strategy, None if classes is None else ids)

    @property
    def subset(self) -> Subset:
        """What is read, broken records replaced."""
        return self._data.subset

    def run(self, show_progress: bool = False) -> Evaluation:
        """One pass.

        Args:
            show_progress: Whether a terminal or a log shows how far it is.

        Raises:
            UserError: A record is broken, and must not be left out.
        """
        while True:
            for metric in self._metrics:
                metric.reset_state()
            parts: list[dict[str, np.ndarray]] = []
            broken = None
            try:
                measured = self._measured()
                if show_progress:
                    measured = with_progress(measured, self._data.steps, "batches", "evaluating")
                parts = list(measured)
            except _Broken as e:
                broken = e
            if not any(self._hosts.gather("evaluation", broken is not None)):
                with self._hosts.limited("The metrics of an evaluation"):
                    further = {metric.name: float(metric.result()) for metric in self._metrics}
                whole = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
                whole = self._hosts.concatenate("evaluation", whole)
                return _summary(self.classes, whole, further)
            self._replace_broken(broken)

    def _measured(self) -> Iterator[dict[str, np.ndarray]]:
        iterator = Reading(self._opened, self.subset, hosts=self._hosts)
        pending: Any = None
        for number in range(self._data.steps):
            try:
                batch = next_batch(iterator)
            except tf.errors.OpError as e:
                raise _Broken(e, number) from e
            # One batch behind: the devices have work while the host collects.
            with memory_errors(self._data.batch_size):
                measured = self._step(batch)
                found = self._collected(pending) if pending is not None else None
            if found is not None:
                yield found
            pending = measured
        if pending is not None:
            with memory_errors(self._data.batch_size):
                found = self._collected(pending)
            yield found

    def _opened(self, number: int) -> Iterator[Batch]:
        if self._batches is None:
            self._batches = distributed(self._strategy, self._data.batches)
        return itertools.islice(iter(self._batches), number, None)

    def _collected(self, measured: dict[str, Any]) -> dict[str, np.ndarray]:
        """A batch's measurements, of all replicas, on the host."""
        return {
            name: np.concatenate(
                [part.numpy() for part in self._strategy.experimental_local_results(values)]
            )
            for name, values in measured.items()
        }

    def _replace_broken(self, broken: _Broken | None) -> None:
        """Replaces the records for which this host's pass has failed, or that of others."""
        data, suspects = self._data, None
        if self._broken_handler is None:
            raise broken.error if broken else RuntimeError("another host met a broken record")
        if broken and not is_framing_error(broken.error):
            records = order.ordered_records(data.subset, data.read_options)
            start = broken.batch * data.batch_size
            suspects = record_numbers(records.skip(start).take(data.batch_size))
        error = broken.error if broken else None
        subset = self._broken_handler.handle(self._whole, suspects, error)
        self._data, self._batches = dataclasses.replace(data, subset=subset), None


class _Broken(Exception):
    """Reading the batch of this number failed."""

    def __init__(self, error: tf.errors.OpError, batch: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.batch = batch


def _make_step(
    model: keras.Model, strategy: tf.distribute.Strategy, ids: tuple[int, ...] | None
) -> Any:
    """A function that measures every example of one distributed batch."""
    metrics = further_metrics(model)

    def on_replica(batch: Batch) -> dict[str, tf.Tensor]:
        logits = tf.cast(model(model_input(batch["inputs"]), training=False), tf.float32)
        label = tf.cast(batch["label"], tf.int64)
        if ids is not None:
            label = tf.gather(tf.constant(ids, tf.int64), label)
        log_probability = tf.nn.log_softmax(logits)
        for metric in metrics:
            metric.update_state(label, logits, sample_weight=batch["weight"])
        of_label = tf.gather(log_probability, label, batch_dims=1)
        # Of equal logits the first ranks highest, as in argmax. A NaN is never behind another.
        others = tf.range(tf.shape(logits, tf.int64)[1])[tf.newaxis, :]
        mine = tf.gather(logits, label, batch_dims=1)[:, tf.newaxis]
        behind = (logits < mine) | (tf.equal(logits, mine) & (others > label[:, tf.newaxis]))
        num_behind = tf.reduce_sum(tf.cast(behind, tf.int64), 1)
        return {
            "record": batch["record"],
            "weight": batch["weight"],
            "label": label,
            "predicted": tf.argmax(logits, -1),
            "rank": tf.shape(logits, tf.int64)[1] - 1 - num_behind,
            "probability_of_label": tf.exp(of_label),
            "probability_of_prediction": tf.exp(tf.reduce_max(log_probability, -1)),
            "losses": -of_label,
        }

    # Padded sequences change their length from batch to batch.
    @tf.function(autograph=False, reduce_retracing=True)
    def step(batch: Batch) -> Any:
        return strategy.run(on_replica, args=(batch,))

    return step


def _summary(
    classes: tuple[str, ...], whole: dict[str, np.ndarray], further: Mapping[str, float]
) -> Evaluation:
    counted = whole["weight"] > 0
    left_out = int(np.sum((whole["record"] >= 0) & ~counted))
    whole = {name: values[counted] for name, values in whole.items()}
    order = np.argsort(whole["record"], kind="stable")
    whole = {name: values[order] for name, values in whole.items()}
    right = whole["predicted"] == whole["label"]
    # Summed in float64: the mean of a million float32 losses would lose digits.
    return Evaluation(
        classes=classes,
        num_examples=len(right),
        left_out=left_out,
        loss=_mean(whole["losses"]),
        accuracy=_mean(right),
        top5_accuracy=_mean(whole["rank"] < TOP) if len(classes) > TOP else None,
        record=whole["record"],
        label=whole["label"],
        predicted=whole["predicted"],
        probability_of_label=whole["probability_of_label"],
        probability_of_prediction=whole["probability_of_prediction"],
        losses=whole["losses"],
        metrics=further,
    )


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values, dtype=np.float64)) if len(values) else float("nan")
