"""Progress for a person: a line that renews itself on a terminal, a table at the end.

Where standard error is no terminal the line becomes one plain line every ten seconds.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TextIO, TypeVar

from tqdm import tqdm

from imageshards.streams import LastingStream
from imageshards.text import LINE_CHARACTERS, counted, shortened

_T = TypeVar("_T")

_LINE_SECONDS = 0.5
_LOG_SECONDS = 10.0
# A column of texts is not made narrower than this.
_LEAST_TEXT_CHARACTERS = 12


class ProgressLine:
    """A line that renews itself on a terminal and in a notebook, plain lines elsewhere; on
    standard error.

    Args:
        line: Says how far the work is; empty for nothing to say.
    """

    def __init__(self, line: Callable[[], str]):
        self._line = line
        self._out: Any = LastingStream(_own_stderr())
        self._bar: tqdm[Any] | None = None  # on a terminal only: it has a thread
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
            self._thread.join(2)
        if self._bar is not None:
            self._bar.close()

    def say(self, sentence: str) -> None:
        """Prints a line of its own."""
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
    """Whether standard error is shown below a cell."""
    return type(sys.stderr).__module__.startswith("ipykernel")


def _own_stderr() -> TextIO:
    """Standard error by a descriptor of its own: that of the process is turned aside at times."""
    try:
        if not _in_notebook():  # whose descriptor is the server's terminal
            return os.fdopen(os.dup(sys.stderr.fileno()), "w", errors="backslashreplace")
        return sys.stderr
    except (OSError, ValueError, AttributeError):  # closed, or replaced by what is no file
        return sys.stderr or open(os.devnull, "w")


class _Activity:
    """What this process is doing; steps of a pipeline note it, a line on the terminal shows it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._what = self._unit = ""
        self._count = 0
        self._begun = time.monotonic()

    def note(self, what: str, count: int = 0, unit: str = "") -> None:
        """Notes what this process is doing, for example `listing`; empty when it has ended.

        So many units, in the singular, were done since the last note; they are added up while
        `what` stays the same.
        """
        with self._lock:
            if what != self._what:
                self._what, self._unit, self._count = what, unit, 0
                self._begun = time.monotonic()
            self._count += count

    def line(self) -> str:
        """`listing: 12,000 images  00:03`; empty where nothing was noted."""
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
    """What `work` yields; a terminal and a log show meanwhile how much of `total` has come.

    `unit` is in the plural, `doing` for example `verifying`.
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
    """`1,200/1,399 images  380 images/s  9.1 MB/s  0 rejects  ETA 00:01`.

    Those `before` were done by earlier runs, the others in `seconds`; `details` precede the ETA.
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
    """Aligned columns under a header: those of `texts` to the left, numbers to the right.

    Long texts lose their middle where the table would be wider than `width`: that of the terminal
    where it is None, or 80 characters where there is none.
    """
    cells = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = width or shutil.get_terminal_size((LINE_CHARACTERS, 24)).columns
    room -= 2 * (len(widths) - 1) + sum(w for i, w in enumerate(widths) if i not in texts)
    # What short columns do not need is left for the long ones.
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
