"""The training loop: steps, epochs, checkpoints; it can be left and entered at any step."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from imageshards.errors import UserError
from trainer.models.model import state_variables
from trainer.reader.stream import next_batch
from trainer.training.checkpoint import Checkpoints, RunState, values_of
from trainer.training.epochs import end_of_epoch, epoch_of_step
from trainer.training.metrics_log import epoch_record, finite, line, write_metrics
from trainer.training.progress import ProgressBar, StepClock
from trainer.training.signals import StopRequest
from trainer.training.step import Batch


class Stream(Protocol):
    """Where batches come from."""

    def iterator(self, step: int) -> Iterator[Batch]:
        """Distributed batches from `step` on, without end."""

    def handle_broken(self, error: tf.errors.OpError, step: int) -> None:
        """Leaves out what made the batch of `step` fail, or raises a UserError."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long a run is, in steps.

    Attributes:
        num_records: In one pass over the data.
        batch_size: Global batch.
        total: Steps in all.
        checkpoint_steps: Steps between two checkpoints.
    """

    num_records: int
    batch_size: int
    total: int
    checkpoint_steps: int

    def end(self, epoch: int) -> int:
        """The step with which `epoch` (from 0) ends."""
        return min(self.total, end_of_epoch(epoch, self.num_records, self.batch_size))

    @property
    def epochs(self) -> int:
        """Epochs begun by the end of the run."""
        return epoch_of_step(self.total - 1, self.num_records, self.batch_size) + 1


class Loop:
    """Trains `model` from `state` to the end of `schedule`.

    Args:
        model: Compiled, its optimizer built, its variables as `state` left them.
        train_step: One step; see `trainer.training.step.make_train_step`.
        stream: Batches.
        schedule: How long.
        state: Where the run stands; changed as it goes on.
        checkpoints: Where it is saved.
        output: The run's folder, for metrics.jsonl.
        validate: Returns (val_loss, val_accuracy); None for no validation.
        observers: Called with every epoch's object.
    """

    def __init__(
        self,
        *,
        model: keras.Model,
        train_step: Callable[[Batch], tf.Tensor],
        stream: Stream,
        schedule: Schedule,
        state: RunState,
        checkpoints: Checkpoints,
        output: str,
        validate: Callable[[], tuple[float, float]] | None,
        observers: tuple[Callable[[dict[str, Any]], None], ...] = (),
    ) -> None:
        self._model = model
        self._train_step = train_step
        self._stream = stream
        self._schedule = schedule
        self._state = state
        self._checkpoints = checkpoints
        self._output = output
        self._validate = validate
        self._observers = observers
        self._clock = StepClock()
        self._iterator: Iterator[Batch] | None = None
        # The sums of the last step, which may still be running on the devices.
        self._pending: tf.Tensor | None = None
        self._first = True

    def run(self) -> None:
        """Trains to the end.

        Raises:
            Stopped: SIGTERM or Ctrl-C came; the run is saved.
            UserError: Of the data, the disk, or a loss that is no number any more.
        """
        state, schedule = self._state, self._schedule
        self._reopen_epoch()
        write_metrics(self._output, state.history)
        with StopRequest() as stop:
            while len(state.history) < schedule.epochs:
                self._train_epoch(len(state.history), stop)
                self._finish_epoch(len(state.history), stop)

    def _reopen_epoch(self) -> None:
        """Takes back the last line of metrics.jsonl where `--steps` had cut its epoch short."""
        state = self._state
        if not state.history or state.step >= self._schedule.total:
            return
        epoch = len(state.history) - 1
        whole = end_of_epoch(epoch, self._schedule.num_records, self._schedule.batch_size)
        if state.step < whole:
            state.history.pop()

    def _train_epoch(self, epoch: int, stop: StopRequest) -> None:
        state, end = self._state, self._schedule.end(epoch)
        begin = self._schedule.end(epoch - 1) if epoch else 0
        title = f"epoch {epoch + 1}/{self._schedule.epochs}"
        bar = ProgressBar(title, state.step - begin, end - begin, self._schedule.batch_size)
        self._clock.reset(state.train_sec, state.wait_sec)
        try:
            while state.step < end:
                loss = self._one_step(end)
                bar.step(loss, self._clock.wait_sec / max(1e-9, self._clock.train_sec))
                if stop.requested:
                    self._save()
                    raise stop.stopped()
                if state.step % self._schedule.checkpoint_steps == 0 and state.step < end:
                    self._save()
        finally:
            bar.close()

    def _one_step(self, end: int) -> float | None:
        """Fetches a batch, hands it over, and settles the step before."""
        state, clock = self._state, self._clock
        batch = self._fetch()
        probe = state.step % clock.PROBE_STEPS == 0
        if probe:
            self._settle()
        started_sec = time.perf_counter()
        try:
            sums = self._train_step(batch)
            clock.dispatched(time.perf_counter() - started_sec)
            if probe:
                sums.numpy()
                clock.probed(time.perf_counter() - started_sec)
            loss = self._settle()
        except tf.errors.ResourceExhaustedError as e:
            raise UserError(
                f"--batch_size received {self._schedule.batch_size}, for which the devices have "
                "not enough memory; expected a smaller one, or a smaller --image_size."
            ) from e
        self._pending = sums
        state.step += 1
        clock.pause()
        if self._first and state.step < end:
            # It traced and compiled the graph: no measure of speed.
            clock.reset(state.train_sec, state.wait_sec)
        else:
            state.images += self._schedule.batch_size
        self._first = False
        return loss

    def _fetch(self) -> Batch:
        while True:
            started_sec = time.perf_counter()
            try:
                if self._iterator is None:
                    self._iterator = self._stream.iterator(self._state.step)
                batch = next_batch(self._iterator)
            except tf.errors.OpError as e:
                self._settle()
                self._iterator = None
                self._stream.handle_broken(e, self._state.step)
                continue
            self._clock.fetched(time.perf_counter() - started_sec)
            return batch

    def _settle(self) -> float | None:
        """Waits for the step before, adds up what it measured, and returns its mean loss.

        One step behind: the devices have always got work while Python does this.
        """
        if self._pending is None:
            return None
        loss, correct, weight = (float(x) for x in self._pending.numpy())
        self._pending = None
        if not math.isfinite(loss):
            raise self._diverged(f"the loss became {loss}")
        before = self._state.sums
        self._state.sums = (before[0] + loss, before[1] + correct, before[2] + weight)
        return loss / weight if weight else 0.0

    def _save(self) -> None:
        self._settle()
        state = self._state
        state.train_sec, state.wait_sec = self._clock.train_sec, self._clock.wait_sec
        arrays = values_of(state_variables(self._model))
        if not all(np.isfinite(a).all() for a in arrays if np.issubdtype(a.dtype, np.floating)):
            raise self._diverged("a weight is no finite number any more")
        self._checkpoints.save(state, arrays)
        self._clock.resume()

    def _diverged(self, what: str) -> UserError:
        steps = self._checkpoints.steps()
        since = steps[-1] if steps else 0
        good = self._checkpoints.path(since) if steps else "none"
        return UserError(
            f"--learning_rate received a value for which {what} between the steps {since + 1} and "
            f"{max(since + 1, self._state.step)} (last good checkpoint: {good}); expected a run "
            "that converges: try a tenth of it, or --warmup_steps, in another --output or with "
            "--overwrite."
        )

    def _finish_epoch(self, epoch: int, stop: StopRequest) -> None:
        self._settle()
        state = self._state
        # Before validation, so that a kill in the middle of it costs nothing but itself.
        self._save()
        record = epoch_record(
            epoch + 1,
            state.step,
            state.sums,
            state.images,
            state.train_sec,
            state.wait_sec,
            float(keras.ops.convert_to_numpy(self._model.optimizer.learning_rate)),
        )
        if self._validate is not None:
            stop.at_once(True)
            loss, accuracy = self._validate()
            stop.at_once(False)
            record |= {"val_loss": finite(loss), "val_accuracy": finite(accuracy)}
            self._note_best(record)
        state.history.append(record)
        if state.step == end_of_epoch(epoch, self._schedule.num_records, self._schedule.batch_size):
            state.sums, state.train_sec, state.wait_sec, state.images = (0.0, 0.0, 0.0), 0.0, 0.0, 0
        self._checkpoints.save_state(state)
        write_metrics(self._output, state.history)
        print(line(record, self._schedule.epochs), flush=True)
        for observe in self._observers:
            observe(record)
        self._clock.resume()

    def _note_best(self, record: dict[str, Any]) -> None:
        state, value = self._state, record["val_loss"]
        if value is not None and (state.best_value is None or value < state.best_value):
            state.best_step, state.best_value = state.step, value
