"""What a run prints before and after training, and what limited its speed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from imageshards.errors import UserError
from imageshards.text import counted
from trainer.config import TrainConfig
from trainer.dataset.open import Inputs
from trainer.models import strategy
from trainer.reader.find_broken import BrokenRecord
from trainer.reader.stream import next_batch
from trainer.training.loop import Epochs

IDLE_SEC = 0.02
IDLE_CORES = 0.1
MAX_IDLE_WAITS = 250
# Images that are read to measure what one of them costs.
SAMPLE_IMAGES = 256
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
        f"{config.data.data}: {counted(training.num_records, 'record')} to train on in "
        f"{counted(shards, 'shard')}, {validation.num_records if validation else 0:,} to "
        f"validate, {counted(len(training.classes), 'class')}",
        f"{model.name}: {model.count_params():,} parameters, pictures of "
        f"{size[0]}x{size[1]}x{inputs.dataset.image.channels} px, {strategy.describe(devices)}, "
        f"global batch {config.batch_size} ({config.batch_size // replicas} each), "
        f"augmentation {config.augment}{where}",
        f"{counted(epochs.total_steps, 'step')}, {counted(epochs.count, 'epoch')}; a pass "
        f"is {training.num_records / config.batch_size:.1f} batches, its last records open the "
        "next one",
    ]
    shares = [
        f"{float(part.share):.1%} from {part.subset.dataset.data} (its "
        f"{counted(part.subset.num_records, 'record')})"
        for part in training.mix
    ]
    lines += [f"mixed: {', '.join(shares)}"] * bool(shares)
    if inputs.read_options.fast_order:
        lines.append("--fast_order: neither the order nor a resumed run is reproducible")
    if validation is None:
        lines.append(
            "no validation split (validation, val, valid): val_loss and val_accuracy will be null"
        )
    return lines


def result_lines(
    history: Sequence[Mapping[str, Any]],
    best_step: int | None,
    broken: list[BrokenRecord],
    speed: str | None,
) -> list[str]:
    """What came out of a run."""
    lines = []
    best = next((r for r in history if r["step"] == best_step), None)
    accuracy = history[-1].get("val_accuracy")
    if accuracy is not None:
        lines.append(f"validation accuracy {accuracy:.3f}")
    if best is not None and best is not history[-1]:
        figures = [f"lowest val_loss {best['val_loss']:.4f} after epoch {best['epoch']}"]
        if best.get("val_accuracy") is not None:
            figures.append(f"with accuracy {best['val_accuracy']:.3f}")
        lines.append(f"{', '.join(figures)}: best.keras")
    if broken:
        lines.append(f"{counted(len(broken), 'broken record')} left out:")
        lines.extend(f"  {record}" for record in broken)
    return [*lines, speed] if speed else lines


def reader_cpu_sec(iterator: Iterator[Any], batch_size: int) -> float | None:
    """CPU seconds, of all threads, that the reader needs for one image.

    It makes batches in advance. Measured from the moment when these are complete until they
    are complete again, so exactly as many batches were made as were drawn.

    Args:
        iterator: Batches to train on.
        batch_size: Images in each.

    Returns:
        None where a record cannot be read.
    """
    count = max(1, SAMPLE_IMAGES // batch_size)
    try:
        next_batch(iterator)
        wait_for_idle_cores()
        started_sec = time.process_time()
        for _ in range(count):
            next_batch(iterator)
        wait_for_idle_cores()
    except (tf.errors.OpError, UserError):
        return None
    return (time.process_time() - started_sec) / (count * batch_size)


def wait_for_idle_cores() -> None:
    """Waits until this process hardly uses a core any more, for five seconds at most."""
    for _ in range(MAX_IDLE_WAITS):
        cpu_sec = time.process_time()
        time.sleep(IDLE_SEC)
        if time.process_time() - cpu_sec < IDLE_CORES * IDLE_SEC:
            return


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
    cores = counted(count, "core")
    if wait_fraction > _MIN_WAIT_FRACTION:
        return (
            f"input-bound: the model waited {wait_fraction:.0%} of the time for data and could "
            f"take {model_images_per_sec:,.0f} images/s; about {cores} would feed it"
        )
    return (
        f"compute-bound: the model waited {wait_fraction:.1%} of the time for data; about {cores} "
        "would do for the reader"
    )
