"""Callbacks: waiting time, metrics.jsonl, NaN, progress."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras.callbacks import Callback
from tqdm import tqdm

from imageshards import storage
from imageshards.errors import UserError
from imageshards.text import wrapped
from trainer.evaluation.evaluation import finite
from trainer.models.keras_internals import last_learning_rate
from trainer.models.step import Batches, Execution
from trainer.output_errors import output_errors

if TYPE_CHECKING:
    import tensorflow as tf

Logs = Mapping[str, Any] | None


class WaitingTime(Callback):
    """Measures the seconds of training, and those of them in which the model waited for data.

    Adds `images_per_second` and `wait_fraction` (0 to 1) to the logs of every epoch, so give it
    before the callbacks that write these. Where the model was compiled with `steps_per_execution`,
    waiting is part of a call, and only the first is added. `imageshards.fit` has its steps measured
    here; Keras's own `fit` has no hook between a batch and its step.

    A step is handed to the devices and may still run while the next batch is fetched, so the
    time spent fetching is waiting only as far as it lasts longer than that step. Every
    `PROBE_STEPS`-th step is waited for, which measures a step by itself.

    Args:
        batch_size: Global.

    Attributes:
        train_sec, wait_sec: Of the epoch so far.
        images: Those behind these seconds.
        is_used: Whether the loop calls `take`; the loop says so before each training.
        running_sec: How long a step goes on after it was handed to the devices, as last probed.
    """

    PROBE_STEPS = 32

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.train_sec = self.wait_sec = 0.0
        self.images = 0
        self.is_used = False
        self.running_sec = 0.0
        self._before: dict[str, tf.Tensor] = {}

    def state_dict(self) -> dict[str, float]:
        """The seconds of the unfinished epoch."""
        return {"train_sec": self.train_sec, "wait_sec": self.wait_sec, "images": self.images}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The opposite of `state_dict`."""
        self.train_sec, self.wait_sec = state["train_sec"], state["wait_sec"]
        self.images = state["images"]

    def take(self, execution: Execution, batches: Batches, steps: int) -> dict[str, tf.Tensor]:
        """`execution.take(batches, steps)`, measured."""
        begun_sec = time.perf_counter()
        # Not the first call, which also traces and compiles the graph.
        is_first = not execution.calls
        probe = execution.calls % self.PROBE_STEPS == 1
        if probe:
            self._wait_for_step_before()
        running_sec = 0.0 if probe else self.running_sec
        logs = execution.take(batches, steps)
        handed_sec = time.perf_counter()
        # One step behind, so that the devices have work while Python waits.
        self._wait_for_step_before()
        self._before = logs
        if probe:
            self._wait_for_step_before()
            self.running_sec = time.perf_counter() - handed_sec
        if not is_first:
            self.wait_sec += max(0.0, execution.fetch_sec - running_sec)
            self.train_sec += time.perf_counter() - begun_sec
            self.images += steps * self.batch_size
        return logs

    def on_train_begin(self, logs: Logs = None) -> None:
        """Refuses a loop that does not have its steps measured."""
        is_used, self.is_used = self.is_used, False
        if not is_used:
            raise UserError(
                argument="callbacks",
                received="WaitingTime in Keras's own fit, which does not say how long it waits for "
                "data",
                expected="imageshards.fit, or no WaitingTime",
            )
        self._before = {}

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Begins to count anew."""
        self.train_sec = self.wait_sec = 0.0
        self.images = 0

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Adds what was measured to the epoch's logs."""
        if isinstance(logs, dict) and self.train_sec > 0:
            logs["images_per_second"] = round(self.images / self.train_sec, 1)
            if self.model.steps_per_execution == 1:
                logs["wait_fraction"] = round(min(1.0, self.wait_sec / self.train_sec), 4)

    def _wait_for_step_before(self) -> None:
        for value in self._before.values():
            keras.ops.convert_to_numpy(value)
        self._before = {}


