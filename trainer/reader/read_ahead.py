"""Reads pieces ahead of need, in the same way from local disks, network disks and stores."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np

from imageshards.tfrecord import RecordError
from trainer.reader.plan import Array, Order, Row, StreamRows

# The threads read at most this many pieces ahead, for all streams of a dataset together.
READ_AHEAD_PIECES = 256
READ_AHEAD_THREADS = 32
_ENDLESS = np.iinfo(np.int64).max
# The program ends after TensorFlow has made no call for the first time, or after the second time.
_QUIET_SEC, _MOST_ENDING_SEC = 0.1, 5.0

Piece = Sequence[bytes | RecordError]
# Takes the number of a damaged record within the split, its position, and the reason.
OnDamage = Callable[[int, int, RecordError], None]


class Source(Protocol):
    """A source of pieces."""

    def read(self, piece: int) -> Piece:
        """Returns the records of a piece, with a `RecordError` in place of each damaged record."""


# All datasets of the process share these threads.
_threads = ThreadPoolExecutor(READ_AHEAD_THREADS, "imageshards-reader")


class _Ending:
    """The state of the program's end, and the number of calls from TensorFlow."""

    has_begun = False
    calls = 0


def _end() -> None:
    """Drops queued reads, and refuses TensorFlow's calls until no more calls come."""
    # If Python ends while a thread of TensorFlow is inside Python, the thread never returns, and
    # the deletion of its iterator waits for the thread: about every third program hung at its end.
    _Ending.has_begun, before, most = True, 0, time.monotonic() + _MOST_ENDING_SEC
    _threads.shutdown(wait=False, cancel_futures=True)
    while before != _Ending.calls and time.monotonic() < most:
        before = _Ending.calls
        time.sleep(_QUIET_SEC)


# Python calls functions of `atexit` only after it has waited for the threads of pools.
threading._register_atexit(_end)  # type: ignore[attr-defined]


class RowReader:
    """A reader of the rows of a host's streams; any number of iterators may read any row.

    `_asked` holds each piece that rows have asked for and not taken, once, with the number of these
    rows. A piece leaves with the last of its rows, or as the oldest of more pieces than all streams
    may be ahead. So each piece is read once for all its rows, and memory stays bounded.
    """

    def __init__(
        self,
        order: Order,
        source: Source,
        turns: dict[int, Array],
        periods: int,
        on_damage: OnDamage | None,
    ) -> None:
        self._source, self._first_records = source, order.pieces.first
        self._on_damage = on_damage
        streams = [
            StreamRows(order, stream, periods * int(order.deal.turn(stream)), places)
            for stream, places in turns.items()
        ]
        self._num_streams = len(streams)
        self.num_rows = [_ENDLESS if order.epochs is None else len(rows) for rows in streams]
        self._depth = max(2, READ_AHEAD_PIECES // len(streams))
        self._asked: dict[int, tuple[Future[Piece], int]] = {}
        self._lock = lock = threading.RLock()

        # The cache holds the rows ahead of all streams: each row is computed when its piece is
        # asked for, and used once more when the row is read.
        @functools.lru_cache(2 * (self._depth + 1) * len(streams))
        def row(stream: int, number: int) -> Row:
            with lock:
                found: Row = streams[stream][number]
            return found

        self._row = row
        weakref.finalize(self, _cancel, self._asked)

    def read(self, stream: int, number: int) -> tuple[Array, Array]:
        """Returns the records of a row, object [n], and their numbers, int64 [n]."""
        _Ending.calls += 1
        if _Ending.has_begun:
            raise RuntimeError("the program ends")
        # `interleave` opens its streams one by one, so the first call asks for all first pieces.
        if stream == number == 0:
            for each in range(self._num_streams):
                self._ask(each, 0)
        # A call asks for two further rows until `_depth` rows are ahead, so that the first batch
        # does not wait for pieces of many later batches.
        asked, wanted = (min(2 * n + 1, n + self._depth) for n in (number - 1, number))
        for each in range(max(0, asked), wanted):
            self._ask(stream, each + 1)
        row = self._row(stream, number)
        numbers = row.records
        if not len(numbers):
            return np.array([], object), numbers
        try:
            held = self._take(row.piece, stream, number).result()
        except Exception:
            with self._lock:  # the next iterator must read the failed pieces again
                self._asked.clear()
            raise
        found = [held[i] for i in (numbers - self._first_records[row.piece]).tolist()]
        for i, record in enumerate(found):
            if isinstance(record, RecordError):
                if self._on_damage is None:
                    raise record
                self._on_damage(int(numbers[i]), int(row.positions[i]), record)
                found[i] = b""
        return np.array(found, object), numbers

    def _ask(self, stream: int, number: int) -> None:
        """Starts to read the piece of a row, unless the stream has no such row."""
        try:
            row = self._row(stream, number)
        except IndexError:
            return
        if not len(row.records):
            return
        with self._lock:
            future, wanted = self._asked.pop(row.piece, (None, 0))
            future = future or _threads.submit(self._source.read, row.piece)
            self._asked[row.piece] = future, wanted + 1
            # An iterator that was deleted never takes the pieces that it has asked for.
            while len(self._asked) > 2 * (self._depth + 1) * self._num_streams:
                self._asked.pop(next(iter(self._asked)))

    def _take(self, piece: int, stream: int, number: int) -> Future[Piece]:
        with self._lock:
            if piece not in self._asked:  # for example after an iterator was restored
                for ahead in range(self._depth):
                    self._ask(stream, number + ahead)
            future, wanted = self._asked.pop(piece)
            if wanted > 1:
                self._asked[piece] = future, wanted - 1
        return future


def _cancel(asked: dict[int, tuple[Future[Piece], int]]) -> None:
    for future, _ in asked.values():
        future.cancel()
