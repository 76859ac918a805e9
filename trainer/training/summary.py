"""Describes a run for a person: the plan before training, a batch, and the results."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from PIL import Image, ImageOps

from imageshards import storage
from imageshards.commands.output_folder import output_errors
from imageshards.page import draw_boxes, number, render
from imageshards.text import counted
from trainer.config import RunConfig
from trainer.dataset.batch import Batch
from trainer.dataset.spec import BOXES, IMAGE_INPUT, describe, describe_scale
from trainer.dataset.subset import Subset
from trainer.evaluation.evaluation import finite
from trainer.models import strategy
from trainer.models.keras_internals import trained_variables
from trainer.models.optimizer import InDeviations
from trainer.models.user_model import is_user_model
from trainer.reader.broken_records import BrokenRecord
from trainer.reader.order import bytes_share
from trainer.strengths import NONE
from trainer.training.open_run import Run

# A run that waits longer for data than this share of the time is limited by the reader.
_MIN_WAIT_FRACTION = 0.05
# Classes with fewer records get the advice to begin with published weights.
_FEW_RECORDS = 1000
_ADVICE = (
    "hint: with fewer than 1,000 records{}, pretrained weights usually beat random weights: try "
    "--model EfficientNetV2B0 --weights imagenet --freeze all --unfreeze_after 3"
)

SHEET_NAME = "dry_run.html"
THUMB_PX = 144
MAX_PICTURES = 64


def plan_lines(config: RunConfig, run: Run, model: keras.Model) -> list[str]:
    """Returns lines about the dataset, the model, the devices and the length of the training."""
    training, validation, epochs = run.train.subset, run.validation, run.epochs
    height_px, width_px = run.train.model_inputs.size
    batch_size, augment = run.train.batch_size, run.train.augment
    replicas = run.devices.num_replicas_in_sync
    where = f" on the {run.train.augment_on}" if augment != NONE else ""
    left_over = ", and left-over records begin the next epoch"
    left_over *= training.num_records % batch_size > 0
    lines = [
        f"{config.read.data}: {counted(training.num_records, 'record')} to train on in "
        f"{counted(len(training.split.shards), 'shard')}, "
        f"{validation.num_records if validation else 0:,} to validate, "
        f"{_target_text(training, model)}",
        f"{model.name}: {model.count_params():,} parameters, pictures of "
        f"{height_px}x{width_px}x{training.dataset.image.channels} px, "
        f"{strategy.describe(run.devices)}, "
        f"global batch {batch_size} ({batch_size // replicas} each), augmentation {augment}{where}",
        f"{counted(epochs.total_steps, 'step')}, {counted(epochs.count, 'epoch')}; an epoch "
        f"is {training.num_records / batch_size:.1f} batches{left_over}",
    ]
    missing = training.missing_target
    to_validate = validation.subset.missing_target if validation else 0
    if missing or to_validate:
        lines.append(
            f"{counted(missing, 'record')} to train on and {to_validate:,} to validate lack the "
            f"target {training.dataset.label_feature} and are left out"
        )
    if frozen := sum(math.prod(v.shape) for v in trained_variables(model) if not v.trainable):
        until = f" until epoch {after + 1}" if (after := config.unfreeze_after) else ""
        lines.append(f"{frozen:,} parameters are frozen{until}")
    # Published weights exist for RGB pictures, and a resumed run has its weights already.
    is_small = training.num_records < _FEW_RECORDS * max(1, len(run.train.classes))
    is_rgb = training.dataset.image.channels == 3
    if is_small and is_rgb and not (config.weights or is_user_model(config.model) or run.step):
        lines.append(_ADVICE.format(" per class" * bool(run.train.classes)))
    if (hosts := run.hosts.count) > 1:
        lines.append(
            f"each of {counted(hosts, 'host')} reads up to "
            f"{bytes_share(batch_size, hosts):.1%} of the bytes"
        )
    if validation is None:
        lines.append(
            "no validation split (validation, val, valid): val_loss and its metrics will be null"
        )
    return lines


def _target_text(subset: Subset, model: keras.Model) -> str:
    """Returns the target of the model, and its loss unless that is cross-entropy."""
    dataset, classes = subset.dataset, counted(len(subset.classes), "class")
    loss = getattr(model.loss, "name", None) or "a loss of the model's own"
    by = "" if loss == "cross_entropy" else f", {loss.replace('_', ' ')}"
    if isinstance(model.loss, InDeviations):
        by += " of errors in deviations"
    if dataset.target == "values":
        scale = f", {describe_scale(found)}" if (found := subset.target_mean_std) else ""
        return f"target {dataset.label_feature}: {describe(dataset)}{scale}{by}"
    if dataset.target == "boxes":
        return f"target {BOXES}{by}"
    if dataset.target == "labels":
        number = counted(len(subset.classes), "label")
        return f"target {dataset.label_feature}: any of {number}{by}"
    return classes if dataset.column is None else f"target {dataset.column}: {classes}"


def result_lines(
    figures: Mapping[str, float | None], served: str, broken: list[BrokenRecord], speed: str | None
) -> list[str]:
    """Returns lines about the results; `figures` belong to the `served` model's validation."""
    formats = {"accuracy": ".3f", "loss": ".4f"}
    known = [
        f"{name} {value:{form}}"
        for name, form in formats.items()
        if (value := finite(figures.get(name))) is not None
    ]
    lines = [f"validation {', '.join(known)}: {served}"] if known else []
    if broken:
        lines.append(f"{counted(len(broken), 'broken record')} left out:")
        lines.extend(f"  {record}" for record in broken)
    return [*lines, speed] if speed else lines


