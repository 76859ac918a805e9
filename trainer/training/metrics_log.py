"""What a run reports of every epoch: one JSON object, and one line for people."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

METRICS_FILE = "metrics.jsonl"


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


def write_metrics(output: str, history: Sequence[Mapping[str, Any]]) -> str:
    """Writes metrics.jsonl anew, whole or not at all: a run that goes on repeats no line."""
    path = os.path.join(output, METRICS_FILE)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as f:
        for record in history:
            f.write(json.dumps(record, allow_nan=False) + "\n")
    os.replace(temporary, path)
    return path


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
