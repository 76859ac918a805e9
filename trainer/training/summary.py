"""What a run prints before and after training, and what limited its speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from imageshards.text import counted
from trainer.config import TrainConfig
from trainer.dataset.open import Inputs
from trainer.models import strategy
from trainer.reader.find_broken import BrokenRecord
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


def waiting(history: Sequence[Mapping[str, Any]]) -> str | None:
    """Whether the reader or the model limited the speed of a run, in a sentence.

    Args:
        history: The objects of metrics.jsonl.

    Returns:
        None where nothing was measured.
    """
    measured = [r["wait_fraction"] for r in history if r["wait_fraction"] is not None]
    if not measured:
        return None
    measured = measured[1:] or measured  # the first epoch warms up; it counts only if it is alone
    share = sum(measured) / len(measured)
    kind = "input" if share > _MIN_WAIT_FRACTION else "compute"
    return f"{kind}-bound: the model waited {share:.1%} of the time for data"
