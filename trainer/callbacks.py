"""What a run reports while it goes on: one JSON object and one line per epoch."""

from __future__ import annotations

import json
import math
import statistics
import time
from typing import Any, TextIO

import keras

from trainer.errors import UserError


class EpochLog(keras.callbacks.Callback):
    """Writes `metrics.jsonl` line by line and prints one line per epoch.

    `images_per_second` counts training only: the clock stops before validation. `val_loss`
    is the weighted cross-entropy; Keras's own divides by the filled batch and is wrong
    where the last batch was filled up.

    Attributes:
        history: The objects written so far.
    """

    def __init__(self, out: TextIO, epochs: int, images_per_epoch: int) -> None:
        super().__init__()
        self.history: list[dict[str, float | int | None]] = []
        self._out = out
        self._epochs = epochs
        self._images_per_epoch = images_per_epoch
        self._started_sec = 0.0
        self._train_sec: float | None = None

    @property
    def images_per_second(self) -> float:
        """The median epoch's; the first, which also traces the graph, only if it is alone."""
        rates = [float(record["images_per_second"] or 0) for record in self.history]
        return statistics.median(rates[1:] or rates)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._started_sec = time.perf_counter()
        self._train_sec = None

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._train_sec = time.perf_counter() - self._started_sec

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = logs or {}
        train_sec = self._train_sec or time.perf_counter() - self._started_sec
        record: dict[str, float | int | None] = {
            "epoch": epoch + 1,
            "loss": _finite(logs.get("loss")),
            "accuracy": _finite(logs.get("accuracy")),
            "val_loss": _finite(logs.get("val_crossentropy")),
            "val_accuracy": _finite(logs.get("val_accuracy")),
            "images_per_second": round(self._images_per_epoch / train_sec, 1),
        }
        self.history.append(record)
        # Flushed, so that a run that is killed leaves every finished epoch behind.
        self._out.write(json.dumps(record, allow_nan=False) + "\n")
        self._out.flush()
        print(_line(record, self._epochs), flush=True)
        if record["loss"] is None:
            raise UserError(
                f"--learning_rate received a value for which the loss became {logs.get('loss')} "
                f"in epoch {epoch + 1}; expected a finite loss: try a tenth of it."
            )


def _finite(value: float | None) -> float | None:
    """JSON knows neither NaN nor infinity."""
    return float(value) if value is not None and math.isfinite(value) else None


def _line(record: dict[str, float | int | None], epochs: int) -> str:
    parts = [f"epoch {record['epoch']}/{epochs}"]
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        value = record[name]
        if value is not None:
            parts.append(f"{name} {value:.4f}")
    parts.append(f"{record['images_per_second']:.0f} images/s")
    return "  ".join(parts)
