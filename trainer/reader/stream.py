"""The training stream of a run: distributed batches from any step on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from trainer.augment.augmentation import Augmentation
from trainer.config import TrainConfig
from trainer.dataset.open import Inputs
from trainer.dataset.spec import Batch, ModelInputs, Subset
from trainer.reader import order, pipeline
from trainer.reader.broken_records import BrokenRecordHandler


class TrainingStream:
    """Batches for `trainer.training.loop.Loop`.

    Args:
        config: The run.
        inputs: Its data.
        augmentation: What happens to pictures, and on which side.
        strategy: Whose replicas share each batch.
        broken_handler: Replaces broken records.
    """

    def __init__(
        self,
        config: TrainConfig,
        inputs: Inputs,
        augmentation: Augmentation,
        strategy: tf.distribute.Strategy,
        broken_handler: BrokenRecordHandler,
    ) -> None:
        self._config = config
        self._inputs = inputs
        self._augmentation = augmentation
        self._strategy = strategy
        self._broken_handler = broken_handler
        self._subset = broken_handler.open(inputs.training)

    @property
    def subset(self) -> Subset:
        """What is read, broken records replaced."""
        return self._subset

    def batches(self, step: int) -> tf.data.Dataset:
        """Global batches from `step` on, without end; see `trainer.reader.pipeline`."""
        return pipeline.training_batches(
            self._subset,
            self._inputs.read_options,
            self._config.seed,
            self._config.batch_size,
            self._shipped(),
            self._augmentation.pictures,
            start_step=step,
            finish=self._augmentation.finish,
        )

    def iterator(self, step: int) -> Iterator[Batch]:
        """The same, each batch divided over the replicas."""
        batches = self._strategy.experimental_distribute_dataset(self.batches(step))
        return iter(batches)

    def first(self, step: int) -> Batch:
        """The batch of `step`, undivided, augmented as the model gets it.

        Raises:
            UserError: A record is broken, and must not be left out.
        """
        while True:
            try:
                batch = next_batch(iter(self.batches(step)))
                break
            except tf.errors.OpError as e:
                self.handle_broken(e, step)
        device = self._augmentation.device
        return device(batch) if device is not None else batch

    def handle_broken(self, error: tf.errors.OpError, step: int) -> None:
        """Replaces the broken records that made the batch of `step` fail.

        Raises:
            UserError: They must not be left out, or the error has another cause.
        """
        suspects = None
        if not (is_framing_error(error) or self._inputs.read_options.fast_order):
            start = step * self._config.batch_size
            suspects = record_numbers(
                order.training_records(
                    self._subset, self._inputs.read_options, self._config.seed, start
                ).take(self._config.batch_size)
            )
        self._subset = self._broken_handler.handle(self._inputs.training, suspects, error)

    def _shipped(self) -> ModelInputs:
        """What the reader makes: the model's inputs, pictures perhaps still uncropped."""
        return dataclasses.replace(self._inputs.model, size=self._augmentation.reader_size)


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
