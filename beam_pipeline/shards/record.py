"""Makes the record of one image, with the values that the index stores for the record."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
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
    """Record of an image: a serialized `tf.train.Example`, and the features in it."""

    payload: bytes
    features: dict[str, Values]
    source_bytes: int | None  # size of the original file, if known


def make_record(
    ref: ImageRef,
    data: bytes,
    unit: ShardUnit,
    options: ShardOptions,
    stats: ShardStats,
    index: int,
) -> Record:
    """Encodes an image, or copies a record of a dataset, and counts the result.

    Args:
        data: Bytes of the original file, or payload of the record.
        stats: Counts of the shard, which are increased.
        index: Number of the image in the shard.

    Raises:
        ImageError: The image cannot become a record.
    """
    # The sample is the same in every run, as the order of images in a shard is.
    sample = index % PIXEL_SAMPLE == 0
    encoded: EncodedImage | None = None
    sums: Iterable[Iterable[int]] = ()
    if ref.is_record:
        payload, features = copy_record(ref, data, unit.class_ids)
        source_bytes = ref.source_bytes
        if sample:
            sums = sums_of_jpeg(features["image/encoded"][0])
    else:
        encoded = encode_image(data, options.image, want_sums=sample)
        features = _features_of(ref, data, encoded, unit.class_ids)
        payload = encode_example(features)
        sums, source_bytes = encoded.pixel_sums or (), len(data)
    stats.add(ref.source, sums, encoded)
    for name, values in features.items():
        if len(values) == 1 and values[0] != values[0]:  # only NaN differs from itself
            stats.count("missing", name)
    return Record(payload, features, source_bytes)


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
    """Returns the columns with boxes that follow the resize and crop of the picture.

    A box outside the picture is dropped, with its entry in every column below `image/object/`.
    """
    moved = dict(columns)
    if not all(name in columns for name in BOX_FEATURES):
        return moved
    boxes = list(zip(*(columns[name] for name in BOX_FEATURES), strict=False))
    # Pixels refer to the original, whose size is known only after the picture was decoded.
    width, height = encoded.box_transform.size_px if in_pixels else (1, 1)
    relative = [(x0 / width, x1 / width, y0 / height, y1 / height) for x0, x1, y0, y1 in boxes]
    kept = map_boxes(relative, encoded.box_transform)
    for name, values in columns.items():
        if name.startswith(OBJECT_PREFIX) and len(values) == len(boxes):
            moved[name] = [values[i] for i, _ in kept]
    for place, name in enumerate(BOX_FEATURES):
        moved[name] = [float(box[place]) for _, box in kept]
    return moved
