"""Reads single records again, for their picture and source file."""

from __future__ import annotations

import contextlib
import itertools
import os
from bisect import bisect_right
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from imageshards.example import decode_example
from imageshards.page import thumbnail
from imageshards.tfrecord import Record, scan_file
from trainer.dataset.spec import DataSet, Subset

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

    Each shard is read only as far as its last wanted record. What cannot be read any more
    is left out.
    """
    starts = subset.split.starts
    found: dict[int, Source] = {}
    by_shard = itertools.groupby(sorted(records), lambda number: bisect_right(starts, number) - 1)
    for index, numbers in by_shard:
        path = subset.split.shards[index].path
        wanted = {number - starts[index]: number for number in numbers}
        # A picture may be missing on the page, for whatever reason: ValueError is no Example.
        with contextlib.suppress(OSError):
            for record in itertools.islice(scan_file(path), max(wanted) + 1):
                if isinstance(record, Record) and record.number in wanted:
                    with contextlib.suppress(ValueError):
                        found[wanted[record.number]] = _source(subset.dataset, path, record)
    return found


def _source(dataset: DataSet, path: str, record: Record) -> Source:
    names = (dataset.image_feature, dataset.filename_feature or "")
    features = decode_example(record.payload, names)
    encoded, filename = ((features.get(name) or [b""])[0] for name in names)
    return Source(
        os.path.basename(path),
        record.number,
        filename.decode("utf-8", "replace") if isinstance(filename, bytes) else "",
        thumbnail(encoded, THUMB_PX) if isinstance(encoded, bytes) else None,
    )
