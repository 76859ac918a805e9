"""`python -m beam_pipeline.inspect DIR`: writes the report and prints a short table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from imageshards.errors import UserError


def summary_text(manifest: Mapping[str, Any]) -> str:
    """A table of splits, then classes and rejects, for a terminal."""
    rows = [("split", "shards", "records", "min/shard", "max/shard", "MB")]
    for name, split in manifest["splits"].items():
        counts = [shard["num_records"] for shard in split["shards"]] or [0]
        megabytes = sum(shard["num_bytes"] for shard in split["shards"]) / 1e6
        numbers = (len(split["shards"]), split["num_records"], min(counts), max(counts))
        rows.append((name, *(f"{n:,}" for n in numbers), f"{megabytes:,.1f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    rejected = sum(manifest["rejects"].values())
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in manifest["rejects"].items())
    lines.append(f"classes  {len(manifest['classes']):,}")
    lines.append(f"listed   {manifest['listed']:,}")
    lines.append(f"rejects  {rejected:,}" + (f" ({reasons})" if reasons else ""))
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m beam_pipeline.inspect",
        description="Writes DIR/report/: a page with contact sheets, histograms, balance and "
        "rejects of a data set, to be opened in a browser.",
        epilog="Exit code: 0 the report was written, 2 it could not be.",
    )
    parser.add_argument(
        "directory", metavar="DIR", help="what a build wrote: a folder, gs:// or s3://"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    args = _parser().parse_args(argv)
    from beam_pipeline.report.page import write_report
    from imageshards import storage
    from imageshards.manifest import load_manifest

    directory = args.directory
    directory = directory if storage.is_local(directory) else directory.rstrip("/")
    try:
        storage.check_bucket(directory, "DIR")
        manifest = load_manifest(directory)
        paths = write_report(directory, manifest)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    print(summary_text(manifest))
    print("\nwrote", *paths, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
