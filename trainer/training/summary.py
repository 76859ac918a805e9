"""What a run prints before and after training, and what limited its speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.config import TrainConfig
from trainer.dataset.open import Inputs
from trainer.models import strategy
from trainer.reader.find_broken import BrokenRecord
from trainer.training.checkpoint import RunState
from trainer.training.loop import Epochs

# Up to this share of the time, waiting for data does not limit the speed.
_MIN_WAIT_FRACTION = 0.05


def plan_lines(
    config: TrainConfig,
    inputs: Inputs,
    model: keras.Model,
    devices: tf.distribute.Strategy,
    epochs: Epochs,
    augment_on: str,
) -> list[str]:
    """What is about to be trained, on what, and how."""
    training, validation, size = inputs.training, inputs.validation, inputs.model.size
    shards = len(training.split.shards)
    replicas = devices.num_replicas_in_sync
    where = f" on the {augment_on}" if config.augment != "none" else ""
    lines = [
        f"{config.data.data}: {training.num_records} records to train on in {shards} shards, "
        f"{validation.num_records if validation else 0} to validate, "
        f"{len(training.classes)} classes",
        f"{model.name}: {model.count_params():,} parameters, pictures of "
        f"{size[0]}x{size[1]}x{inputs.dataset.image.channels} px, {strategy.describe(devices)}, "
        f"global batch {config.batch_size} ({config.batch_size // replicas} each), "
        f"augmentation {config.augment}{where}",
        f"{epochs.total_steps} steps, {epochs.count} {_plural('epoch', epochs.count)}; a pass "
        f"is {training.num_records / config.batch_size:.1f} batches, its last records open the "
        "next one",
    ]
    if inputs.read_options.fast_order:
        lines.append("--fast_order: neither the order nor a resumed run is reproducible")
    if validation is None:
        lines.append("no validation split: val_loss and val_accuracy will be null")
    return lines


def result_lines(state: RunState, broken: list[BrokenRecord], speed: str | None) -> list[str]:
    """What came out of a run."""
    lines = []
    best = next((r for r in state.history if r["step"] == state.best_step), None)
    accuracy = state.history[-1]["val_accuracy"]
    if accuracy is not None:
        lines.append(f"validation accuracy {accuracy:.3f}")
    if best is not None and best is not state.history[-1]:
        lines.append(
            f"lowest val_loss {best['val_loss']:.4f} after epoch {best['epoch']}, with accuracy "
            f"{best['val_accuracy']:.3f}: best.keras"
        )
    if broken:
        lines.append(f"{len(broken)} broken {_plural('record', len(broken))} left out:")
        lines.extend(f"  {record}" for record in broken)
    return [*lines, speed] if speed else lines


def bottleneck(history: Sequence[Mapping[str, Any]], reader_cpu_sec: float | None) -> str | None:
    """Whether the reader or the model limited the speed of a run, in a sentence.

    Args:
        history: The objects of metrics.jsonl.
        reader_cpu_sec: Seconds one core needs to read, decode and batch one image; None where
            that is unknown.

    Returns:
        None where too little was measured.
    """
    rates = [r for r in history if r["images_per_second"]]
    if not rates or reader_cpu_sec is None:
        return None
    # The first epoch warms up; it counts only if it is alone.
    rates = rates[1:] or rates
    images_per_sec = sum(r["images_per_second"] for r in rates) / len(rates)
    wait_fraction = sum(r["wait_fraction"] for r in rates) / len(rates)
    if wait_fraction >= 1:
        return None
    model_images_per_sec = images_per_sec / (1 - wait_fraction)
    count = max(1, math.ceil(model_images_per_sec * reader_cpu_sec))
    cores = f"{count} {_plural('core', count)}"
    if wait_fraction > _MIN_WAIT_FRACTION:
        return (
            f"input-bound: the model waited {wait_fraction:.0%} of the time for data and could "
            f"take {model_images_per_sec:,.0f} images/s; about {cores} would feed it"
        )
    return (
        f"compute-bound: the model waited {wait_fraction:.1%} of the time for data; about {cores} "
        "would do for the reader"
    )


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
