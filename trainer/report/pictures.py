"""Reads single records again, for their picture, source file and texts."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from imageshards.example import Values, decode_example
from imageshards.page import thumbnail
from imageshards.tfrecord import Record, scan_file
from trainer.dataset.spec import DataSet, Subset

if TYPE_CHECKING:
    from PIL import Image

THUMB_PX = 224
_MAX_TEXT = 200
# Texts that the builder writes for every picture, which say nothing of what it shows.
_OWN_TEXTS = {
    "image/class/text",
    "image/colorspace",
    "image/filename",
    "image/format",
    "image/key/sha256",
}


class Source(NamedTuple):
    """One record.

    Attributes:
        shard: Name of its file.
        number: Of the record within it, from 0.
        filename: The file the picture was made from; None where unknown.
        texts: Other texts in the record, by feature.
        thumb: A small picture; None where it cannot be shown.
    """

    shard: str
    number: int
    filename: str | None
    texts: Mapping[str, str]
    thumb: Image.Image | None


def look_up(subset: Subset, records: Collection[int]) -> dict[int, Source]:
    """Reads records again, by their numbers within the split.

    Each shard is read only as far as its last wanted record. What cannot be read any more
    is left out.

    Args:
        subset: Says which split.
        records: Numbers as in `Evaluation.record`.
    """
    starts, shards = subset.split.starts, subset.split.shards
    wanted: defaultdict[int, set[int]] = defaultdict(set)
    for record in records:
        index = bisect_right(starts, record) - 1
        wanted[index].add(int(record) - starts[index])
    found: dict[int, Source] = {}
    for index, numbers in sorted(wanted.items()):
        path = shards[index].path
        try:
            payloads = _payloads(path, numbers)
        except OSError:
            continue
        for number, payload in payloads.items():
            source = _source(subset.dataset, os.path.basename(path), number, payload)
            if source is not None:
                found[starts[index] + number] = source
    return found


def _payloads(path: str, numbers: Collection[int]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for record in scan_file(path):
        if isinstance(record, Record) and record.number in numbers:
            found[record.number] = record.payload
        if record.number >= max(numbers):
            break
    return found


def _source(dataset: DataSet, shard: str, number: int, payload: bytes) -> Source | None:
    texts = {
        name
        for name, spec in dataset.features.items()
        if spec.dtype == "string" and name not in _OWN_TEXTS and name != dataset.image_feature
    }
    filename = dataset.filename_feature
    wanted = {dataset.image_feature, *texts} | ({filename} if filename else set())
    try:
        features = decode_example(payload, wanted)
    except ValueError:
        return None
    return Source(
        shard,
        number,
        _text(features.get(filename)) if filename else None,
        {name: text for name in sorted(texts - {filename}) if (text := _text(features.get(name)))},
        _thumb(features.get(dataset.image_feature)),
    )


def _text(values: Values | None) -> str | None:
    """All texts of a feature on one line; None where there are none, or they are no texts."""
    parts = [value for value in values or () if isinstance(value, bytes)]
    # Serialized masks or arrays are kept in strings, too.
    if not parts or any(b"\0" in part for part in parts):
        return None
    text = " | ".join(
        " ".join(part[: 4 * _MAX_TEXT].decode("utf-8", "replace").split()) for part in parts
    )
    return text[:_MAX_TEXT] + "…" if len(text) > _MAX_TEXT else text


def _thumb(values: Values | None) -> Image.Image | None:
    encoded = values[0] if values else None
    return thumbnail(encoded, THUMB_PX) if isinstance(encoded, bytes) else None
