"""Distributes batches over replicas: of a training from any step on, and of an evaluation."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from imageshards.errors import UserError
from trainer.dataset.batch import Batch, ReplicaSlices
from trainer.models.strategy import to_device
from trainer.reader.batches import TrainingData
from trainer.reader.broken_records import BrokenRecords
from trainer.reader.described import EvaluationData
from trainer.reader.order import evaluation_order, without_copies
from trainer.reader.unreadable import explain

# TensorFlow crashes if the iterator of several devices is deleted while it waits for a batch of a
# dataset that the graph optimizer leaves alone, as that of the pixel cache. So these iterators live
# until two further trainings have begun: by then they have filled their buffers, and wait no more.
_last_of_cache: collections.deque[Any] = collections.deque(maxlen=2)


class TrainingStream:
    """The batches of `data` for a loop, shared by the replicas of `strategy`.

    `broken` notes damaged records, which the loop counts.
    """

    def __init__(
        self, data: TrainingData, strategy: tf.distribute.Strategy, broken: BrokenRecords
    ) -> None:
        self._data, self._strategy, self._broken = data, strategy, broken

    def iterator(self, step: int) -> Iterator[Batch]:
        """Returns endless batches from `step` on, each divided over the replicas."""
        iterator = iter(self._distributed(step))
        if self._data.read_options.cache == "pixels" and self._strategy.num_replicas_in_sync > 1:
            _last_of_cache.append(iterator)
        return iterator

    def _distributed(self, step: int) -> tf.distribute.DistributedDataset:
        # A function of the user takes whole batches for any number of replicas.
        data, strategy, broken = self._data, self._strategy, self._broken
        if callable(data.augment) or data.functions:
            whole = strategy.experimental_distribute_dataset(data.batches(step, broken=broken))
            return to_device(whole)
        return distributed(strategy, lambda slices: data.batches(step, slices, broken))

    def first(self, step: int) -> Batch:
        """Returns the whole batch of `step` as the model receives it, augmented."""
        try:
            batch = next_batch(iter(self._data.batches(step, broken=self._broken)))
        except ReadError as e:
            raise self.explain(e.error, step) from e
        self._broken.count(self._data.subset.split.name, step + 1)
        device = self._data.augmentation.device
        return device(batch) if device is not None else batch

    def explain(self, error: tf.errors.OpError, step: int) -> UserError:
        """Returns the error for a person after reading the batch of `step` has failed."""
        data, begin = self._data, step * self._data.batch_size
        suspects = data.order.records_at(begin, begin + data.batch_size)
        return explain(error, data.subset, suspects, data.model_inputs)


class EvaluationStream:
    """The batches of a pass, which can be read repeatedly, shared by the replicas of `strategy`.

    Attributes:
        data: The description of the pass.
        broken: Counter of damaged records. The stream counts them batch by batch.
    """

    def __init__(
        self, data: EvaluationData, strategy: tf.distribute.Strategy, broken: BrokenRecords
    ) -> None:
        self.data, self.broken = data, broken
        self._strategy = strategy
        self._batches: Any = None

    def batches(self) -> Iterator[Batch]:
        """Yields the batches of one pass; refuses a record that cannot be read."""
        data, broken = self.data, self.broken
        # Every pass reads the same pipeline again.
        self._batches = self._batches or distributed(
            self._strategy, lambda slices: data.batches(slices, broken)
        )
        iterator = iter(self._batches)
        for number in range(data.steps):
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


def distributed(
    strategy: tf.distribute.Strategy, batches: Callable[[ReplicaSlices], tf.data.Dataset]
) -> tf.distribute.DistributedDataset:
    """Returns a dataset in which every host prepares its replicas' shares of each batch.

    The shares are on their devices before a step asks for them.
    """

    def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
        hosts = context.num_input_pipelines
        replicas = context.num_replicas_in_sync // hosts
        made = batches(ReplicaSlices(replicas, hosts, context.input_pipeline_id))
        # With a finite cardinality TensorFlow would ask all hosts before every batch whether they
        # have ended. The caller counts the batches instead.
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        return made.apply(endless) if hosts > 1 else made

    return to_device(strategy.distribute_datasets_from_function(of_host))


class ReadError(Exception):
    """A batch cannot be read; `error` is TensorFlow's error."""

    def __init__(self, error: tf.errors.OpError) -> None:
        super().__init__(str(error))
        self.error = error


def next_batch(iterator: Iterator[Any]) -> Any:
    """Returns the next batch, None at the end; raises a `ReadError` for a broken record.

    An error of memory that a device lacks for the batch is raised as it is.
    """
    try:
        batch = next(iterator, None)
    except tf.errors.ResourceExhaustedError:
        raise
    except tf.errors.OpError as e:
        raise ReadError(e) from e
    # TensorFlow's message about a broken record quotes its bytes, which are no UTF-8.
    except UnicodeDecodeError as e:
        error = tf.errors.InvalidArgumentError(None, None, "Could not parse example input")
        raise ReadError(error) from e
    return batch
