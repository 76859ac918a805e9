"""One image's bytes → the features of its record, and what is counted of it."""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from beam_pipeline.images.encode import EncodedImage, encode_image
from beam_pipeline.images.geometry import map_boxes
from beam_pipeline.options import ImageOptions
from beam_pipeline.planning.refs import ImageRef
from imageshards.example import Values

SIZE_EDGES_PX = [0, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192]
BYTES_EDGES = [0, *(1000 * 2**i for i in range(14))]
# Every how manieth record of a shard counts towards the mean and deviation of pixels.
PIXEL_SAMPLE = 16

# Columns below this name hold one entry per box.
OBJECT_PREFIX = "image/object/"
BOX_FEATURES = tuple(f"{OBJECT_PREFIX}bbox/{side}" for side in ("xmin", "xmax", "ymin", "ymax"))


@dataclasses.dataclass
class ShardStats:
    """Counts over the accepted images of a shard; whole numbers, so any order gives the same."""

    formats: dict[str, int] = dataclasses.field(default_factory=dict)
    notes: dict[str, int] = dataclasses.field(default_factory=dict)
    source_width_px: list[int] = dataclasses.field(default_factory=lambda: [0] * len(SIZE_EDGES_PX))
    source_height_px: list[int] = dataclasses.field(
        default_factory=lambda: [0] * len(SIZE_EDGES_PX)
    )
    record_bytes: list[int] = dataclasses.field(default_factory=lambda: [0] * len(BYTES_EDGES))
    # For each channel [pixels, sum, sum of squares].
    pixel_sums: list[list[int]] = dataclasses.field(default_factory=list)

    @staticmethod
    def wants_pixels(record: int) -> bool:
        """Whether the record with this index is one of the sample."""
        return record % PIXEL_SAMPLE == 0

    def add(self, encoded: EncodedImage, record_bytes: int) -> None:
        """Counts one accepted image."""
        self.formats[encoded.source_format] = self.formats.get(encoded.source_format, 0) + 1
        for note in encoded.notes:
            self.notes[note] = self.notes.get(note, 0) + 1
        _count(self.source_width_px, SIZE_EDGES_PX, encoded.source_width_px)
        _count(self.source_height_px, SIZE_EDGES_PX, encoded.source_height_px)
        _count(self.record_bytes, BYTES_EDGES, record_bytes)
        if encoded.pixel_sums is not None:
            self._add_pixels([list(channel) for channel in encoded.pixel_sums])

    def merge(self, other: ShardStats) -> None:
        """Adds the counts of another shard."""
        for mine, theirs in ((self.formats, other.formats), (self.notes, other.notes)):
            for key, count in theirs.items():
                mine[key] = mine.get(key, 0) + count
        for name in ("source_width_px", "source_height_px", "record_bytes"):
            pairs = zip(getattr(self, name), getattr(other, name), strict=True)
            setattr(self, name, [a + b for a, b in pairs])
        self._add_pixels(other.pixel_sums)

    def _add_pixels(self, sums: list[list[int]]) -> None:
        if not self.pixel_sums:
            self.pixel_sums = [[0, 0, 0] for _ in sums]
        for mine, theirs in zip(self.pixel_sums, sums, strict=False):
            for i, value in enumerate(theirs):
                mine[i] += value

    def mean_and_std(self) -> tuple[list[float], list[float]]:
        """Per channel, of pixels scaled to 0..1."""
        means, deviations = [], []
        for pixels, total, squares in self.pixel_sums:
            mean = total / pixels
            variance = max(0.0, (squares * pixels - total * total) / (pixels * pixels))
            means.append(round(mean / 255, 6))
            deviations.append(round(variance**0.5 / 255, 6))
        return means, deviations


def merge_stats(found: Iterable[ShardStats]) -> ShardStats:
    """Sum of counts."""
    total = ShardStats()
    for stats in found:
        total.merge(stats)
    return total


def _count(bins: list[int], edges: list[int], value: int) -> None:
    bins[bisect.bisect_right(edges, value) - 1] += 1


def make_features(
    ref: ImageRef,
    data: bytes,
    class_ids: Mapping[str, int],
    options: ImageOptions,
    want_sums: bool,
) -> tuple[dict[str, Values], EncodedImage]:
    """The features of one record.

    Args:
        ref: The image, with its transformed columns.
        data: Its original bytes.
        class_ids: Label → id.
        options: How the picture is encoded.
        want_sums: Whether sums of its pixels are wanted.

    Raises:
        ImageError: The bytes cannot become a record.
    """
    encoded = encode_image(data, options, want_sums=want_sums)
    features: dict[str, Values] = {
        "image/encoded": [encoded.data],
        "image/format": [b"JPEG"],
        "image/height": [encoded.height_px],
        "image/width": [encoded.width_px],
        "image/channels": [encoded.channels],
        "image/colorspace": [encoded.colorspace.encode()],
        "image/class/label": [class_ids[ref.label]],
        "image/class/text": [ref.label.encode()],
        "image/filename": [ref.key.encode()],
        "image/key/sha256": [hashlib.sha256(data).hexdigest().encode()],
    }
    if ref.columns:
        features.update(_follow_picture(ref.columns, encoded))
    return features, encoded


def _follow_picture(columns: Mapping[str, Any], encoded: EncodedImage) -> dict[str, Values]:
    """Columns with their boxes moved as the picture was; boxes out of sight leave.

    All columns below `image/object/` with one entry per box lose the same entries.
    """
    moved = dict(columns)
    if not all(name in columns for name in BOX_FEATURES):
        return moved
    boxes = list(zip(*(columns[name] for name in BOX_FEATURES), strict=False))
    kept = map_boxes(boxes, encoded.box_transform)
    for name, values in columns.items():
        if name.startswith(OBJECT_PREFIX) and len(values) == len(boxes):
            moved[name] = [values[i] for i, _ in kept]
    for place, name in enumerate(BOX_FEATURES):
        moved[name] = [float(box[place]) for _, box in kept]
    return moved
