"""Writes `report/`, a page for people, from a manifest and a few records."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from imageshards import storage
from imageshards.commands.output_folder import write_page
from imageshards.errors import IndexDamageError, OutputError
from imageshards.example import decode_example
from imageshards.index import index_schema, read_shard_index
from imageshards.manifest import REPORT_NAME, Manifest, Shard
from imageshards.manifest.file import Reject, read_rejects, shard_path
from imageshards.page import draw_boxes, record_boxes, render, thumbnail
from imageshards.reporting import sections
from imageshards.tfrecord import RecordError, read_records

if TYPE_CHECKING:
    from PIL import Image

_LOGGER = logging.getLogger(__name__)

MAX_PICTURES = 64
THUMB_PX = 128
_EXAMPLES_PER_REASON = 3
_MAX_REJECTS_READ = 20_000


class Thumb(NamedTuple):
    """A small RGB picture, at most `THUMB_PX` wide and high, with its label and key."""

    picture: Image.Image
    label: str
    key: str


def write_report(directory: str, manifest: Manifest, argument: str = "output") -> str:
    """Writes the page of a dataset in `directory/report/` and returns its path.

    The page shows the first records of evenly spaced shards, so equal datasets give equal pages.
    Errors name the `argument` that received the directory.

    Raises:
        OutputError: The folder cannot be written.
    """
    sheets = {
        name: thumbs_of(directory, manifest, split.shards)
        for name, split in manifest.splits.items()
    }
    examples: defaultdict[str, list[Reject]] = defaultdict(list)
    # The page shows the readable examples; `imageshards verify` reports the damage.
    with contextlib.suppress(OSError, ValueError):
        for reject in itertools.islice(read_rejects(directory), _MAX_REJECTS_READ):
            if len(examples[reject.reason]) < _EXAMPLES_PER_REASON:
                examples[reject.reason].append(reject)
    page = page_of(storage.name_of(directory), manifest, sheets, examples)
    return write_page(storage.join(directory, REPORT_NAME), page, argument)


def try_report(directory: str, manifest: Manifest) -> None:
    """Writes the report of a finished dataset; an error becomes a warning."""
    try:
        write_report(directory, manifest)
    except Exception as e:
        # The build has succeeded: no fault of the report may make its exit code an error.
        _LOGGER.warning(
            "the dataset in %s is complete, but its report could not be drawn (%s); for another "
            "attempt: imageshards report %s",
            directory, e, directory, exc_info=not isinstance(e, OutputError),
        )  # fmt: skip


def page_of(
    title: str,
    manifest: Manifest,
    sheets: Mapping[str, tuple[Sequence[Thumb], int]],
    rejects: Mapping[str, Sequence[Reject]],
) -> str:
    """Returns the page as one HTML document.

    `sheets` maps each split to pictures and the number of pictures that could not be read, and
    `rejects` maps each reason to a few examples.
    """
    return render(
        "imageshards.reporting",
        "page.jinja",
        title=title,
        tiles=sections.tiles(manifest),
        warnings=manifest.warnings,
        splits=sections.splits(manifest),
        even=sections.is_even(manifest),
        copies=manifest.copies,
        sheets=sheets,
        classes=sections.classes(manifest),
        source=sections.source(manifest),
        rejects=manifest.rejects,
        reject_examples=rejects,
        image=sections.values_as_text(msgspec.to_builtins(manifest.image)),
        origin=sections.values_as_text(
            {"format_version": manifest.format_version, "fingerprint": manifest.fingerprint}
            | manifest.versions
        ),
        options=sections.values_as_text(manifest.options),
    )


def quotas(counts: Sequence[int], wanted: int) -> list[int]:
    """Returns how many of the `wanted` records to take from each shard, evenly spread.

    `counts` holds the number of records of each shard.
    """
    # Evenly spaced shards come first. Each turn takes one record of each shard that has more.
    step = max(1, len(counts) // max(1, wanted))
    order = sorted(range(len(counts)), key=lambda number: number % step)
    turns = (number for turn in range(wanted) for number in order if counts[number] > turn)
    taken = Counter(itertools.islice(turns, wanted))
    return [taken[number] for number in range(len(counts))]


def thumbs_of(
    directory: str, manifest: Manifest, shards: Sequence[Shard]
) -> tuple[list[Thumb], int]:
    """Returns pictures of some shards of a split, and how many could not be read."""
    wanted = quotas([shard.num_records for shard in shards], MAX_PICTURES)
    asked = [(shard, count) for shard, count in zip(shards, wanted, strict=True) if count]
    found = storage.map_concurrently(lambda each: list(_thumbs(directory, manifest, *each)), asked)
    thumbs = [thumb for of_shard in found for thumb in of_shard]
    return thumbs, sum(wanted) - len(thumbs)


def _thumbs(directory: str, manifest: Manifest, shard: Shard, count: int) -> Iterator[Thumb]:
    schema = index_schema({}, manifest.label, ("key", "class_name"))
    try:
        rows = read_shard_index(directory, shard, schema).slice(0, count).to_pylist()
        # `zip` asks the rows first, so no further record is read.
        records = zip(rows, read_records(shard_path(directory, shard.name)), strict=False)
        for row, record in records:
            features = decode_example(record.payload)
            picture = thumbnail(next(iter(features.get(manifest.roles.image, ())), None), THUMB_PX)
            if picture is not None:
                drawn = draw_boxes(picture, record_boxes(features))
                # Without labels the caption is the name of the file.
                label = row.get("class_name", row["key"].rpartition("/")[2])
                caption = label if isinstance(label, str) else ", ".join(label) or "no label"
                yield Thumb(drawn, caption, row["key"])
    except (IndexDamageError, OSError, RecordError, ValueError):
        return  # The caller counts missing pictures; `imageshards verify` reports the damage.
