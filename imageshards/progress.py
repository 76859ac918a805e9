"""Shows progress: a line that renews itself on a terminal, and tables of results."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

from imageshards.text import LINE_CHARACTERS, LastingStream, counted, shortened, visible

_T = TypeVar("_T")

_LINE_SECONDS = 0.5
_LOG_SECONDS = 10.0
_LEAST_TEXT_CHARACTERS = 12  # the least width of a column of texts


class ProgressLine:
    """A line on standard error that renews itself; in a log, a new line every ten seconds.

    Args:
        line: Returns the progress of the work; "" to print nothing.
    """

    def __init__(self, line: Callable[[], str]):
        self._line = line
        self._out: Any = LastingStream(sys.stderr or open(os.devnull, "w"))
        # tqdm starts a monitor thread, so only a terminal or a notebook gets a bar.
        self._bar: tqdm[Any] | None = None
        if _in_notebook() or self._out.isatty():
            bar: Any = importlib.import_module("tqdm.auto").tqdm if _in_notebook() else tqdm
            self._bar = bar(file=self._out, bar_format="{desc}", dynamic_ncols=True, leave=False)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ProgressLine:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2)  # A slow terminal must not delay the end of the work.
        if self._bar is not None:
            self._bar.close()

    def say(self, sentence: str) -> None:
        """Prints a line that stays."""
        sentence = visible(sentence)
        if self._bar is not None:
            self._bar.write(sentence, self._out)
        else:
            self._out.write(f"{sentence}\n")
        self._out.flush()

    def _run(self) -> None:
        while not self._stop.wait(_LOG_SECONDS if self._bar is None else _LINE_SECONDS):
            line = self._line()
            if self._bar is not None:
                self._bar.set_description_str(line)
            elif line:
                self.say(line)


def _in_notebook() -> bool:
    return type(sys.stderr).__module__.startswith("ipykernel")


class _Activity:
    """The current work of this process, which steps of a pipeline note for the progress line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._what = self._unit = ""
        self._count = 0
        self._begun = time.monotonic()

    def note(self, what: str, count: int = 0, unit: str = "") -> None:
        """Notes that this process is `what`, for example `listing`; "" ends the work.

        `count` units, named in the singular, are added to the units of the same work.
        """
        with self._lock:
            if what != self._what:
                self._what, self._unit, self._count = what, unit, 0
                self._begun = time.monotonic()
            self._count += count

    def line(self) -> str:
        """Returns a line like `listing: 12,000 images  00:03`; "" without a note."""
        with self._lock:
            if not self._what:
                return ""
            amount = f": {counted(self._count, self._unit)}" if self._unit else ""
            seconds = tqdm.format_interval(int(time.monotonic() - self._begun))
            return f"{self._what}{amount}  {seconds}"


_activity = _Activity()
note_activity = _activity.note
activity_line = _activity.line


def with_progress(work: Iterable[_T], total: int, unit: str, doing: str) -> Iterator[_T]:
    """Yields the items of `work` while a progress line shows how many of `total` are done.

    `unit` names the items in the plural; `doing` names the work, for example `verifying`.
    """
    begun, done = time.monotonic(), 0

    def line() -> str:
        return f"{doing} {rate_line(done, total, unit, time.monotonic() - begun)}"

    with ProgressLine(line):
        for each in work:
            done += 1
            yield each


def rate_line(
    done: int, total: int, unit: str, seconds: float, before: int = 0, *details: str
) -> str:
    """Returns a line like `1,200/1,399 images  380 images/s  0 rejects  ETA 00:01`.

    Earlier runs have done `before` of the items, so the rate does not count them; `details` precede
    the ETA.
    """
    rate = (done - before) / seconds if seconds > 0 else 0.0
    parts = [f"{done:,}/{total:,} {unit}", *details]
    if rate > 0:
        parts.insert(1, f"{rate:,.0f} {unit}/s")
        parts.append(f"ETA {tqdm.format_interval(round(max(0, total - done) / rate))}")
    return "  ".join(parts)


def text_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: Collection[int] = (0,),
    width: int | None = None,
) -> str:
    """Returns an aligned table: the columns `texts` to the left, columns of numbers to the right.

    Long texts lose their middle in a table wider than `width` characters; None means the width of
    the terminal, or 80.
    """
    cells = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = width or shutil.get_terminal_size((LINE_CHARACTERS, 24)).columns
    room -= 2 * (len(widths) - 1) + sum(w for i, w in enumerate(widths) if i not in texts)
    # Short columns leave the rest of their share to the long columns.
    shortest_first = sorted(texts, key=widths.__getitem__)
    for taken, i in enumerate(shortest_first):
        share = room // (len(shortest_first) - taken)
        widths[i] = min(widths[i], max(_LEAST_TEXT_CHARACTERS, share))
        room -= widths[i]
    for row in cells:
        row[:] = [
            shortened(cell, size) if i in texts else cell
            for i, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in texts else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )
