"""Augmentation as a run sees it: on which side it is done, and the functions that do it.

Importing this module does not import TensorFlow: flags are checked first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from imageshards.errors import Arg, UserError
from imageshards.text import counted
from trainer.dataset.spec import Batch, ImageSpec, Tensors

if TYPE_CHECKING:
    from trainer.augment.boxes import FinishBoxes
    from trainer.augment.decode import Pictures

# Pictures much larger than the model's are shipped to the device a little larger than that,
# 256 for 224, so that a crop still has original pixels to choose from.
_MARGIN = 8 / 7
_MOST_SHRINK = 2

# A function that `map` is given: (inputs, label), or inputs alone → the same.
MapFunction: TypeAlias = "Callable[..., Tensors]"

# (images, labels, seeds) → (images, labels): see `trainer.augment.user_function`.
AugmentFunction = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """The functions of augmentation, each for the stage that calls it.

    Attributes:
        reader_size: (height, width) in pixels of the reader's pictures.
        pictures: For the reader: how it decodes pictures, and what of them is seen.
        finish: The reader's last stage: batch → batch; None where it has nothing to do.
        device: For each replica's slice, inside the step: batch → batch; or None.
    """

    reader_size: tuple[int, int]
    pictures: Pictures
    finish: Callable[[Batch], Batch] | None = None
    device: Callable[[Batch], Batch] | None = None


def resolve_augment_on(augment_on: str, gpus: int) -> str:
    """`auto` → `device` if there are GPUs, else `host`; the others stay."""
    if augment_on != "auto":
        return augment_on
    return "device" if gpus > 0 else "host"


def check_pairs(
    level: str, batch_size: int, replicas: int, mix: bool = True, noun: str = "replica"
) -> None:
    """Refuses batches in which a pair of pictures to mix would fall on two replicas.

    Raises:
        UserError: Pairs are mixed, and the share of one replica is odd.
    """
    share = batch_size // replicas
    if level != "strong" or not mix or (share % 2 == 0 and share * replicas == batch_size):
        return
    multiple = 2 * replicas
    nearest = max(multiple, round(batch_size / multiple) * multiple)
    raise UserError(
        argument="batch_size",
        received=f"{batch_size} with {counted(replicas, noun)}, which "
        + Arg("augment", "strong")
        + " mixes in pairs",
        expected=f"a multiple of {multiple}, for example {nearest}, or " + Arg("augment", "light"),
    )


def shipped_size(image: ImageSpec, size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) in pixels of the pictures sent to a device that crops them to `size`.

    The stored size, so that nothing is resized on the host; unless pictures differ in size, or
    are more than twice as large as needed.
    """
    stored = None if image.varies else image.size
    if stored and all(a <= _MOST_SHRINK * b for a, b in zip(stored, size, strict=True)):
        return stored
    height_px, width_px = (round(side * _MARGIN) for side in size)
    return height_px, width_px


def make_augmentation(
    level: str,
    augment_on: str,
    *,
    image: ImageSpec,
    size: tuple[int, int],
    seed: int,
    num_classes: int,
    mix: bool = True,
    boxes: FinishBoxes | None = None,
) -> Augmentation:
    """Puts together what `level` does to pictures of a `size` on the device or on the host.

    With `mix`, `strong` mixes pictures and labels of pairs. Not where the model has other inputs
    than the picture, or finds values: there is no mean of two captions, and a label that is half
    another record's would not fit to them. On the device bounding boxes go through `boxes`.
    """
    from trainer.augment import host, pixels
    from trainer.augment.decode import batch_pictures

    if level == "none":
        return Augmentation(size, batch_pictures(image, size))
    fill = [255 * mean for mean in image.mean]
    how: dict[str, Any] = {"level": level, "seed": seed}
    how["num_classes"] = num_classes if mix and level == "strong" else None
    if augment_on == "device":
        shipped = shipped_size(image, size)
        device = functools.partial(pixels.augment_batch, **how, size=size, fill=fill, boxes=boxes)
        return Augmentation(shipped, batch_pictures(image, shipped), device=device)
    finish = functools.partial(host.mix_batch, **how) if how["num_classes"] else None
    pictures = host.augmented_pictures(image, size, level, seed, fill)
    return Augmentation(size, pictures, finish=finish)
