"""`--dry_run`: one batch as the model will see it, and what the reader will hold in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from imageshards import storage
from imageshards.errors import UserError
from imageshards.page import contact_sheet, size
from trainer.dataset.spec import Batch

SHEET_NAME = "dry_run.png"
THUMB_PX = 144
MAX_PICTURES = 64


def describe(batch: Batch, classes: Sequence[str], memory: Mapping[str, int], folder: str) -> str:
    """Writes a contact sheet of `batch`, and prints where it is and the reader's memory.

    Args:
        batch: One global batch, after augmentation: see `trainer.reader.pipeline`.
        classes: Of the model.
        memory: Estimated bytes of the reader, by purpose.
        folder: For `dry_run.png`, local or in a store; made where it is missing.

    Returns:
        The path of the contact sheet.

    Raises:
        UserError: It cannot be written.
    """
    path = storage.join(folder, SHEET_NAME)
    pictures = np.asarray(batch["inputs"]["image"])[:MAX_PICTURES]
    labels, weights = np.asarray(batch["label"]), np.asarray(batch["weight"])
    captions = [
        caption(label, weight, classes)
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
    parts = ", ".join(f"{name} {size(part)}" for name, part in memory.items())
    print(f"the reader will hold {size(sum(memory.values()))} ({parts})")
    print(f"one batch, as the model gets it: {path}")
    return path


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
