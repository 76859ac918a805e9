"""The training stream of a run: distributed batches from any step on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from imageshards.errors import UserError
from trainer.cluster.connection import note_work
from trainer.dataset.spec import Batch, ReplicaSlices
from trainer.models.strategy import to_device
from trainer.reader.batches import TrainingData
from trainer.reader.broken_records import BrokenRecords
from trainer.reader.order import training_order
from trainer.reader.unreadable import explain


class TrainingStream:
    """Batches for `trainer.training.loop.Loop`.

    Args:
        data: What is trained on.
        strategy: Strategy whose replicas share each batch.
        broken: Notes damaged records, which the loop counts.
    """

    def __init__(
        self, data: TrainingData, strategy: tf.distribute.Strategy, broken: BrokenRecords
    ) -> None:
        self._data, self._strategy, self._broken = data, strategy, broken

    def iterator(self, step: int) -> Iterator[Batch]:
        """Batches from `step` on, without end, each divided over the replicas."""
        # The user's own function sees whole batches, whatever the number of replicas.
        data, strategy, broken = self._data, self._strategy, self._broken
        if callable(data.augment) or data.functions:
            whole = data.batches(step, broken=broken)
            batches = strategy.experimental_distribute_dataset(whole)
        else:
            batches = distributed(strategy, lambda slices: data.batches(step, slices, broken))
        return iter(to_device(batches, strategy))

    def first(self, step: int) -> Batch:
        """The batch of `step`, undivided, augmented as the model gets it.

        Raises:
            UserError: A record cannot be read.
        """
        try:
            batch = next_batch(iter(self._data.batches(step, broken=self._broken)))
        except tf.errors.OpError as e:
            raise self.explain(e, step) from e
        self._broken.count(self._data.subset.split.name, step + 1)
        device = self._data.augmentation.device
        return device(batch) if device is not None else batch

    def explain(self, error: tf.errors.OpError, step: int) -> UserError:
        """Returns what a person is told where reading the batch of `step` has failed."""
        data, begin = self._data, step * self._data.batch_size
        order = training_order(data.subset, data.batch_size, data.seed)
        suspects = order.records_at(begin, begin + data.batch_size)
        return explain(error, data.subset, suspects, data.model_inputs)


def distributed(
    strategy: tf.distribute.Strategy, batches: Callable[[ReplicaSlices], tf.data.Dataset]
) -> tf.distribute.DistributedDataset:
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
