"""Holds every record of a build against its manifest and its index."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from imageshards.example import Values, decode_example, dtype_of
from imageshards.index import IndexRows, index_schema, index_table, read_shard_index
from imageshards.jpeg import open_picture
from imageshards.manifest import Image, Manifest
from imageshards.manifest.file import load_manifest
from imageshards.tfrecord import FOOTER_BYTES, HEADER_BYTES, read_records
from imageshards.verification.command import verify


def assert_records_are_as_described(directory: Path | str) -> int:
    """Every checksum, feature, label, picture and index row; returns the number of records."""
    assert verify(str(directory)).ok
    manifest = load_manifest(str(directory), complete=True)
    features = manifest.features
    total = 0
    for split, shard in manifest.shards():
        rows = IndexRows()
        for record in read_records(f"{directory}/{shard.file}"):
            held = decode_example(record.payload)
            assert not [*_problems(held, manifest)], (shard.file, record.number)
            rows.add(held, HEADER_BYTES + len(record.payload) + FOOTER_BYTES, None)
        total += len(rows)
        expected = index_table(rows, split, shard.file, features)
        found = read_shard_index(str(directory), shard, index_schema(features))
        for name in {*found.column_names} - {"source_bytes"}:  # which no record tells
            # As text: NaN is no difference.
            assert repr(found[name].to_pylist()) == repr(expected[name].to_pylist()), name
    return total


def _problems(held: Mapping[str, Values], manifest: Manifest) -> Iterator[str]:
    declared = manifest.features
    assert held.keys() == declared.keys()
    for name, values in held.items():
        spec = declared[name]
        if dtype_of(values) not in (None, spec.dtype):
            yield f"{name} is {dtype_of(values)}"
        if spec.shape is not None and len(values) != math.prod(spec.shape):
            yield f"{name} has {len(values)} values"
    one = {name: values[0] for name, values in held.items() if declared[name].shape == ()}
    label = int(one["image/class/label"])
    if label < 0 or manifest.classes[label].encode() != one["image/class/text"]:
        yield f"label {label} is not {one['image/class/text']!r}"
    if not re.fullmatch(rb"[0-9a-f]{64}", bytes(one["image/key/sha256"])):  # type: ignore[arg-type]
        yield "no SHA-256"
    colours = {1: (b"Grayscale", "L"), 3: (b"RGB", "RGB")}
    colorspace, mode = colours[int(one["image/channels"])]
    if (one["image/format"], one["image/colorspace"]) != (b"JPEG", colorspace):
        yield f"{one['image/format']!r}, {one['image/colorspace']!r}"
    encoded = one["image/encoded"]
    with open_picture(encoded if isinstance(encoded, bytes) else b"") as picture:
        picture.load()
        said = (one["image/width"], one["image/height"])
        if (picture.format, picture.mode, picture.size) != ("JPEG", mode, said):
            yield f"a {picture.format} in {picture.mode} of {picture.size} px"
        yield from _size_problems(picture.width, picture.height, manifest.image)


def _size_problems(width: int, height: int, image: Image) -> Iterator[str]:
    high, wide = (image.size,) * 2 if isinstance(image.size, int) else image.size or (0, 0)
    if image.mode == "shortest":
        high, wide, height, width = high, high, min(height, width), min(height, width)
    fits = height <= high and width <= wide if image.only_shrink else False
    if image.mode != "none" and (height, width) != (high, wide) and not fits:
        yield f"{width}x{height} px"