class MetricsFile(Callback):
    """Writes metrics.jsonl: one object per epoch; a resumed run repeats none.

    An object has `epoch` (from 1), `step`, everything in the epoch's logs, and `learning_rate`
    (of its last step). What is no finite number is null.

    Args:
        path: Local or in a store; its folder is made where it is missing.
        names: Always in an object, null where the logs do not have them.

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
        """The objects so far."""
        return {"history": self.history, "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The opposite of `state_dict`."""
        self.history, self._step = list(state["history"]), state["step"]
        self._write()

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Counts steps."""
        self._step += _steps_of_call(self, batch)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Adds an object."""
        found = {**dict.fromkeys(self._names), **(logs or {})}
        found["learning_rate"] = last_learning_rate(self.model.optimizer)
        record: dict[str, float | None] = {"epoch": epoch + 1, "step": self._step}
        record |= {name: finite(value) for name, value in found.items()}
        # An epoch that `--steps` had cut short is there already.
        self.history = [*self.history[:epoch], record]
        self._write()

    def _write(self) -> None:
        lines = [json.dumps(record, allow_nan=False) + "\n" for record in self.history]
        folder, name = storage.parent_of(self._path), storage.name_of(self._path)
        then = "run the same command again to resume from the last checkpoint"
        with output_errors(folder, name, then):
            storage.write(self._path, "".join(lines))


class NaNGuard(Callback):
    """Ends a run whose loss is no finite number any more, with the `error` of what was seen."""

    def __init__(self, error: Callable[[str], UserError]) -> None:
        super().__init__()
        self._error = error

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Looks at the mean loss of the epoch so far."""
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            raise self._error(f"the loss became {loss}")


class Progress(Callback):
    """Shows how far an epoch is: a bar on a terminal, a line at its end anywhere."""

    def __init__(self, batch_size: int, waiting: WaitingTime, metrics: MetricsFile) -> None:
        super().__init__()
        self._batch_size, self._waiting, self._metrics = batch_size, waiting, metrics
        self._bar: Any = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Shows a bar of this epoch's images, the rate and the time left."""
        self._bar = tqdm(
            disable=None,  # where standard error is no terminal
            dynamic_ncols=True,
            leave=False,
            desc=f"epoch {epoch + 1}/{self.params['epochs']}",
            total=self.params["steps"] * self._batch_size,
            unit=" images",
            unit_scale=True,
        )

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Moves the bar to the end of the batch before."""
        done = batch * self._batch_size
        if self.model.steps_per_execution == 1:
            waited = self._waiting.wait_sec / max(1e-9, self._waiting.train_sec)
            self._bar.set_postfix_str(f"waited {waited:.0%}", refresh=False)
        if not self._bar.n:
            self._bar.initial = self._bar.n = done  # resumed inside the epoch
        self._bar.update(done - self._bar.n)

    def on_test_begin(self, logs: Logs = None) -> None:
        """Says that the validation split is read now."""
        if self._bar is not None and not self._bar.disable:
            self._bar.set_description_str(f"{self._bar.desc.rstrip(': ')}, validating")

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Prints the epoch's figures."""
        self.close()
        print(epoch_line(self._metrics.history[-1], self.params["epochs"]), flush=True)

    def close(self) -> None:
        """Takes the bar off the terminal."""
        if self._bar is not None:
            self._bar.close()


def _steps_of_call(callback: Callback, batch: int) -> int:
    """How many steps follow the hook before `batch`: the call is over where an epoch is."""
    size, of_epoch = callback.model.steps_per_execution, callback.params.get("steps")
    steps = size - batch % size
    return min(steps, of_epoch - batch) if of_epoch else steps


def epoch_line(record: Mapping[str, float | None], epochs: int) -> str:
    """One epoch as it is printed: each figure with that of the validation split behind it."""
    last = ("epoch", "step", "images_per_second", "wait_fraction", "learning_rate")
    figures = {k: v for k, v in record.items() if k not in last and v is not None}
    parts = [f"epoch {record['epoch']}/{epochs}"]
    for name, value in figures.items():
        if name.removeprefix("val_") != name and name.removeprefix("val_") in figures:
            continue
        digits = 3 if name == "accuracy" else 4
        text = f"{'acc' if name == 'accuracy' else name} {value:.{digits}f}"
        of_validation = figures.get(f"val_{name}")
        if of_validation is not None:
            text += f" val {of_validation:.{digits}f}"
        parts.append(text)
    rate = record.get("images_per_second")
    if rate is not None:
        parts.append(f"{rate:,.{0 if rate >= 10 else 1}f} img/s")
    if record.get("wait_fraction") is not None:
        parts.append(f"wait {record['wait_fraction']:.0%}")
    return wrapped("  ".join(parts))
