"""Chooses the functions of the augmentation, and the side (host or device) that calls them.

Importing this module does not import TensorFlow, because flags are checked first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from imageshards.errors import UserError
from trainer.dataset.batch import Batch, Tensors
from trainer.dataset.spec import ImageSpec
from trainer.strengths import NO_MIXING, NONE, STRONG, Augment, shown

if TYPE_CHECKING:
    from trainer.augment.boxes import FinishBoxes
    from trainer.augment.decode import Pictures
    from trainer.augment.pixels import Pairs

# The device receives very large pictures reduced to 8/7 of the model's size (256 px for 224 px), so
# that crops still choose among more pixels than the model needs.
_MARGIN = 8 / 7
_MOST_SHRINK = 2

# A function for `map`: (inputs, label), or inputs alone → the same.
MapFunction: TypeAlias = "Callable[..., Tensors]"

# (images, labels, seeds) → (images, labels): see `trainer.augment.user_function`.
AugmentFunction = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """The functions of the augmentation, each for the stage that calls the function.

    Attributes:
        reader_size: (height, width) in pixels of the reader's pictures.
        pictures: Decodes pictures in the reader, and knows which part of each picture is visible.
        finish: The reader's last stage, batch → batch, or None.
        device: A stage inside the training step for each replica's slice, batch → batch; or None.
    """

    reader_size: tuple[int, int]
    pictures: Pictures
    finish: Callable[[Batch], Batch] | None = None
    device: Callable[[Batch], Batch] | None = None


def resolve_augment_on(augment_on: str, gpus: int) -> str:
    """Returns `device` or `host` for `auto`, depending on GPUs, and else `augment_on`."""
    if augment_on != "auto":
        return augment_on
    return "device" if gpus > 0 else "host"


def check_strengths(augment: Augment, mixes: bool, channels: int) -> None:
    """Refuses numbers that change nothing for these data; `strong` just leaves them out."""
    if augment == STRONG:
        return
    if augment.mixes and not mixes:
        name = "mixup" if augment.mixup else "cutmix"
        raise UserError(
            argument=name,
            received=f"{shown(getattr(augment, name))}, but pairs are mixed only if pictures are "
            "the only input, and classes or labels the only target",
            expected=NO_MIXING,
        )
    if augment.saturation and channels == 1:
        raise UserError(
            argument="saturation",
            received=f"{shown(augment.saturation)} with grey pictures",
            expected="0",
        )


def shipped_size(image: ImageSpec, size: tuple[int, int]) -> tuple[int, int]:
    """Returns (height, width) in pixels of the pictures for a device that crops them to `size`."""
    stored = None if image.varies else image.size
    # Pictures of the stored size need no resizing on the host.
    if stored and all(a <= _MOST_SHRINK * b for a, b in zip(stored, size, strict=True)):
        return stored
    height_px, width_px = (round(side * _MARGIN) for side in size)
    return height_px, width_px


def make_augmentation(
    augment: Augment,
    augment_on: str,
    *,
    image: ImageSpec,
    size: tuple[int, int],
    seed: int,
    pairs: Pairs | None = None,
    boxes: FinishBoxes | None = None,
) -> Augmentation:
    """Returns the functions that apply `augment` to pictures of a `size` on the device or the host.

    Pictures and labels of `pairs` are mixed. `boxes` finishes bounding boxes on the device.
    """
    from trainer.augment import host, pixels
    from trainer.augment.decode import batch_pictures

    if augment == NONE:
        return Augmentation(size, batch_pictures(image, size))
    fill = [255 * mean for mean in image.mean]
    how: dict[str, Any] = {"augment": augment, "seed": seed, "pairs": pairs}
    if augment_on == "device":
        shipped = shipped_size(image, size)
        device = functools.partial(pixels.augment_batch, **how, size=size, fill=fill, boxes=boxes)
        return Augmentation(shipped, batch_pictures(image, shipped), device=device)
    finish = functools.partial(host.mix_batch, **how) if pairs is not None else None
    pictures = host.augmented_pictures(image, size, augment, seed, fill)
    return Augmentation(size, pictures, finish=finish)
