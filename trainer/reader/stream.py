"""The training stream of a run: distributed batches from any step on."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from trainer.cluster.connection import note_work
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.dataset.spec import Batch, ReplicaSlices, Subset
from trainer.reader import order
from trainer.reader.batches import TrainingData
from trainer.reader.broken_records import BrokenRecordHandler, unreadable

# How often a batch is tried, and the first of the pauses between, which double.
ATTEMPTS = 4
RETRY_SEC = 1.0
# A damaged shard, one of another length, one that is gone, or a record that is not understood.
_OF_RECORDS = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.InvalidArgumentError,
)
# A store, a network or a machine that is busy.
_PASSING = (
    tf.errors.UnavailableError,
    tf.errors.ResourceExhaustedError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
)


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
        self._whole = data.subset
        self._data = dataclasses.replace(data, subset=broken_handler.open(data.subset))
        self._strategy = strategy
        self._broken_handler = broken_handler
        if hosts.is_chief and (warning := order.order_warning(data.subset)):
            print(f"warning: {warning}", file=sys.stderr)

    @property
    def subset(self) -> Subset:
        """What is read, broken records replaced."""
        return self._data.subset

    def iterator(self, step: int) -> Iterator[Batch]:
        """Batches from `step` on, without end, each divided over the replicas."""
        return Reading(self._opened, self.subset, step, self._hosts)

    def _opened(self, step: int) -> Iterator[Batch]:
        # The user's own function sees whole batches, whatever the number of replicas.
        if callable(self._data.augment):
            return iter(self._strategy.experimental_distribute_dataset(self._data.batches(step)))
        return iter(distributed(self._strategy, lambda slices: self._data.batches(step, slices)))

    def first(self, step: int) -> Batch:
        """The batch of `step`, undivided, augmented as the model gets it.

        Raises:
            UserError: A record is broken, and must not be left out.
        """
        while True:
            batch: Any = None
            error = None
            try:
                batch = next_batch(
                    Reading(lambda k: iter(self._data.batches(k)), self.subset, step, self._hosts)
                )
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
        data, suspects = self._data, None
        if error and not is_framing_error(error):
            records = order.training_records(
                data.subset, data.read_options, data.seed, step * data.batch_size
            )
            suspects = record_numbers(records.take(data.batch_size))
        repaired = self._broken_handler.handle(self._whole, suspects, error)
        self._data = dataclasses.replace(data, subset=repaired)


class Reading(Iterator[Batch]):
    """Batches, read again from where it failed if the cause may pass; no record is blamed for it.

    Args:
        opened: The batches from that of a number on.
        subset: What is read.
        position: Number of the first batch.
        hosts: Where another one ends the run, nothing is tried again.
    """

    def __init__(
        self,
        opened: Callable[[int], Iterator[Batch]],
        subset: Subset,
        position: int = 0,
        hosts: Hosts = ONE_HOST,
    ) -> None:
        self._opened, self._subset, self._hosts = opened, subset, hosts
        self._position = position
        self._iterator: Iterator[Batch] | None = None

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            tf.errors.OpError: A record may be broken.
            UserError: It cannot be read for another reason.
        """
        for attempt in range(ATTEMPTS):
            try:
                if self._iterator is None:
                    self._iterator = self._opened(self._position)
                batch = next(self._iterator)
            except _OF_RECORDS:
                raise
            except tf.errors.OpError as e:
                self._iterator = None
                if not isinstance(e, _PASSING) or attempt + 1 == ATTEMPTS:
                    raise unreadable(e, self._subset, attempt + 1) from e
                self._hosts.pause(RETRY_SEC * 2**attempt)
            else:
                note_work()
                self._position += 1
                return batch
        raise RuntimeError("not reached")


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
        return next(iterator, None)
    except UnicodeDecodeError as e:
        raise tf.errors.InvalidArgumentError(None, None, "Could not parse example input") from e


def is_framing_error(error: tf.errors.OpError) -> bool:
    """Whether a shard could not be read, rather than one of its records not be understood."""
    return isinstance(error, tf.errors.DataLossError | tf.errors.FailedPreconditionError)


def record_numbers(records: tf.data.Dataset) -> list[int] | None:
    """The numbers of (serialized, number) records; None where they cannot be read, either."""
    try:
        return [int(number) for _, number in records.as_numpy_iterator()]
    except tf.errors.OpError:
        return None
