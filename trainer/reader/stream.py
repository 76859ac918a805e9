"""The training stream of a run: distributed batches from any step on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import tensorflow as tf

from trainer.augment.choose import Augmentation
from trainer.config import TrainConfig
from trainer.dataset.open import Inputs
from trainer.dataset.spec import ModelInputs, Subset
from trainer.reader import order, pipeline
from trainer.reader.broken_handler import BrokenRecordHandler
from trainer.reader.fetch import next_batch
from trainer.training.step import Batch


class TrainingStream:
    """Batches for `trainer.training.loop.Loop`.

    Args:
        config: The run.
        inputs: Its data.
        augmentation: What happens to pictures, and where.
        strategy: Whose replicas share each batch.
        broken_handler: What leaves broken records out.
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
        """What is read, without what is broken."""
        return self._subset

    def batches(self, step: int, threads: int | None = None) -> tf.data.Dataset:
        """Global batches from `step` on, without end; see `trainer.reader.pipeline`."""
        read_options = self._inputs.read_options
        if threads is not None:
            read_options = dataclasses.replace(read_options, threads=threads)
        return pipeline.training_batches(
            self._subset,
            read_options,
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
        """The batch of `step`, undivided, as the model gets it: augmented wherever that is done.

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
        """Leaves out what made the batch of `step` fail.

        Raises:
            UserError: It must not be left out, or is no fault of the data.
        """
        suspicious = self._records_of(step) if _in_one_record(error) else None
        self._subset = self._broken_handler.handle(self._inputs.training, suspicious, error)

    def _shipped(self) -> ModelInputs:
        """What the reader makes: the model's inputs, pictures perhaps still uncropped."""
        return dataclasses.replace(self._inputs.model, size=self._augmentation.reader_size)

    def _records_of(self, step: int) -> list[int] | None:
        """The records of one batch, without decoding them; None where that fails, too."""
        if self._inputs.read_options.fast_order:
            return None
        start = step * self._config.batch_size
        stream = order.training_records(
            self._subset, self._inputs.read_options, self._config.seed, start
        )
        try:
            return [int(r) for _, r in stream.take(self._config.batch_size).as_numpy_iterator()]
        except tf.errors.OpError:
            return None


def _in_one_record(error: tf.errors.OpError) -> bool:
    """Whether a record could be read, but not be understood."""
    return not isinstance(error, tf.errors.DataLossError | tf.errors.FailedPreconditionError)
