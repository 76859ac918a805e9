"""One image's bytes → the features of its record."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from beam_pipeline.images.encode import EncodedImage, encode_image
from beam_pipeline.images.geometry import map_boxes
from beam_pipeline.options import ImageOptions
from beam_pipeline.planning.refs import ImageRef
from imageshards.example import Values
from imageshards.manifest import BOX_FEATURES, OBJECT_PREFIX


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
