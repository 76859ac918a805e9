"""Implements `imageshards report DIR` and `imageshards.report`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from imageshards import storage
from imageshards.commands import command_line
from imageshards.commands.command_line import Parser
from imageshards.commands.output_folder import check_no_links
from imageshards.manifest import REPORT_NAME
from imageshards.progress import ProgressLine
from imageshards.reporting.page import write_report


def make_parser() -> Parser:
    """Returns the parser of `imageshards report`."""
    return command_line.dataset_parser(
        "report",
        "Draws DIR/report/index.html again, a page with the contact sheets, classes, balance and "
        "rejects of a dataset.",
        "Exit code: 0 the report was written, 2 the report could not be written.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""

    def body() -> int:
        args = make_parser().parse_args(argv)
        print(f"wrote {report(args.directory, args.records_root)}")
        return 0

    return command_line.run("imageshards report", body)


def report(path: str | os.PathLike[str], records_root: str | os.PathLike[str] | None = None) -> str:
    """Writes the report of a dataset into its folder, like `imageshards report`.

    Args:
        path: The dataset, local or in a store.
        records_root: A place in which the manifest of an adopted dataset may name shards.

    Returns:
        The path of the page.

    Raises:
        UserError: There is no dataset, or the report cannot be written.
    """
    directory, manifest = command_line.open_dataset(path, records_root)
    check_no_links("DIR", directory, REPORT_NAME)
    storage.delete_unfinished(directory, REPORT_NAME)
    with ProgressLine(lambda: "drawing the report"):
        return write_report(directory, manifest, "DIR")
