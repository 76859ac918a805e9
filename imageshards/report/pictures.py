"""A few records of evenly spaced shards, as small pictures."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imageshards import storage
from imageshards.example import Values, decode_example
from imageshards.page import thumbnail
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
    """How many records to take from the start of every shard: evenly spaced, evenly many.

    Args:
        counts: Records per shard.
        wanted: Records in all.
    """
    taken = [0] * len(counts)
    left = min(wanted, sum(counts))
    while left:
        open_shards = [i for i, count in enumerate(counts) if taken[i] < count]
        chosen = min(left, len(open_shards))
        for i in range(chosen):
            taken[open_shards[(2 * i + 1) * len(open_shards) // (2 * chosen)]] += 1
        left -= chosen
    return taken


def thumbs_of(directory: str, shards: Sequence[Mapping[str, Any]]) -> tuple[list[Thumb], int]:
    """Pictures of one split, and how many could not be read.

    Args:
        directory: The data set.
        shards: The split's entries of the manifest.
    """
    wanted = quotas([shard["num_records"] for shard in shards], MAX_PICTURES)
    asked = [
        (storage.join(directory, shard["file"]), count, _mean_bytes(shard))
        for shard, count in zip(shards, wanted, strict=True)
        if count
    ]
    # A store is asked for several shards at once.
    some = map if storage.is_local(directory) else map_concurrently
    thumbs = [thumb for found in some(_thumbs_in, asked) for thumb in found]
    return thumbs, sum(wanted) - len(thumbs)


def _mean_bytes(shard: Mapping[str, Any]) -> int:
    return int(shard["num_bytes"] // max(1, shard["num_records"]))


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


def _thumbs_in(asked: tuple[str, int, int]) -> list[Thumb]:
    return list(_thumbs(*asked))


def _thumbs(path: str, count: int, mean_bytes: int) -> Iterator[Thumb]:
    try:
        for record in _first_records(path, count, mean_bytes):
            features = decode_example(record.payload)
            picture = thumbnail(_first(features, "image/encoded"), THUMB_PX)
            if picture is None:
                continue
            label, key = (
                _first(features, name).decode("utf-8", "replace")
                for name in ("image/class/text", "image/filename")
            )
            yield Thumb(picture, label, key)
    except (OSError, RecordError, ValueError):
        return  # Counted by the caller; what is wrong is for verify to say.


def _first(features: Mapping[str, Values], name: str) -> bytes:
    value = features.get(name) or [b""]
    return value[0] if isinstance(value[0], bytes) else b""
