"""`report/`: a page and contact sheets for people, from a manifest and a few records."""

from __future__ import annotations

import io
import itertools
import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from imageshards import storage
from imageshards.errors import OutputError
from imageshards.manifest import PAGE_NAME, REPORT_NAME, read_rejects
from imageshards.page import contact_sheet, render
from imageshards.reporting import sections
from imageshards.reporting.pictures import THUMB_PX, Thumb, thumbs_of

_LOGGER = logging.getLogger(__name__)

_SHEET_NAME = "contact_sheet-{}.png"
_EXAMPLES_PER_REASON = 3
_MAX_REJECTS_READ = 20_000


class Sheet(NamedTuple):
    """Pictures of one split, their contact sheet if there are some, and how many are missing."""

    split: str
    file: str
    thumbs: Sequence[Thumb]
    missing: int


def write_report(directory: str, manifest: Mapping[str, Any]) -> list[str]:
    """Writes `directory/report/` and returns the paths of its files.

    Reads the first records of evenly spaced shards and the list of rejects, nothing else;
    the same data set always gives the same page.

    Raises:
        OutputError: The folder cannot be written.
    """
    folder = storage.join(directory, REPORT_NAME)
    try:
        return _write_files(directory, folder, manifest)
    except OSError as e:
        raise OutputError(
            f"{folder} could not be written ({e.strerror or e}); expected a folder with room and "
            "write permission."
        ) from e


def try_report(directory: str, manifest: Mapping[str, Any]) -> None:
    """Writes the report of a data set; what goes wrong is a warning, as the data set is there."""
    try:
        write_report(directory, manifest)
    except Exception as e:
        _LOGGER.warning(
            "the data set in %s is complete, but its report could not be drawn (%s); for another "
            "attempt: imageshards report %s",
            directory, e, directory, exc_info=not isinstance(e, OutputError),
        )  # fmt: skip


def _write_files(directory: str, folder: str, manifest: Mapping[str, Any]) -> list[str]:
    """Writes the report, and removes the contact sheets of an earlier one that are not replaced."""
    paths, sheets = _write_sheets(directory, folder, manifest)
    path = storage.join(folder, PAGE_NAME)
    whole = os.path.abspath(directory) if storage.is_local(directory) else directory
    title = storage.name_of(whole)
    storage.write(path, page_of(title, manifest, sheets, _reject_examples(directory)))
    prefix = _SHEET_NAME.partition("{")[0]
    sheets_there = (e.path for e in storage.list_folder(folder) if e.name.startswith(prefix))
    storage.delete(there for there in sheets_there if there not in paths)
    return [path, *paths]


def page_of(
    title: str,
    manifest: Mapping[str, Any],
    sheets: Sequence[Sheet],
    rejects: Mapping[str, Sequence[Mapping[str, Any]]],
) -> str:
    """The page as one HTML document without outside resources.

    `sheets` are pictures of each split; `rejects` reason → a few lines of rejects.jsonl.
    """
    return render(
        "imageshards.reporting",
        "page.jinja",
        title=title,
        tiles=sections.tiles(manifest),
        warnings=manifest.get("warnings", ()),
        splits=sections.splits(manifest),
        even=sections.is_even(manifest),
        copies=manifest.get("copies"),
        sheets=sheets,
        classes=sections.classes(manifest),
        source=sections.source(manifest),
        rejects=manifest["rejects"],
        reject_examples=rejects,
        image=sections.values_as_text(manifest["image"]),
        origin=sections.values_as_text(sections.origin(manifest)),
        options=sections.values_as_text(manifest.get("options", {})),
    )


def _write_sheets(
    directory: str, folder: str, manifest: Mapping[str, Any]
) -> tuple[list[str], list[Sheet]]:
    """Writes a contact sheet per split that has pictures; returns paths, and what is shown."""
    paths, sheets = [], []
    for name, split in manifest["splits"].items():
        thumbs, missing = thumbs_of(directory, manifest, split["shards"])
        sheets.append(Sheet(name, _SHEET_NAME.format(name), thumbs, missing))
        if thumbs:
            drawn = contact_sheet([t.picture for t in thumbs], [t.label for t in thumbs], THUMB_PX)
            data = io.BytesIO()
            drawn.save(data, "png", compress_level=1)  # photos hardly shrink further, at any level
            paths.append(storage.join(folder, sheets[-1].file))
            storage.write(paths[-1], data.getvalue())
    return paths, sheets


def _reject_examples(directory: str) -> dict[str, list[dict[str, str]]]:
    examples: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    try:
        for reject in itertools.islice(read_rejects(directory), _MAX_REJECTS_READ):
            if len(examples[reject["reason"]]) < _EXAMPLES_PER_REASON:
                examples[reject["reason"]].append(reject)
    except (OSError, ValueError):
        return dict(examples)  # The page shows what there is; verify says what is missing.
    return dict(examples)
