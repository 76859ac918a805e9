"""The training loop: steps, epochs, checkpoints; it can be left and resumed at any step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from imageshards.errors import UserError
from trainer.dataset.spec import Batch
from trainer.models.model import state_variables
from trainer.reader.stream import TrainingStream, next_batch
from trainer.training.checkpoint import Checkpoints, RunState, values_of
from trainer.training.epochs import Epochs
from trainer.training.metrics import epoch_record, finite, line, write_metrics
from trainer.training.progress import ProgressBar, StepClock
from trainer.training.signals import StopRequest


class Loop:
    """Trains `model` from `state` to the last of `epochs`.

    Args:
        model: Compiled, its optimizer built, its variables as `state` left them.
        train_step: One step; see `trainer.training.step.make_train_step`.
        stream: Batches.
        epochs: How long.
        state: Where the run stands; changed as it goes on.
        checkpoints: Where it is saved.
        checkpoint_steps: Steps between two checkpoints, besides those at the ends of epochs.
        output: The run's folder, for metrics.jsonl.
        validate: Returns (val_loss, val_accuracy); None for no validation.
        observers: Called with every epoch's object.
    """

    def __init__(
        self,
        *,
        model: keras.Model,
        train_step: Callable[[Batch], tf.Tensor],
        stream: TrainingStream,
        epochs: Epochs,
        state: RunState,
        checkpoints: Checkpoints,
        checkpoint_steps: int,
        output: str,
        validate: Callable[[], tuple[float, float]] | None,
        observers: tuple[Callable[[dict[str, Any]], None], ...] = (),
    ) -> None:
        self._model = model
        self._train_step = train_step
        self._stream = stream
        self._epochs = epochs
        self._state = state
        self._checkpoints = checkpoints
        self._checkpoint_steps = checkpoint_steps
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
        history = self._state.history
        self._reopen_epoch()
        write_metrics(self._output, history)
        with StopRequest() as stop:
            while len(history) < self._epochs.count:
                self._train_epoch(len(history), stop)
                self._finish_epoch(len(history), stop)

    def _reopen_epoch(self) -> None:
        """Takes back the last line of metrics.jsonl where `--steps` had cut its epoch short."""
        state = self._state
        if not state.history or state.step >= self._epochs.total_steps:
            return
        if state.step < self._epochs.full_end(len(state.history) - 1):
            state.history.pop()

    def _train_epoch(self, epoch: int, stop: StopRequest) -> None:
        state, end = self._state, self._epochs.end(epoch)
        begin = self._epochs.end(epoch - 1) if epoch else 0
        title = f"epoch {epoch + 1}/{self._epochs.count}"
        bar = ProgressBar(title, state.step - begin, end - begin, self._epochs.batch_size)
        self._clock.reset(state.train_sec, state.wait_sec)
        try:
            while state.step < end:
                loss = self._one_step(end)
                bar.step(loss, self._clock.wait_sec / max(1e-9, self._clock.train_sec))
                if stop.requested:
                    self._save()
                    raise stop.stopped()
                if state.step % self._checkpoint_steps == 0 and state.step < end:
                    self._save()
        finally:
            bar.close()

    def _one_step(self, end: int) -> float | None:
        """Fetches a batch, starts a step with it, and collects what the step before measured."""
        state, clock = self._state, self._clock
        batch = self._fetch()
        probe = state.step % clock.PROBE_STEPS == 0
        if probe:
            self._collect_previous_step()
        started_sec = time.perf_counter()
        try:
            sums = self._train_step(batch)
            clock.dispatched(time.perf_counter() - started_sec)
            if probe:
                sums.numpy()
                clock.probed(time.perf_counter() - started_sec)
            loss = self._collect_previous_step()
        except tf.errors.ResourceExhaustedError as e:
            raise UserError(
                f"--batch_size received {self._epochs.batch_size}, for which the devices have "
                "not enough memory; expected a smaller one, or a smaller --image_size."
            ) from e
        self._pending = sums
        state.step += 1
        clock.pause()
        if self._first and state.step < end:
            # This step also traced and compiled the graph, so its time says nothing of the speed.
            clock.reset(state.train_sec, state.wait_sec)
        else:
            state.images += self._epochs.batch_size
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
                self._collect_previous_step()
                self._iterator = None
                self._stream.handle_broken(e, self._state.step)
                continue
            self._clock.fetched(time.perf_counter() - started_sec)
            return batch

    def _collect_previous_step(self) -> float | None:
        """Waits for the step before, adds up what it measured, and returns its mean loss.

        One step behind, so that the devices have work while Python does this.
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
        self._collect_previous_step()
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
        self._collect_previous_step()
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
        if state.step == self._epochs.full_end(epoch):
            state.sums, state.train_sec, state.wait_sec, state.images = (0.0, 0.0, 0.0), 0.0, 0.0, 0
        self._checkpoints.save_state(state)
        write_metrics(self._output, state.history)
        print(line(record, self._epochs.count), flush=True)
        for observe in self._observers:
            observe(record)
        self._clock.resume()

    def _note_best(self, record: dict[str, Any]) -> None:
        state, value = self._state, record["val_loss"]
        if value is not None and (state.best_value is None or value < state.best_value):
            state.best_step, state.best_value = state.step, value
