"""`report/`: a page and contact sheets for people, from a manifest and a few records."""

from __future__ import annotations

import glob
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from beam_pipeline.report import sections
from imageshards import storage
from imageshards.errors import OutputError
from imageshards.manifest import write_whole
from imageshards.page.html import Markup, escape, page, section
from imageshards.page.style import STYLE

REPORT_NAME = "report"
PAGE_NAME = "index.html"

_SHEET_NAME = "contact_sheet-{}.png"
_EXAMPLES_PER_REASON = 3
_MAX_REJECTS_READ = 20_000


def write_report(directory: str, manifest: Mapping[str, Any]) -> list[str]:
    """Writes `directory/report/` and returns the paths of its files.

    Reads the first records of evenly spaced shards and the list of rejects, nothing else;
    the same data set always gives the same page.

    Args:
        directory: The data set; its shards are in place.
        manifest: What manifest.json holds or will hold.

    Raises:
        OutputError: The folder cannot be written.
    """
    folder = storage.join(directory, REPORT_NAME)
    try:
        if storage.is_local(directory):
            return _write_files(directory, folder, manifest)
        with tempfile.TemporaryDirectory(prefix="imageshards-") as local:
            paths = _write_files(directory, local, manifest)
            return _upload(paths, folder)
    except OSError as e:
        raise OutputError(
            f"{folder} could not be written ({e.strerror or e}); expected a folder with room and "
            "write permission."
        ) from e


def _write_files(directory: str, folder: str, manifest: Mapping[str, Any]) -> list[str]:
    """Writes the report of a data set into a folder of this machine."""
    os.makedirs(folder, exist_ok=True)
    for old in glob.glob(os.path.join(glob.escape(folder), _SHEET_NAME.format("*"))):
        os.remove(old)
    paths, sheets = _write_sheets(directory, folder, manifest)
    path = os.path.join(folder, PAGE_NAME)
    title = os.path.abspath(directory) if storage.is_local(directory) else directory
    title = os.path.basename(title)
    write_whole(path, page_of(title, manifest, sheets, _reject_examples(directory)))
    return [path, *paths]


def _upload(paths: list[str], folder: str) -> list[str]:
    """Puts a report into a store, in place of an earlier one."""
    placed = [storage.join(folder, os.path.basename(path)) for path in paths]
    for path, place in zip(paths, placed, strict=True):
        storage.upload(path, place)
    storage.delete(e.path for e in storage.list_folder(folder) if e.path not in placed)
    return placed


def page_of(
    title: str,
    manifest: Mapping[str, Any],
    sheets: str,
    rejects: Mapping[str, Sequence[Mapping[str, Any]]],
) -> str:
    """The page as one HTML document without outside resources.

    Args:
        title: Its heading.
        manifest: The manifest.
        sheets: The contact sheets, as HTML.
        rejects: Reason → a few lines of rejects.jsonl.
    """
    parts = {
        "splits": ("Splits", sections.splits_table(manifest)),
        "pictures": ("Pictures", Markup(sheets)),
        "classes": ("Classes", sections.classes_part(manifest)),
        "sources": ("Originals", sections.sources_part(manifest)),
        "shards": ("Shards", sections.shards_part(manifest)),
        "rejects": ("Rejects", sections.rejects_part(manifest, rejects)),
        "made": ("How it was made", sections.made_part(manifest)),
    }
    links = {name: heading for name, (heading, content) in parts.items() if content}
    footer = Markup(
        "<footer>Every record can be checked again with <code>python -m beam_pipeline.verify "
        f"{escape(title)}</code>.</footer>\n"
    )
    return page(
        f"{title} – data set report",
        STYLE,
        sections.header(title, manifest, links),
        "<main>\n",
        *(section(name, heading, content) for name, (heading, content) in parts.items()),
        "</main>\n",
        footer,
    )


def _write_sheets(
    directory: str, folder: str, manifest: Mapping[str, Any]
) -> tuple[list[str], str]:
    from beam_pipeline.report.sheets import sheet_of, thumbs_of

    paths, markup = [], []
    for name, split in manifest["splits"].items():
        compression = manifest.get("compression", "none")
        thumbs, missing = thumbs_of(directory, split["shards"], compression)
        if not thumbs and not missing:
            continue
        file = _SHEET_NAME.format(name)
        if thumbs:
            paths.append(os.path.join(folder, file))
            # Photos hardly shrink further, at any level.
            sheet_of(thumbs).save(paths[-1], compress_level=1)
        markup.append(sections.contact_sheet(name, thumbs, missing, file))
    return paths, "".join(markup)


def _reject_examples(directory: str) -> dict[str, list[dict[str, Any]]]:
    examples: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    path = storage.join(directory, "quarantine", "rejects.jsonl")
    try:
        with storage.open_read(path) as file:
            for _, line in zip(range(_MAX_REJECTS_READ), file, strict=False):
                reject = json.loads(line)
                if len(examples[reject["reason"]]) < _EXAMPLES_PER_REASON:
                    examples[reject["reason"]].append(reject)
    except (OSError, ValueError, KeyError, TypeError):
        return dict(examples)  # The page shows what there is; verify says what is missing.
    return dict(examples)
