"""`imageshards report DIR`: writes the report."""

from __future__ import annotations

import os
from collections.abc import Sequence

from imageshards.commands import command_line
from imageshards.commands.command_line import Parser
from imageshards.errors import names_arguments


def make_parser() -> Parser:
    """The parser of `imageshards report`."""
    return command_line.dataset_parser(
        "report",
        "Writes DIR/report/index.html: contact sheets, classes, balance and rejects of a data "
        "set, to be opened in a browser.",
        "Exit code: 0 the report was written, 2 it could not be.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""

    def body() -> int:
        args = make_parser().parse_args(argv)
        print(f"wrote {report(args.directory, args.records_root)}")
        return 0

    return command_line.run("imageshards report", body)


@names_arguments(DIR="directory")
def report(
    directory: str | os.PathLike[str], records_root: str | os.PathLike[str] | None = None
) -> str:
    """Draws the report of a dataset into its folder, as `imageshards report` does.

    Args:
        directory: What a build wrote, here or in a store.
        records_root: Where the shards of an adopted dataset may lie besides its own folder.

    Returns:
        The path of its page.

    Raises:
        UserError: There is no dataset, or the report cannot be written.
    """
    from imageshards import storage
    from imageshards.manifest import REPORT_NAME, load_manifest
    from imageshards.progress import ProgressLine
    from imageshards.reporting.page import write_report

    directory = storage.absolute_place("DIR", directory)
    storage.check_bucket(directory, "DIR")
    manifest = load_manifest(
        directory, "DIR", complete=True, adopted=True, records_root=records_root
    )
    storage.delete_unfinished(directory, REPORT_NAME)
    with ProgressLine(lambda: "drawing the report"):
        return write_report(directory, manifest)
