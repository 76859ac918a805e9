"""Reads single records again, for their picture and source file."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from imageshards.errors import UserError
from imageshards.page import thumbnail
from imageshards.tfrecord import RecordError
from trainer.dataset.source import RecordSource
from trainer.dataset.spec import Subset

if TYPE_CHECKING:
    from PIL import Image

THUMB_PX = 224


class Source(NamedTuple):
    """One record: its shard's file, its number within it, the file that it was made from, "" where
    unknown, and a small picture, None where it cannot be shown.
    """

    shard: str
    number: int
    filename: str
    thumb: Image.Image | None


def look_up(subset: Subset, records: Collection[int]) -> dict[int, Source]:
    """Reads records again, by their numbers within the split as in `Evaluation.record`.

    What cannot be read any more is left out, and all of it where the index is damaged.
    """
    dataset, split = subset.dataset, subset.split
    names = [name for name in (dataset.image_feature, dataset.filename_feature) if name]
    found: dict[int, Source] = {}
    try:
        source = RecordSource(dataset, split, names)
    except UserError:
        return found
    for number in records:
        with contextlib.suppress(OSError, RecordError):
            encoded, filename = [*source[number].values(), b""][:2]
            shard = bisect_right(split.starts, number) - 1
            found[number] = Source(
                os.path.basename(split.shards[shard].path),
                number - split.starts[shard],
                filename.decode("utf-8", "replace") if isinstance(filename, bytes) else "",
                thumbnail(encoded, THUMB_PX) if isinstance(encoded, bytes) else None,
            )
    return found
