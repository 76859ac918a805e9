"""Makes the record of one image, and names the libraries whose versions decide its bytes."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import socket
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import PIL
from PIL import features as pillow_features

from beam_pipeline.options import ShardOptions
from beam_pipeline.planning.refs import ImageRef, Label, ShardUnit, names_of
from beam_pipeline.shards.copying import copy_record, label_features
from beam_pipeline.shards.result import BOXES_DROPPED, PIXEL_SAMPLE, ShardStats
from imageshards import __version__
from imageshards.errors import UserError
from imageshards.example import Values, encode_example
from imageshards.images.encode import EncodedImage, encode_image, sums_of_jpeg
from imageshards.images.geometry import map_boxes
from imageshards.index import IS_ORIGINAL
from imageshards.manifest import BOX_FEATURES, IMAGE_FEATURE, OBJECT_PREFIX, SHA256_FEATURE

# Decimals of a relative side that different ways to compute it have in common.
_DECIMALS = 12


class Record(NamedTuple):
    """Record of an image: a serialized `tf.train.Example`, and the features in it."""

    payload: bytes
    features: dict[str, Values]
    source_bytes: int | None  # size of the original file, if known
    encode_ns: int = 0  # time of the JPEG encoder
    is_original: bool = False  # whether the picture has the bytes of the original file


def make_record(
    ref: ImageRef,
    data: bytes,
    unit: ShardUnit,
    options: ShardOptions,
    stats: ShardStats,
    index: int,
) -> Record:
    """Encodes an image, or copies a record of a dataset, and counts the result in `stats`.

    `data` are the bytes of the original, or the payload of the record; `index` is the number of the
    image in the shard. Raises `ImageError` if the image cannot become a record.
    """
    # The sample is the same in every run, as the order of images in a shard is.
    sample = index % PIXEL_SAMPLE == 0
    keeps_jpegs = options.image.keeps_jpegs
    encoded: EncodedImage | None = None
    sums: Iterable[Iterable[int]] = ()
    if ref.is_record:
        payload, features = copy_record(ref, data, unit.class_ids)
        source_bytes = ref.source_bytes
        is_original = keeps_jpegs and _has_bytes_of_original(features)
        if sample:
            sums = sums_of_jpeg(features["image/encoded"][0])
    else:
        encoded = encode_image(data, options.image, want_sums=sample)
        features = _features_of(ref, data, encoded, unit.class_ids, stats)
        payload = encode_example(features)
        sums, source_bytes = encoded.pixel_sums or (), len(data)
        is_original = keeps_jpegs and encoded.data is data
    stats.add(ref.source, sums, encoded)
    if is_original:
        stats.count("notes", IS_ORIGINAL)
    for name, values in features.items():
        if len(values) == 1 and values[0] != values[0]:  # only NaN differs from itself
            stats.count("missing", name)
    encode_ns = encoded.encode_ns if encoded else 0
    return Record(payload, features, source_bytes, encode_ns, is_original)


def _has_bytes_of_original(features: Mapping[str, Values]) -> bool:
    (picture,), (original,) = features[IMAGE_FEATURE], features[SHA256_FEATURE]
    return isinstance(picture, bytes) and hashlib.sha256(picture).hexdigest().encode() == original


def _features_of(
    ref: ImageRef,
    data: bytes,
    encoded: EncodedImage,
    class_ids: Mapping[str, int],
    stats: ShardStats,
) -> dict[str, Values]:
    columns, label = _follow_picture(ref, encoded, stats)
    return {
        "image/encoded": [encoded.data],
        "image/format": [b"JPEG"],
        "image/height": [encoded.height_px],
        "image/width": [encoded.width_px],
        "image/channels": [encoded.channels],
        "image/colorspace": [encoded.colorspace.encode()],
        **label_features(label, class_ids),
        "image/filename": [ref.key.encode()],
        "image/key/sha256": [hashlib.sha256(data).hexdigest().encode()],
        **columns,
    }


def _follow_picture(
    ref: ImageRef, encoded: EncodedImage, stats: ShardStats
) -> tuple[dict[str, Values], Label]:
    """Returns the columns with boxes that follow the picture, and the label of the picture.

    Boxes outside of the picture, and boxes without an area, are mistakes of the input: they are
    dropped with the labels that only they give, and counted. Boxes outside of the crop are dropped.
    """
    columns = dict(ref.columns or {})
    if not all(name in columns for name in BOX_FEATURES):
        return columns, ref.label
    sides = [columns[name] for name in BOX_FEATURES]
    # A `preprocessing_fn` may have changed the boxes.
    is_exact = [np.array(exact, np.float32).tolist() for exact in ref.sides] == sides
    boxes = list(zip(*(ref.sides if is_exact else sides), strict=False))
    # Pixels refer to the original, whose size is known only after the picture was decoded.
    width, height = encoded.box_transform.size_px if ref.in_pixels else (1, 1)
    relative = [(x0 / width, x1 / width, y0 / height, y1 / height) for x0, x1, y0, y1 in boxes]
    if is_exact:
        # A box gives the same bytes in pixels, and as centre and size from 0 to 1.
        relative = [(*(round(side, _DECIMALS) for side in box),) for box in relative]
    # All comparisons with a NaN are false.
    right = [
        i
        for i, (xmin, xmax, ymin, ymax) in enumerate(relative)
        if xmin < xmax and ymin < ymax and max(xmin, ymin) < 1 and min(xmax, ymax) > 0
    ]
    if len(right) < len(boxes):
        stats.count("notes", BOXES_DROPPED)
    label = ref.label
    if ref.box_labels:
        gone = {*ref.box_labels}.difference(ref.box_labels[i] for i in right)
        label = tuple(name for name in names_of(label) if name not in gone)
    mapped = map_boxes([relative[i] for i in right], encoded.box_transform)
    kept = [(right[i], box) for i, box in mapped]
    moved = {
        name: [values[i] for i, _ in kept]
        for name, values in columns.items()
        if name.startswith(OBJECT_PREFIX) and len(values) == len(boxes)
    }
    for place, name in enumerate(BOX_FEATURES):
        moved[name] = [float(box[place]) for _, box in kept]
    return columns | moved, label


def byte_versions(icc: str = "drop") -> dict[str, str]:
    """Returns the versions of the libraries that decide the bytes of a shard.

    The fingerprint of a dataset depends on them. The colour library counts only if `icc` is
    `convert`.
    """
    turbo = pillow_features.version_feature("libjpeg_turbo")
    lcms = pillow_features.version_module("littlecms2")
    return {
        "imageshards": __version__,
        # The loaded version, which an upgrade of the package on the disk does not change.
        "pillow": PIL.__version__,
        "libjpeg": f"turbo {turbo}" if turbo else str(pillow_features.version_codec("jpg")),
        # A wheel of Pillow contains these; the Pillow of a Linux distribution uses the system's.
        "libwebp": str(pillow_features.version_module("webp")),
        "libavif": str(pillow_features.version_module("avif")),
        "libtiff": str(pillow_features.version_codec("libtiff")),
        # Without this package a HEIC is rejected.
        "pillow-heif": _installed("pillow-heif"),
        "tensorflow-transform": _installed("tensorflow-transform"),
        **({"littlecms": str(lcms)} if icc == "convert" else {}),
    }


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def check_versions(expected: tuple[tuple[str, str], ...]) -> None:
    """Raises `UserError` if a library that decides bytes has not the client's version here."""
    here = byte_versions("convert")
    differ = ", ".join(
        f"{name} {version} here and {here.get(name, 'none')} there"
        for name, version in expected
        if here.get(name) != version
    )
    if differ:
        raise UserError(
            f"versions on worker host {socket.gethostname()} differ from the client's ({differ})",
            expected="the same ones, as the bytes depend on them",
            remedy="install this release with its constraints.txt on both, and start the workers "
            "again",
        )
