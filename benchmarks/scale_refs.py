"""Synthetic references: as many as anybody has images, without a file."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from beam_pipeline.planning.refs import ImageRef, RefBatch

BATCH_SIZE = 1000
ROOT = "gs://photos-of-somebody/imagenet/train/"
_NANOSECONDS_2025 = 1_735_700_000_000_000_000


@dataclasses.dataclass(frozen=True)
class Synthetic:
    """An input that exists on paper only.

    Attributes:
        images: How many.
        classes: Of as many images each.
        shuffled: Rows of a manifest in random order, instead of folder after folder.
    """

    images: int
    classes: int = 1000
    shuffled: bool = False

    def __str__(self) -> str:
        order = "a shuffled manifest" if self.shuffled else "folders"
        return f"{self.images:,} images in {self.classes:,} classes, {order}"

    def label_of(self, image: int, draw: random.Random) -> int:
        """The class of an image."""
        if self.shuffled:
            return draw.randrange(self.classes)
        return image * self.classes // self.images

    def batch(self, number: int) -> RefBatch:
        """The `number`-th batch of references, always the same."""
        draw = random.Random(number)
        first = number * BATCH_SIZE
        refs = []
        for image in range(first, min(first + BATCH_SIZE, self.images)):
            label = f"n{self.label_of(image, draw):08d}"
            key = f"{label}/{label}_{image:09d}.JPEG"
            size_bytes = 20_000 + int(draw.random() * 180_000)
            mtime_ns = _NANOSECONDS_2025 + int(draw.random() * 1e15)
            refs.append(ImageRef(key, ROOT + key, label, None, None, size_bytes, mtime_ns))
        return RefBatch(refs)

    def batches(self) -> Iterator[RefBatch]:
        """All of them."""
        for number in range(-(-self.images // BATCH_SIZE)):
            yield self.batch(number)