def waiting_line(history: Sequence[Mapping[str, float | None]]) -> str | None:
    """Returns whether the reader or the model limited the speed of a run; None if unknown."""
    measured = [r["wait_fraction"] for r in history if r["wait_fraction"] is not None]
    if not measured:
        return None
    measured = measured[1:] or measured  # the first epoch also warms up, so a longer run skips it
    share = sum(measured) / len(measured)
    kind = "input" if share > _MIN_WAIT_FRACTION else "compute"
    return f"{kind}-bound: the model waited {share:.1%} of the time for data"


def show_batch(
    batch: Batch,
    classes: Sequence[str],
    output: str,
    target: str = "class",
) -> str:
    """Writes a contact sheet of a global batch, and returns its path, `report/dry_run.html`."""
    path = storage.join(output, "report", SHEET_NAME)
    pictures = np.asarray(batch["inputs"][IMAGE_INPUT])[:MAX_PICTURES]
    weights, found = np.asarray(batch["weight"]), batch["inputs"].get(BOXES)
    labels: Any = [None] * len(weights)
    if target == "boxes":
        found = batch["label"]
    elif target != "none":
        labels = np.asarray(batch["label"])
    boxes = np.zeros((len(weights), 0, 4)) if found is None else np.asarray(found["boxes"])
    thumbs = [
        {
            "picture": draw_boxes(thumb(pixels), drawn.tolist()),
            "label": caption(label, weight, classes, target),
            "key": "",
        }
        for pixels, label, weight, drawn in zip(pictures, labels, weights, boxes, strict=False)
    ]
    title = storage.name_of(os.path.abspath(output) if storage.is_local(output) else output)
    page = render("trainer.report", "dry_run.jinja", title=title, size=len(labels), thumbs=thumbs)
    with output_errors(output, SHEET_NAME):
        storage.write(path, page)
    print(f"one batch, as the model gets it: {path}")
    return path


def caption(label: Any, weight: float, classes: Sequence[str], target: str = "class") -> str:
    """Returns the class, labels or values of a picture, or both classes of a mixed picture."""
    if not weight:
        return "left out: broken"
    values = np.atleast_1d(label)
    if label is None:
        return ""
    if target == "values":
        return ", ".join(map(number, values.tolist()))
    if target == "class" and np.ndim(label) == 0:
        return classes[int(label)]
    order = [i for i in np.argsort(-values, kind="stable") if values[i] > 0]
    shares = [classes[i] if values[i] == 1 else f"{classes[i]} {values[i]:.0%}" for i in order]
    return " + ".join(shares) or "no label"


def thumb(pixels: np.ndarray) -> Image.Image:
    """Returns a thumbnail of a picture, uint8 [height, width, 3 or 1]."""
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")
    return ImageOps.contain(picture, (THUMB_PX, THUMB_PX))
