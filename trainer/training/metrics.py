"""What a run measures and reports of every epoch: metrics.jsonl, a printed line, TensorBoard."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageshards import storage
from imageshards.errors import UserError

if TYPE_CHECKING:
    from trainer.training.checkpoint import RunState

METRICS_FILE = "metrics.jsonl"
IDLE_SEC = 0.02
IDLE_CORES = 0.1
MAX_IDLE_WAITS = 250
# More pictures would make the panel slow to load.
MAX_IMAGES = 16


class StepClock:
    """Counts the seconds of training, and those of them in which the devices waited for data.

    A step is handed to the devices and may still run while the next batch is fetched, so
    the time spent fetching is waiting only as far as it lasts longer than that step. Every
    `PROBE_STEPS`-th step is waited for, which measures a step by itself.

    Attributes:
        train_sec, wait_sec: What is counted.
        step_sec: From the start of a step to its end, as last probed.
        dispatch_sec: How long it took to hand the last step to the devices.
    """

    PROBE_STEPS = 32

    def __init__(self) -> None:
        self.train_sec = 0.0
        self.wait_sec = 0.0
        self.step_sec = 0.0
        self.dispatch_sec = 0.0
        self._since = time.perf_counter()

    def resume(self) -> None:
        """Leaves out the time since the last step: it was no training."""
        self._since = time.perf_counter()

    def pause(self) -> None:
        """Counts the time up to now as training."""
        now = time.perf_counter()
        self.train_sec += now - self._since
        self._since = now

    def fetched(self, seconds: float) -> None:
        """Notes how long a batch took to come."""
        running = max(0.0, self.step_sec - self.dispatch_sec)
        self.wait_sec += max(0.0, seconds - running)

    def reset(self, train_sec: float = 0.0, wait_sec: float = 0.0) -> None:
        """Starts an epoch, or resumes one at these seconds."""
        self.train_sec, self.wait_sec = train_sec, wait_sec
        self.resume()


def wait_for_idle_cores() -> None:
    """Waits until this process hardly uses a core any more, for five seconds at most."""
    for _ in range(MAX_IDLE_WAITS):
        cpu_sec = time.process_time()
        time.sleep(IDLE_SEC)
        if time.process_time() - cpu_sec < IDLE_CORES * IDLE_SEC:
            return


def epoch_record(epoch: int, state: RunState, learning_rate: float) -> dict[str, Any]:
    """One epoch's object in metrics.jsonl, before validation.

    Args:
        epoch: From 1.
        state: The run's state at its end.
        learning_rate: Of the last step.
    """
    (loss, correct, weight), train_sec = state.sums, state.train_sec
    return {
        "epoch": epoch,
        "step": state.step,
        "loss": finite(loss / weight) if weight else None,
        "accuracy": finite(correct / weight) if weight else None,
        "val_loss": None,
        "val_accuracy": None,
        "images_per_second": round(state.images / train_sec, 1) if train_sec > 0 else None,
        "wait_fraction": round(min(1.0, state.wait_sec / train_sec), 4) if train_sec > 0 else None,
        "learning_rate": learning_rate,
    }


def write_metrics(output: str, history: Sequence[Mapping[str, Any]]) -> None:
    """Replaces metrics.jsonl, whole or not at all, so that a resumed run repeats no line."""
    lines = [json.dumps(record, allow_nan=False) + "\n" for record in history]
    storage.write(os.path.join(output, METRICS_FILE), "".join(lines))


def epoch_line(record: Mapping[str, Any], epochs: int) -> str:
    """One epoch as it is printed."""
    parts = [f"epoch {record['epoch']}/{epochs}"]
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        if record[name] is not None:
            parts.append(f"{name} {record[name]:.4f}")
    if record["images_per_second"] is not None:
        rate = record["images_per_second"]
        parts.append(f"{rate:.{0 if rate >= 10 else 1}f} images/s")
        parts.append(f"waited {record['wait_fraction']:.0%} for data")
    return "  ".join(parts)


def finite(value: float | None) -> float | None:
    """The value, or None where it is NaN or infinite, which JSON has no number for."""
    return float(value) if value is not None and math.isfinite(value) else None


def check_tensorboard() -> None:
    """Checks that event files can be written.

    Raises:
        UserError: TensorBoard is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            "--tensorboard needs the package tensorboard, which is not installed; expected it "
            "to be: pip install 'imageshards[tensorboard]', or leave the flag out "
            "(metrics.jsonl is written always)."
        )


class TensorBoard:
    """Writes one event file, which TensorBoard follows while it grows.

    A resumed run writes a further file into the same folder; TensorBoard shows both as one run.

    Args:
        folder: Local; made where it is missing.
    """

    def __init__(self, folder: str) -> None:
        import tensorflow as tf

        self._summary = tf.summary
        self._writer = tf.summary.create_file_writer(folder)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Adds the numbers of an epoch's object, by name."""
        with self._writer.as_default(step=record["step"]):
            for name, value in record.items():
                if value is not None and name != "step":
                    self._summary.scalar(name, value)
        self._writer.flush()

    def images(self, step: int, name: str, pictures: Any) -> None:
        """Adds a panel of the first `MAX_IMAGES` pictures, uint8 [n, height, width, channels]."""
        with self._writer.as_default(step=step):
            self._summary.image(name, pictures, max_outputs=MAX_IMAGES)
        self._writer.flush()
