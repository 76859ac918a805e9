"""`report/`: a page for people, from a manifest and a few records."""

from __future__ import annotations

import itertools
import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from imageshards import storage
from imageshards.errors import OutputError
from imageshards.manifest import PAGE_NAME, REPORT_NAME, Manifest, Reject, read_rejects
from imageshards.page import render
from imageshards.reporting import sections
from imageshards.reporting.pictures import Thumb, thumbs_of

_LOGGER = logging.getLogger(__name__)

_EXAMPLES_PER_REASON = 3
_MAX_REJECTS_READ = 20_000


class Sheet(NamedTuple):
    """Pictures of one split, and how many are missing."""

    split: str
    thumbs: Sequence[Thumb]
    missing: int


def write_report(directory: str, manifest: Manifest) -> str:
    """Writes the page in `directory/report/` and returns its path.

    Reads the first records of evenly spaced shards and the list of rejects, nothing else;
    the same dataset always gives the same page.

    Raises:
        OutputError: The folder cannot be written.
    """
    folder = storage.join(directory, REPORT_NAME)
    path = storage.join(folder, PAGE_NAME)
    whole = os.path.abspath(directory) if storage.is_local(directory) else directory
    sheets = [
        Sheet(name, *thumbs_of(directory, manifest, split.shards))
        for name, split in manifest.splits.items()
    ]
    page = page_of(storage.name_of(whole), manifest, sheets, _reject_examples(directory))
    try:
        storage.write(path, page)
    except OSError as e:
        raise OutputError(
            f"{folder} could not be written ({e.strerror or e})",
            expected="a folder with room and write permission",
        ) from e
    return path


def try_report(directory: str, manifest: Manifest) -> None:
    """Writes the report of a dataset; what goes wrong is a warning, as the dataset is there."""
    try:
        write_report(directory, manifest)
    except Exception as e:
        _LOGGER.warning(
            "the dataset in %s is complete, but its report could not be drawn (%s); for another "
            "attempt: imageshards report %s",
            directory, e, directory, exc_info=not isinstance(e, OutputError),
        )  # fmt: skip


def page_of(
    title: str,
    manifest: Manifest,
    sheets: Sequence[Sheet],
    rejects: Mapping[str, Sequence[Reject]],
) -> str:
    """The page as one HTML document without outside resources.

    `sheets` are pictures of each split; `rejects` reason → a few lines of rejects.jsonl.
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
        origin=sections.values_as_text(sections.origin(manifest)),
        options=sections.values_as_text(manifest.options),
    )


def _reject_examples(directory: str) -> dict[str, list[Reject]]:
    examples: defaultdict[str, list[Reject]] = defaultdict(list)
    try:
        for reject in itertools.islice(read_rejects(directory), _MAX_REJECTS_READ):
            if len(examples[reject.reason]) < _EXAMPLES_PER_REASON:
                examples[reject.reason].append(reject)
    except (OSError, ValueError):
        return dict(examples)  # The page shows what there is; verify says what is missing.
    return dict(examples)
