"""What a person sees while a build runs, and when it has ended."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from beam_pipeline.shards.process_pool import LocalPool

_LINE_SECONDS = 0.5
_LOG_SECONDS = 10.0
_PLANNING = "listing and planning ..."


class ProgressLine:
    """A line that renews itself on a terminal, plain lines elsewhere; on standard error.

    Args:
        line: Says how far a job is; empty for nothing to say.
    """

    def __init__(self, line: Callable[[], str]):
        self._line = line
        self._out = _own_stderr()
        self._live = self._out.isatty()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ProgressLine:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2)
        if self._live:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def say(self, sentence: str) -> None:
        """Prints a line of its own."""
        clear = "\r\x1b[K" if self._live else ""
        self._out.write(f"{clear}{sentence}\n")
        self._out.flush()

    def _run(self) -> None:
        while not self._stop.wait(_LINE_SECONDS if self._live else _LOG_SECONDS):
            line = self._line() or (_PLANNING if self._live else "")
            if line and self._live:
                self._out.write(f"\r\x1b[K{line}")
                self._out.flush()
            elif line:
                self.say(line)


class PoolProgress:
    """How far the processes of this machine are."""

    def __init__(self, pool: LocalPool):
        self._pool = pool
        self._begun: float | None = None

    def line(self) -> str:
        """Empty until the shards are planned."""
        images, size_bytes, rejects, before = self._pool.progress()
        if not self._pool.total:
            return ""
        now = time.monotonic()
        if self._begun is None and images > before:
            self._begun = now
        seconds = now - (self._begun or now)
        return progress_line(images, self._pool.total, size_bytes, rejects, before, seconds)


def _own_stderr() -> TextIO:
    """Standard error by a descriptor of its own: that of the process is turned aside at times."""
    try:
        return os.fdopen(os.dup(sys.stderr.fileno()), "w", errors="backslashreplace")
    except (OSError, ValueError):  # replaced by something that is no file
        return sys.stderr


def progress_line(
    images: int, total: int, size_bytes: int, rejects: int, before: int, seconds: float
) -> str:
    """`1,200/1,399 images  380 images/s  9.1 MB/s  0 rejects  ETA 0:01`.

    Args:
        images: Images done, those of earlier runs included.
        total: Images to do.
        size_bytes: Bytes of originals read.
        rejects: Images rejected.
        before: Images done by earlier runs.
        seconds: Since the first image.
    """
    line = f"{images:,}/{total:,} images"
    rate = (images - before) / seconds if seconds > 0 else 0.0
    if rate > 0:
        line += f"  {rate:,.0f} images/s  {size_bytes / 1e6 / seconds:.1f} MB/s"
    line += f"  {rejects:,} rejects"
    if rate > 0:
        minutes, secs = divmod(round(max(0, total - images) / rate), 60)
        hours, minutes = divmod(minutes, 60)
        line += (
            f"  ETA {hours}:{minutes:02d}:{secs:02d}" if hours else f"  ETA {minutes}:{secs:02d}"
        )
    return line


def table(header: list[str], rows: list[list[str]]) -> str:
    """Aligned columns: the first to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: list[str]) -> str:
        cells = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), line(["-" * w for w in widths]), *map(line, rows)])


def final_table(manifest: Mapping[str, Any], seconds: float, reused: int) -> str:
    """What was built: splits, shards, records, balance, bytes, rejects, speed."""
    rows = []
    for name, split in manifest["splits"].items():
        counts = [shard["num_records"] for shard in split["shards"]]
        size = sum(shard["num_bytes"] for shard in split["shards"])
        rows.append(
            [name, f"{len(counts)}", f"{split['num_records']:,}", str(min(counts)),
             str(max(counts)), f"{size / 1e6:,.1f}"]
        )  # fmt: skip
    lines = [table(["split", "shards", "records", "min/shard", "max/shard", "MB"], rows)]
    listed = manifest["listed"]
    rejects = manifest["rejects"]
    lines.append(
        f"{listed:,} images listed, {sum(rejects.values()):,} rejected" + _reasons(rejects)
    )
    if manifest["skipped"]:
        total = sum(manifest["skipped"].values())
        lines.append(f"{total:,} files passed over" + _reasons(manifest["skipped"]))
    if reused:
        lines.append(f"{reused:,} images were finished by an earlier run")
    rate = (listed - reused) / seconds if seconds > 0 else 0.0
    lines.append(f"{seconds:.1f} s, {rate:,.0f} images/s with start-up")
    return "\n".join(lines)


def _reasons(counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    return " (" + ", ".join(f"{reason} {count:,}" for reason, count in counts.items()) + ")"


def plan_table(summary: Mapping[str, Any]) -> str:
    """What --plan_only found."""
    rows = [
        [split, f"{found['shards']}", f"{found['images']:,}", f"{found['min']}", f"{found['max']}",
         f"{found['bytes'] / 1e6:,.1f}"]
        for split, found in summary["splits"].items()
    ]  # fmt: skip
    lines = [table(["split", "shards", "images", "min/shard", "max/shard", "estimated MB"], rows)]
    classes = summary["classes"]
    shown = ", ".join(f"{name} {count:,}" for name, count in list(classes.items())[:20])
    more = f", and {len(classes) - 20} more" if len(classes) > 20 else ""
    lines.append(f"{len(classes)} classes: {shown}{more}")
    if summary["skipped"]:
        lines.append("files passed over" + _reasons(summary["skipped"]))
    lines.append(
        f"a sample of {summary['sample']} images: {summary['sample_rejects']} rejected, "
        f"{summary['msec_per_image']:.1f} ms and {summary['bytes_per_record']:,.0f} bytes per "
        f"record; about {summary['seconds']:,.0f} s on {summary['workers']} cores"
    )
    lines.append("nothing was written")
    return "\n".join(lines)
