"""A few records of evenly spaced shards, as small pictures."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from imageshards import storage
from imageshards.example import Values, decode_example
from imageshards.manifest import (
    ONE,
    SEVERAL,
    Manifest,
    Shard,
    shard_path,
)
from imageshards.page import draw_boxes, record_boxes, thumbnail
from imageshards.storage import map_concurrently
from imageshards.tfrecord import Record, RecordError, read_records, scan_records

if TYPE_CHECKING:
    from PIL import Image

MAX_PICTURES = 64
THUMB_PX = 128


class Thumb(NamedTuple):
    """A small picture: RGB, at most `THUMB_PX` on both sides."""

    picture: Image.Image
    label: str
    key: str


def quotas(counts: Sequence[int], wanted: int) -> list[int]:
    """How many records to take from the start of every shard: evenly spaced, evenly many."""
    taken = [0] * len(counts)
    left = min(wanted, sum(counts))
    while left:
        open_shards = [i for i, count in enumerate(counts) if taken[i] < count]
        chosen = min(left, len(open_shards))
        for i in range(chosen):
            taken[open_shards[(2 * i + 1) * len(open_shards) // (2 * chosen)]] += 1
        left -= chosen
    return taken


def thumbs_of(
    directory: str, manifest: Manifest, shards: Sequence[Shard]
) -> tuple[list[Thumb], int]:
    """Pictures of some shards of a split, and how many could not be read."""
    wanted = quotas([shard.num_records for shard in shards], MAX_PICTURES)
    asked = [(shard, count) for shard, count in zip(shards, wanted, strict=True) if count]
    # A store is asked for several shards at once.
    some = map if storage.is_local(directory) else map_concurrently
    found = some(lambda each: list(_thumbs(directory, manifest, *each)), asked)
    thumbs = [thumb for of_shard in found for thumb in of_shard]
    return thumbs, sum(wanted) - len(thumbs)


def _first_records(path: str, count: int, mean_bytes: int) -> Iterator[Record]:
    """The first records of a shard; of one in a store, hardly more than these is read."""
    if not storage.is_local(path):
        head = io.BytesIO(storage.read(path, 2 * count * mean_bytes + (64 << 10)))
        found = list(itertools.islice(scan_records(head, path), count))
        whole = [record for record in found if isinstance(record, Record)]
        if len(whole) == count:
            yield from whole
            return
    yield from itertools.islice(read_records(path), count)


def _thumbs(directory: str, manifest: Manifest, shard: Shard, count: int) -> Iterator[Thumb]:
    roles = manifest.roles
    mean_bytes = int(shard.num_bytes // max(1, shard.num_records))
    try:
        for record in _first_records(shard_path(directory, shard.name), count, mean_bytes):
            features = decode_example(record.payload)
            encoded = (features.get(roles.image or "") or [b""])[0]
            picture = thumbnail(encoded, THUMB_PX) if isinstance(encoded, bytes) else None
            if picture is not None:
                key = _text(features, roles.filename)
                drawn = draw_boxes(picture, record_boxes(features))
                yield Thumb(drawn, _caption(features, manifest, key), key)
    except (OSError, RecordError, ValueError):
        return  # Counted by the caller; what is wrong is for verify to say.


def _caption(features: Mapping[str, Values], manifest: Manifest, key: str) -> str:
    """The name of a record's class, or of several; without labels that of its file."""
    roles, has = manifest.roles, manifest.label
    if hot := manifest.hot_features:
        values = [value for name in hot for value in features.get(name, ())]
        found = zip(manifest.classes, values, strict=False)
        return ", ".join(name for name, value in found if value) or "no label"
    if has != ONE:
        names = ", ".join(_texts(features, roles.text))
        return names or "no label" if has == SEVERAL else key.rpartition("/")[2]
    # Others write ids, or names themselves.
    said, classes = _text(features, roles.label), manifest.classes
    number = int(said) - (manifest.first_label or 0) if said.isdecimal() else -1
    return classes[number] if 0 <= number < len(classes) else said


def _text(features: Mapping[str, Values], name: str | None) -> str:
    return next(iter(_texts(features, name)), "")


def _texts(features: Mapping[str, Values], name: str | None) -> list[str]:
    values = features.get(name or "", ())
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values]
