"""`--dry_run`: one batch as the model will see it, and the memory that a run will need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from PIL import Image

from imageshards import storage
from imageshards.errors import UserError
from imageshards.page import contact_sheet, size
from imageshards.progress import text_table
from imageshards.text import counted, shortened
from trainer.dataset.spec import Batch, ModelInputs, Subset

SHEET_NAME = "dry_run.png"
THUMB_PX = 144
MAX_PICTURES = 64
MAX_CLASSES = 20
_NAME_CHARACTERS = 24
_BAR_CHARACTERS = 24


def describe(
    batch: Batch,
    subset: Subset,
    model: keras.Model,
    model_inputs: ModelInputs,
    memory: Mapping[str, int],
    folder: str,
) -> str:
    """Prints what `batch` holds, and writes a contact sheet of it.

    Args:
        batch: One global batch, after augmentation: see `trainer.reader.pipeline`.
        subset: What is trained on.
        model: Built, with an optimizer if it is compiled.
        model_inputs: Of the model.
        memory: Estimated bytes of the reader, by purpose.
        folder: For `dry_run.png`, local or in a store; made where it is missing.

    Returns:
        The path of the contact sheet.

    Raises:
        UserError: It cannot be written.
    """
    labels = np.asarray(batch["label"])
    shares = class_shares(labels, len(subset.classes))
    for title, lines in (
        ("one batch, as the model gets it", shape_lines(batch, model_inputs)),
        ("\nclasses", class_lines(shares, subset)),
        ("\nmemory", memory_lines(batch, model, memory)),
    ):
        print(title, *(f"  {line}" for line in lines), sep="\n")
    path = storage.join(folder, SHEET_NAME)
    pictures = np.asarray(batch["inputs"]["image"])[:MAX_PICTURES]
    weights = np.asarray(batch["weight"])
    captions = [
        caption(label, weight, subset.classes)
        for label, weight in zip(labels[: len(pictures)], weights, strict=False)
    ]
    try:
        with storage.open_write(path) as file:
            contact_sheet([thumb(p) for p in pictures], captions, THUMB_PX).save(file, "PNG")
    except OSError as e:
        raise UserError(
            f"{path} cannot be written ({e.strerror or e}); expected a folder with room "
            "where you may write, by --output."
        ) from e
    print(f"\npictures {path}")
    return path


def shape_lines(batch: Batch, model_inputs: ModelInputs) -> list[str]:
    """Name, dtype, shape and range of everything in a batch."""
    header, rows = ("", "dtype", "shape", "from", "to"), []
    height_px, width_px = model_inputs.size
    for name, value in _flat(batch):
        # A ragged tensor has no shape of its own: its values and their lengths do.
        ragged = hasattr(value, "flat_values")
        values = np.asarray(value.flat_values if ragged else value)
        shape = [value.shape[0], "ragged"] if ragged else list(values.shape)
        low, high = (_short(f(values)) for f in (np.min, np.max)) if values.size else ("-", "-")
        rows.append((name, str(values.dtype), str(shape).replace("'", ""), low, high))
    lines = text_table(header, rows, texts=range(5)).splitlines()
    return [*lines, f"the model sees pictures of {height_px} x {width_px} px (height x width)"]


def class_shares(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """float64 [num_classes]: examples per class; mixed ones count by their shares.

    Args:
        labels: int64 [b], or float32 [b, num_classes].
        num_classes: Of the model.
    """
    if labels.ndim == 2:
        return labels.sum(0, dtype=np.float64)
    return np.bincount(labels, minlength=num_classes).astype(np.float64)


def class_lines(shares: np.ndarray, subset: Subset) -> list[str]:
    """A histogram of the batch beside the split's counts, the largest of the batch first."""
    order = np.argsort(-shares, kind="stable")[:MAX_CLASSES]
    counts = subset.class_counts
    whole = counts is not None
    if len(subset.classes) <= MAX_CLASSES:
        order = np.sort(order)
    names = {i: shortened(subset.classes[i], _NAME_CHARACTERS) for i in order}
    width = max(5, *map(len, names.values()))
    top = max(float(shares.max()), 1e-9)
    lines = [f"{'class':<{width}}  {'batch':>7}  {'split' if whole else 'split unknown':>9}"]
    for i in order:
        bar = "█" * round(_BAR_CHARACTERS * float(shares[i]) / top)
        count = f"{counts[i]:>9,}" if counts is not None else " " * 9
        weight = f"  weight {subset.class_weights[i]:.3g}" if subset.class_weights else ""
        lines.append(f"{names[i]:<{width}}  {shares[i]:>7.4g}  {count}{weight}  {bar}".rstrip())
    left = len(subset.classes) - len(order)
    if left:
        lines.append(f"and {counted(left, 'more class')}")
    copies = " (copies of rare ones included)" if subset.sampling else ""
    lines.append(f"{counted(subset.num_records, 'record')} in an epoch{copies}")
    return lines


def memory_lines(batch: Batch, model: keras.Model, memory: Mapping[str, int]) -> list[str]:
    """The memory of devices, without activations, and of the reader."""
    trainable = sum(_bytes(v) for v in model.trainable_variables)
    optimizer = getattr(model, "optimizer", None)
    slots = sum(_bytes(v) for v in optimizer.variables) if optimizer is not None else 0
    batch_bytes = sum(
        np.asarray(getattr(value, "flat_values", value)).nbytes for _, value in _flat(batch)
    )
    on_device = {
        f"weights ({model.count_params():,} parameters)": sum(_bytes(v) for v in model.variables),
        "gradients": trainable,
        "optimizer": slots,
        "one batch, over all replicas": batch_bytes,
    }
    groups = [("on every device, without activations", on_device), ("in the reader", memory)]
    lines = []
    for title, parts in groups:
        shown = {name: size_bytes for name, size_bytes in parts.items() if size_bytes}
        lines.append(f"{title}: {size(sum(shown.values()))}")
        lines += [f"  {size(size_bytes):>8}  {name}" for name, size_bytes in shown.items()]
    return lines


def caption(label: Any, weight: float, classes: Sequence[str]) -> str:
    """The class of a picture, or the two it is mixed of."""
    if np.ndim(label) == 0:
        text = classes[int(label)]
    else:
        order = np.argsort(-np.asarray(label), kind="stable")[:2]
        shares = [f"{classes[i]} {label[i]:.0%}" for i in order if label[i] > 0]
        text = " + ".join(shares) if len(shares) > 1 else classes[order[0]]
    return text if weight else "left out: broken"


def thumb(pixels: np.ndarray) -> Image.Image:
    """A picture as large as fits; small ones are enlarged, their pixels kept square.

    Args:
        pixels: uint8 [height, width, 3 or 1].
    """
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")
    scale = THUMB_PX / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    sampling = Image.Resampling.BOX if scale < 1 else Image.Resampling.NEAREST
    return picture.resize((width, height), sampling)


def _flat(batch: Batch) -> Iterator[tuple[str, Any]]:
    for name, value in batch["inputs"].items():
        yield f"inputs/{name}", value
    for name, value in batch.items():
        if name != "inputs":
            yield name, value


def _bytes(variable: Any) -> int:
    bytes_each = tf.as_dtype(keras.backend.standardize_dtype(variable.dtype)).size
    return int(np.prod(variable.shape, dtype=np.int64)) * bytes_each


def _short(value: Any) -> str:
    return f"{value:.4g}" if np.issubdtype(type(value), np.floating) else str(value)
