"""What training needs of augmentation: where it is done, and the functions that do it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from imageshards.errors import UserError
from trainer.config import AUGMENT_PLACES
from trainer.dataset.spec import ImageSpec

Batch = dict[str, Any]

# Pictures much larger than the model's are shipped to the device a little larger than that,
# 256 for 224, so that a crop still has pixels of its own to choose from.
_MARGIN = 8 / 7
_MOST_SHRINK = 2


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """The parts of augmentation, each for its place.

    Attributes:
        level: `none`, `light` or `strong`.
        place: `device` or `host`.
        reader_size: (height, width) in pixels of the reader's pictures.
        pictures: For the reader: encoded, string [batch], and position, int64 [batch] →
            uint8 [batch, *reader_size, channels].
        finish: For the reader, at its end: batch → batch; None where there is nothing to do.
        device: For each replica's slice, inside the step: batch → batch; or None.
    """

    level: str
    place: str
    reader_size: tuple[int, int]
    pictures: Callable[[Any, Any], Any]
    finish: Callable[[Batch], Batch] | None = None
    device: Callable[[Batch], Batch] | None = None


def resolve_place(place: str, gpus: int) -> str:
    """`auto` → `device` if there are GPUs, else `host`; the others stay.

    Raises:
        ValueError: There is no such place.
    """
    if place not in AUGMENT_PLACES:
        raise ValueError(f"place received {place!r}; expected one of {', '.join(AUGMENT_PLACES)}.")
    if place != "auto":
        return place
    return "device" if gpus > 0 else "host"


def check(level: str, batch_size: int, replicas: int, mix: bool = True) -> None:
    """Refuses batches whose pairs of pictures would be torn apart by the replicas.

    Raises:
        UserError: Pairs are mixed, and the share of one replica is odd.
    """
    share = batch_size // replicas
    if level != "strong" or not mix or (share % 2 == 0 and share * replicas == batch_size):
        return
    multiple = 2 * replicas
    nearest = max(multiple, round(batch_size / multiple) * multiple)
    raise UserError(
        f"--batch_size received {batch_size} with {replicas} replica{'s' * (replicas > 1)}; "
        f"--augment strong mixes pictures in pairs and expected a multiple of {multiple}, for "
        f"example {nearest}; or choose --augment light."
    )


def shipped_size(image: ImageSpec, size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) in pixels of the pictures sent to a device that crops them to `size`.

    The data set's own, so that nothing is resized on the host; unless pictures differ in
    size, or are more than twice as large as needed.
    """
    own = None if image.varies else image.size
    if own and all(a <= _MOST_SHRINK * b for a, b in zip(own, size, strict=True)):
        return own
    height_px, width_px = (round(side * _MARGIN) for side in size)
    return height_px, width_px


def make(
    level: str,
    place: str,
    *,
    image: ImageSpec,
    size: tuple[int, int],
    seed: int,
    num_classes: int,
    mix: bool = True,
) -> Augmentation:
    """Puts together what `level` does at `place`.

    Args:
        level: `none`, `light` or `strong`.
        place: `device` or `host`, from `resolve_place`.
        image: Pictures in the records.
        size: (height, width) in pixels the model sees.
        seed: Of the run.
        num_classes: Of the model.
        mix: Whether `strong` may mix pictures and labels of pairs. Not where the model has
            other inputs than the picture: there is no mean of two captions, and a label
            that is half another record's would not fit to them.
    """
    if place not in ("device", "host"):
        raise ValueError(f"place received {place!r}; expected 'device' or 'host'.")
    # Here, because TensorFlow takes seconds to import.
    from trainer.augment import device as augment_device
    from trainer.augment import host
    from trainer.augment.decode import batch_pictures

    if level == "none":
        return Augmentation(level, place, size, batch_pictures(image, size))
    fill = [255 * mean for mean in image.mean]
    mixed_classes = num_classes if mix and level == "strong" else None
    if place == "device":
        shipped = shipped_size(image, size)
        augment = augment_device.augmenter(level, seed, size, mixed_classes, fill)
        return Augmentation(level, place, shipped, batch_pictures(image, shipped), device=augment)
    pictures = host.batch_pictures(image, size, level, seed, fill)
    finish = host.finisher(level, seed, mixed_classes) if mixed_classes else None
    return Augmentation(level, place, size, pictures, finish=finish)
