"""`imageshards report DIR`: writes the report and prints the table of splits."""

from __future__ import annotations

from collections.abc import Sequence

from imageshards.commands import command_line
from imageshards.commands.command_line import Parser, parse_path


def make_parser() -> Parser:
    """The parser of `imageshards report`."""
    return command_line.data_set_parser(
        "report",
        "Writes DIR/report/: a page with contact sheets, histograms, balance and rejects of a data "
        "set, to be opened in a browser.",
        "Exit code: 0 the report was written, 2 it could not be.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return command_line.run(
        "imageshards report", lambda: _report(make_parser().parse_args(argv).directory)
    )


def _report(directory: str) -> int:
    from imageshards import storage
    from imageshards.manifest import load_manifest
    from imageshards.progress import ProgressLine
    from imageshards.report.page import write_report
    from imageshards.report.sections import split_table

    directory = parse_path("DIR", directory)
    storage.check_bucket(directory, "DIR")
    manifest = load_manifest(directory, "DIR", complete=True, adopted=True)
    with ProgressLine(lambda: "drawing the report", "drawing the report"):
        paths = write_report(directory, manifest)
    print(split_table(manifest))
    print("\nwrote", *paths, sep="\n  ")
    return 0
