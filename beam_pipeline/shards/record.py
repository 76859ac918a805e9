"""One image's bytes → its record, and what the index says of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from beam_pipeline.options import ShardOptions
from beam_pipeline.planning.refs import ImageRef, ShardUnit
from beam_pipeline.shards.copying import copy_record, label_features
from beam_pipeline.shards.result import PIXEL_SAMPLE, ShardStats
from imageshards.example import Values, encode_example
from imageshards.images.encode import EncodedImage, encode_image, sums_of_jpeg
from imageshards.images.geometry import map_boxes
from imageshards.manifest import BOX_FEATURES, OBJECT_PREFIX


class Record(NamedTuple):
    """A record: its bytes and what they hold, the size of its original or None where that is not
    known.
    """

    payload: bytes
    features: dict[str, Values]
    source_bytes: int | None


def make_record(
    ref: ImageRef,
    data: bytes,
    unit: ShardUnit,
    options: ShardOptions,
    stats: ShardStats,
    index: int,
) -> Record:
    """The record of an image of a shard, or the one that is copied, counted.

    Args:
        data: Its original bytes, or those of the record.
        stats: Where it is counted.
        index: Number of the image in the shard.

    Raises:
        ImageError: It cannot become a record.
    """
    sample = index % PIXEL_SAMPLE == 0
    if ref.is_record:
        payload, features = copy_record(ref, data, unit.class_ids)
        sums = sums_of_jpeg(features["image/encoded"][0]) if sample else ()
        stats.add(ref.source, sums, None)
        _count_missing(features, stats)
        return Record(payload, features, ref.source_bytes)
    encoded = encode_image(data, options.image, want_sums=sample)
    features = _features_of(ref, data, encoded, unit.class_ids)
    payload = encode_example(features)
    stats.add(ref.source, encoded.pixel_sums or (), encoded)
    _count_missing(features, stats)
    return Record(payload, features, len(data))


def _count_missing(features: Mapping[str, Values], stats: ShardStats) -> None:
    """Counts the features that are one NaN."""
    for name, values in features.items():
        if len(values) == 1 and values[0] != values[0]:
            stats.count("missing", name)


def _features_of(
    ref: ImageRef, data: bytes, encoded: EncodedImage, class_ids: Mapping[str, int]
) -> dict[str, Values]:
    features: dict[str, Values] = {
        "image/encoded": [encoded.data],
        "image/format": [b"JPEG"],
        "image/height": [encoded.height_px],
        "image/width": [encoded.width_px],
        "image/channels": [encoded.channels],
        "image/colorspace": [encoded.colorspace.encode()],
        **label_features(ref.label, class_ids),
        "image/filename": [ref.key.encode()],
        "image/key/sha256": [hashlib.sha256(data).hexdigest().encode()],
    }
    if ref.columns:
        features.update(_follow_picture(ref.columns, encoded, ref.in_pixels))
    return features


def _follow_picture(
    columns: Mapping[str, Any], encoded: EncodedImage, in_pixels: bool
) -> dict[str, Values]:
    """Columns with their boxes moved as the picture was; boxes out of sight leave.

    All columns below `image/object/` with one entry per box lose the same entries.
    """
    moved = dict(columns)
    if not all(name in columns for name in BOX_FEATURES):
        return moved
    boxes = list(zip(*(columns[name] for name in BOX_FEATURES), strict=False))
    width, height = encoded.box_transform.size_px if in_pixels else (1, 1)
    relative = [(x0 / width, x1 / width, y0 / height, y1 / height) for x0, x1, y0, y1 in boxes]
    kept = map_boxes(relative, encoded.box_transform)
    for name, values in columns.items():
        if name.startswith(OBJECT_PREFIX) and len(values) == len(boxes):
            moved[name] = [values[i] for i, _ in kept]
    for place, name in enumerate(BOX_FEATURES):
        moved[name] = [float(box[place]) for _, box in kept]
    return moved
