"""Callbacks of `imageshards train`: waiting time, metrics.jsonl, averages, and progress."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import tensorflow as tf
from keras.callbacks import Callback

from imageshards import storage
from imageshards.commands.output_folder import output_errors
from imageshards.progress import ProgressLine, rate_line
from imageshards.text import wrapped
from trainer.evaluation.evaluation import finite
from trainer.models.keras_internals import (
    last_learning_rate,
    trained_variables,
    without_loss_scale,
)
from trainer.models.optimizer import use_average

Logs = Mapping[str, Any] | None


class WaitingTime(Callback):
    """A callback that measures the time of training, and how long the devices waited for data.

    It adds `images_per_second` and `wait_fraction` (0 to 1) to the logs of every epoch, so list it
    before callbacks that write the logs. `imageshards.fit` measures its steps; Keras's own `fit`
    has no hook between a batch and its step, so there nothing is added.

    Devices may still run a step while the next batch is fetched, so fetching counts as waiting only
    after the step has ended. A thread waits for a number of every step, which shows when the step
    has ended.

    Args:
        batch_size: Records in a global batch.

    Attributes:
        train_sec, wait_sec: Seconds of the epoch so far, without checkpoints and validation.
        images: Number of images that these seconds trained with.
    """

    # A device must always have a step to run while Python waits for the end of another one.
    STEPS_AHEAD = 2

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.train_sec = self.wait_sec = 0.0
        self.images = 0
        # The time from which on training is measured; None after a pause.
        self._since_sec: float | None = None
        # For each step that may still run: begin and end of its fetch, and the future of its end.
        self._running: list[tuple[float, float, Future[float]]] = []
        self._ended_sec = 0.0
        self._thread = ThreadPoolExecutor(1, "imageshards-steps")

    def state_dict(self) -> dict[str, float]:
        return {"train_sec": self.train_sec, "wait_sec": self.wait_sec, "images": self.images}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.train_sec, self.wait_sec = state["train_sec"], state["wait_sec"]
        self.images = state["images"]

    def measure(
        self, begun_sec: float, fetched_sec: float, logs: Mapping[str, tf.Tensor], counts: bool
    ) -> None:
        """Notes a step that has begun: when its batch was asked for and there, and its `logs`."""
        self._running.append((begun_sec, fetched_sec, self._thread.submit(_end_of_step, logs)))
        if not counts:
            waited_sec = self.wait_sec
            self._settle(0)
            self.wait_sec, self._since_sec = waited_sec, time.perf_counter()
            return
        self._settle(self.STEPS_AHEAD)
        now_sec = time.perf_counter()
        self.train_sec += now_sec - (begun_sec if self._since_sec is None else self._since_sec)
        self._since_sec = now_sec
        self.images += self.batch_size

    def pause(self) -> None:
        """Stops the clock after the last step has ended, until the next step begins."""
        self._settle(0)
        if self._since_sec is not None:
            self.train_sec += time.perf_counter() - self._since_sec
        self._since_sec = None

    def on_train_begin(self, logs: Logs = None) -> None:
        self._running, self._since_sec = [], None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self.train_sec = self.wait_sec = 0.0
        self.images = 0

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if isinstance(logs, dict) and self.train_sec > 0:
            logs["images_per_second"] = round(self.images / self.train_sec, 1)
            logs["wait_fraction"] = round(min(1.0, self.wait_sec / self.train_sec), 4)

    def _settle(self, steps: int) -> None:
        """Waits for the end of all but the last `steps` steps, and adds up their waiting."""
        while len(self._running) > steps:
            begun_sec, fetched_sec, end = self._running.pop(0)
            # The devices were idle from the end of the step before until the batch was there.
            self.wait_sec += max(0.0, fetched_sec - max(begun_sec, self._ended_sec))
            self._ended_sec = end.result()


def _end_of_step(logs: Mapping[str, tf.Tensor]) -> float:
    """Waits for the end of the step that returned `logs`, and returns the time."""
    # Reading a number waits for its device without Python's lock.
    keras.ops.convert_to_numpy(next(iter(logs.values()), 0.0))
    return time.perf_counter()


class MetricsFile(Callback):
    """A callback that writes metrics.jsonl, an object per epoch; a resumed run repeats no epoch.

    An object has `epoch` (from 1), `step`, all logs of the epoch, and `learning_rate` of its last
    step. null replaces infinite numbers and NaN.

    Args:
        path: Local file or object in a store; missing folders are created.
        names: Keys of every object, null if the logs have no such value.

    Attributes:
        history: The objects.
    """

    def __init__(self, path: str | os.PathLike[str], names: Sequence[str] = ()) -> None:
        super().__init__()
        self.history: list[dict[str, float | None]] = []
        self._path = storage.place("path", path)
        self._names = tuple(names)
        self._step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history, "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history, self._step = list(state["history"]), state["step"]
        self._write()

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._step += 1

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        found = {**dict.fromkeys(self._names), **(logs or {})}
        found["learning_rate"] = last_learning_rate(self.model.optimizer)
        record: dict[str, float | None] = {"epoch": epoch + 1, "step": self._step}
        record |= {name: finite(value) for name, value in found.items()}
        # A run with more `--steps` finishes an epoch that has an object already.
        self.history = [*self.history[:epoch], record]
        self._write()

    def _write(self) -> None:
        # The whole file is written each time, because objects in a store cannot be appended to.
        lines = [json.dumps(record, allow_nan=False) + "\n" for record in self.history]
        folder, name = storage.parent_of(self._path), storage.name_of(self._path)
        with output_errors(folder, name):
            storage.write(self._path, "".join(lines))


class AveragedWeights(Callback):
    """A callback that validates with the running average of the weights, if the model has one.

    Keras's `SwapEMAWeights` exchanges both by sums and differences. These round the weights, so
    that the training would depend on its validations.
    """

    def on_test_begin(self, logs: Logs = None) -> None:
        is_averaged = getattr(without_loss_scale(self.model.optimizer), "use_ema", False)
        variables = trained_variables(self.model) if is_averaged else []
        self._kept = [(variable, variable.numpy()) for variable in variables]
        if is_averaged:
            use_average(self.model)

    def on_test_end(self, logs: Logs = None) -> None:
        for variable, value in self._kept:
            variable.assign(value)


class Progress(Callback):
    """A callback that shows a line on a terminal, and prints a line at the end of every epoch."""

    def __init__(self, waiting: WaitingTime, metrics: MetricsFile) -> None:
        super().__init__()
        self._waiting, self._metrics = waiting, metrics
        self._line: ProgressLine | None = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._name = f"epoch {epoch + 1}/{self.params['epochs']}"
        self._begun_sec, self._batch = time.monotonic(), 0
        self._before: int | None = None
        if sys.stderr.isatty():
            self._line = ProgressLine(self._progress)
            self._line.__enter__()

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._batch = batch
        if self._before is None:
            self._before = batch  # a resumed epoch has no rate for older steps

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self.close()
        print(epoch_line(self._metrics.history[-1], self.params["epochs"]), flush=True)

    def close(self) -> None:
        """Removes the line from the terminal."""
        if self._line is not None:
            self._line.__exit__()
            self._line = None

    def _progress(self) -> str:
        size, waiting = self._waiting.batch_size, self._waiting
        done, total, before = (
            n * size for n in (self._batch, self.params["steps"], self._before or 0)
        )
        waited = f"waited {waiting.wait_sec / max(1e-9, waiting.train_sec):.0%}"
        seconds = time.monotonic() - self._begun_sec
        return f"{self._name}  {rate_line(done, total, 'images', seconds, before, waited)}"


def epoch_line(record: Mapping[str, float | None], epochs: int) -> str:
    """Returns an epoch's line for a person, with validation figures behind training figures."""
    last = ("epoch", "step", "images_per_second", "wait_fraction", "learning_rate")
    figures = {k: v for k, v in record.items() if k not in last and v is not None}
    parts = [f"epoch {record['epoch']}/{epochs}"]
    for name, value in figures.items():
        # A validation figure appears behind its training figure, and not by itself.
        if name.removeprefix("val_") != name and name.removeprefix("val_") in figures:
            continue
        digits, shown = (3, "acc") if name == "accuracy" else (4, name)
        parts.append(f"{shown} {value:.{digits}f}")
        if (of_validation := figures.get(f"val_{name}")) is not None:
            parts[-1] += f" val {of_validation:.{digits}f}"
    if (rate := record.get("images_per_second")) is not None:
        parts.append(f"{rate:,.{0 if rate >= 10 else 1}f} img/s")
    if (waited := record.get("wait_fraction")) is not None:
        parts.append(f"wait {waited:.0%}")
    return wrapped("  ".join(parts))
