"""The training stream of a run: distributed batches from any step on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import tensorflow as tf

from trainer.augment.choose import Augmentation
from trainer.config import TrainConfig
from trainer.dataset.open import Inputs
from trainer.dataset.spec import ModelInputs, Selected
from trainer.reader import order as records
from trainer.reader import pipeline
from trainer.reader.broken_handler import Mender
from trainer.reader.fetch import next_batch
from trainer.training.step import Batch


class TrainingStream:
    """Batches for `trainer.training.loop.Loop`.

    Args:
        config: The run.
        inputs: Its data.
        augmentation: What happens to pictures, and where.
        strategy: Whose replicas share each batch.
        mender: What leaves broken records out.
    """

    def __init__(
        self,
        config: TrainConfig,
        inputs: Inputs,
        augmentation: Augmentation,
        strategy: tf.distribute.Strategy,
        mender: Mender,
    ) -> None:
        self._config = config
        self._inputs = inputs
        self._augmentation = augmentation
        self._strategy = strategy
        self._mender = mender
        self._selected = mender.open(inputs.training)

    @property
    def selected(self) -> Selected:
        """What is read, without what is broken."""
        return self._selected

    def batches(self, step: int, threads: int | None = None) -> tf.data.Dataset:
        """Global batches from `step` on, without end; see `trainer.reader.pipeline`."""
        reading = self._inputs.reading
        if threads is not None:
            reading = dataclasses.replace(reading, threads=threads)
        return pipeline.training_batches(
            self._selected,
            reading,
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
                self.mend(e, step)
        device = self._augmentation.device
        return device(batch) if device is not None else batch

    def mend(self, error: tf.errors.OpError, step: int) -> None:
        """Leaves out what made the batch of `step` fail.

        Raises:
            UserError: It must not be left out, or is no fault of the data.
        """
        suspicious = self._records_of(step) if _in_one_record(error) else None
        self._selected = self._mender.mend(self._inputs.training, suspicious, error)

    def _shipped(self) -> ModelInputs:
        """What the reader makes: the model's inputs, pictures perhaps still uncropped."""
        return dataclasses.replace(self._inputs.model, size=self._augmentation.reader_size)

    def _records_of(self, step: int) -> list[int] | None:
        """The records of one batch, without decoding them; None where that fails, too."""
        if self._inputs.reading.fast_order:
            return None
        start = step * self._config.batch_size
        stream = records.training_records(
            self._selected, self._inputs.reading, self._config.seed, start
        )
        try:
            return [int(r) for _, r in stream.take(self._config.batch_size).as_numpy_iterator()]
        except tf.errors.OpError:
            return None


def _in_one_record(error: tf.errors.OpError) -> bool:
    """Whether a record could be read, but not be understood."""
    return not isinstance(error, tf.errors.DataLossError | tf.errors.FailedPreconditionError)
