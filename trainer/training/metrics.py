"""What a run reports of every epoch: metrics.jsonl, a line for people, TensorBoard's events."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from imageshards import storage
from imageshards.errors import UserError

METRICS_FILE = "metrics.jsonl"
# A panel of more pictures is slow to load, and nobody looks at them.
MAX_IMAGES = 16


def epoch_record(
    epoch: int,
    step: int,
    sums: Sequence[float],
    images: int,
    train_sec: float,
    wait_sec: float,
    learning_rate: float,
) -> dict[str, Any]:
    """One epoch's object, before validation.

    Args:
        epoch: From 1.
        step: Training steps done.
        sums: Weighted losses, correct weight, weight.
        images: Trained on within `train_sec`.
        train_sec: Seconds of training.
        wait_sec: Those of them in which the model waited for data.
        learning_rate: Of the last step.
    """
    loss, correct, weight = sums
    return {
        "epoch": epoch,
        "step": step,
        "loss": finite(loss / weight) if weight else None,
        "accuracy": finite(correct / weight) if weight else None,
        "val_loss": None,
        "val_accuracy": None,
        "images_per_second": round(images / train_sec, 1) if train_sec > 0 else None,
        "wait_fraction": round(min(1.0, wait_sec / train_sec), 4) if train_sec > 0 else None,
        "learning_rate": learning_rate,
    }


def write_metrics(output: str, history: Sequence[Mapping[str, Any]]) -> None:
    """Writes metrics.jsonl anew, whole or not at all, so that a resumed run repeats no line."""
    lines = [json.dumps(record, allow_nan=False) + "\n" for record in history]
    storage.write(os.path.join(output, METRICS_FILE), "".join(lines))


def line(record: Mapping[str, Any], epochs: int) -> str:
    """One epoch for people."""
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
    """JSON knows neither NaN nor infinity."""
    return float(value) if value is not None and math.isfinite(value) else None


def check_tensorboard() -> None:
    """Proves that event files can be written.

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
