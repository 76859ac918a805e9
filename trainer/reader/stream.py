"""The training stream of a run: distributed batches from any step on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from trainer.cluster.connection import note_work
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.dataset.spec import Batch, ReplicaSlices, Subset
from trainer.models.strategy import to_device
from trainer.reader.batches import TrainingData
from trainer.reader.broken_records import BrokenRecordHandler
from trainer.reader.order import training_order


class TrainingStream:
    """Batches for `trainer.training.loop.Loop`.

    Args:
        data: What is trained on.
        strategy: Whose replicas share each batch.
        broken_handler: Replaces broken records.
        hosts: Those that share each batch.
    """

    def __init__(
        self,
        data: TrainingData,
        strategy: tf.distribute.Strategy,
        broken_handler: BrokenRecordHandler,
        hosts: Hosts = ONE_HOST,
    ) -> None:
        self._hosts = hosts
        self._data = dataclasses.replace(data, subset=broken_handler.open(data.subset))
        self._strategy = strategy
        self._broken_handler = broken_handler

    @property
    def subset(self) -> Subset:
        """What is read, broken records masked."""
        return self._data.subset

    def iterator(self, step: int) -> Iterator[Batch]:
        """Batches from `step` on, without end, each divided over the replicas."""
        # The user's own function sees whole batches, whatever the number of replicas.
        data, strategy = self._data, self._strategy
        if callable(data.augment):
            batches = strategy.experimental_distribute_dataset(data.batches(step))
        else:
            batches = distributed(strategy, lambda slices: data.batches(step, slices))
        return iter(to_device(batches, strategy))

    def first(self, step: int) -> Batch:
        """The batch of `step`, undivided, augmented as the model gets it.

        Raises:
            UserError: A record is broken, and must not be left out.
        """
        while True:
            batch: Any = None
            error = None
            try:
                batch = next_batch(iter(self._data.batches(step)))
            except tf.errors.OpError as e:
                error = e
            if not any(self._hosts.gather("first batch", error is not None)):
                break
            self.handle_broken(error, step)
        device = self._data.augmentation.device
        return device(batch) if device is not None else batch

    def handle_broken(self, error: tf.errors.OpError | None, step: int) -> None:
        """Replaces the broken records that made the batch of `step` fail.

        Args:
            error: What TensorFlow said; None where it failed on other hosts only.
            step: Of the batch.

        Raises:
            UserError: They must not be left out, or the error has another cause.
        """
        data, begin = self._data, step * self._data.batch_size
        order = training_order(data.subset, data.batch_size, data.seed)
        suspects = order.records_at(begin, begin + data.batch_size)
        masked = self._broken_handler.handle(data.subset, suspects, error)
        self._data = dataclasses.replace(data, subset=masked)


def distributed(
    strategy: tf.distribute.Strategy, batches: Callable[[ReplicaSlices], tf.data.Dataset]
) -> Any:
    """A dataset that gives every replica its own share of each batch, made by its host."""

    def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
        hosts = context.num_input_pipelines
        replicas = context.num_replicas_in_sync // hosts
        made = batches(ReplicaSlices(replicas, hosts, context.input_pipeline_id))
        # Of several hosts none says when it ends, since TensorFlow would ask all of them before
        # every batch: the caller counts.
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        return made.apply(endless) if hosts > 1 else made

    return strategy.distribute_datasets_from_function(of_host)


def next_batch(iterator: Iterator[Any]) -> Any:
    """The next batch, or None at the end.

    Raises:
        tf.errors.OpError: A record cannot be read or understood. TensorFlow quotes a broken
            record in its message, which Python cannot decode; that is the same error.
    """
    try:
        batch = next(iterator, None)
        note_work()
        return batch
    except UnicodeDecodeError as e:
        raise tf.errors.InvalidArgumentError(None, None, "Could not parse example input") from e
