"""Draws the page of duplicates: pairs side by side, the worst pairs first."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageshards.deduplication.twins import Twin
from imageshards.example import decode_record
from imageshards.manifest import Manifest, shard_path
from imageshards.page import number, render, share, thumbnail
from imageshards.storage import map_concurrently
from imageshards.tfrecord import RecordError, read_record

if TYPE_CHECKING:
    from PIL import Image

MAX_SHOWN = 120  # pairs between splits, and as many within splits
_THUMB_PX = 160


def page_of(
    directory: str,
    manifest: Manifest,
    twins: Sequence[Twin],
    found: Mapping[str, Any],
    exclude: str,
) -> str:
    """Returns the page as one HTML document without outside resources.

    Args:
        directory, manifest: The dataset.
        twins: The duplicates, worst first.
        found: The content of duplicates.json.
        exclude: The path of the file with the keys of images that should go.
    """
    between = [twin for twin in twins if twin.splits[0] != twin.splits[1]]
    within = [twin for twin in twins if twin.splits[0] == twin.splits[1]]
    mixed = sum(not twin.same_class for twin in twins)
    return render(
        "imageshards.deduplication",
        "page.jinja",
        title=os.path.basename(directory),
        tiles=[
            ("Images", number(found["num_records"]), ""),
            ("Duplicates", number(len(twins)), share(len(twins), found["num_records"])),
            ("Same file", number(found["exact"]), "byte for byte"),
            ("Near", number(found["near"]), "look alike"),
            ("Between splits", number(len(between)), "leaks"),
            ("Of two classes", number(mixed), "labels to check"),
        ],
        counts=[
            (one["other"], one["kept"], number(one["exact"]), number(one["near"]))
            for one in found["splits"]
        ],
        between=_with_pictures(between[:MAX_SHOWN], directory, manifest),
        within=_with_pictures(within[:MAX_SHOWN], directory, manifest),
        num_between=len(between),
        num_within=len(within),
        distance=found["distance"],
        exclude=exclude,
    )


def _with_pictures(
    twins: Sequence[Twin], directory: str, manifest: Manifest
) -> list[tuple[Twin, Image.Image | None, Image.Image | None]]:
    """Returns each twin with the pictures of the image that stays and of the image that goes."""
    image = manifest.roles.image or ""

    def picture(row: Mapping[str, Any]) -> Image.Image | None:
        try:
            path, begin = shard_path(directory, row["shard"]), row["offset"]
            record = read_record(path, row["record"], begin, begin + row["num_bytes"])
            encoded = decode_record(path, record, [image])[image][0]
        except (LookupError, OSError, RecordError):
            return None  # `imageshards verify` reports the damage.
        return thumbnail(encoded, _THUMB_PX) if isinstance(encoded, bytes) else None

    # One pass of threads reads the pictures of both images of all twins.
    rows = [row for twin in twins for row in (twin.kept, twin.other)]
    found = list(map_concurrently(picture, rows))
    return list(zip(twins, found[::2], found[1::2], strict=True))
