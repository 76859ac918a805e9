"""Reads pieces ahead of need: from local disks, network disks and stores in the same way."""

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
from trainer.dataset.pieces import PIECE_BYTES
from trainer.reader.plan import Array, Order, Row, StreamRows

# Pieces of all streams together that are read ahead, and by how many threads.
READ_AHEAD_PIECES = 256
READ_AHEAD_BYTES = READ_AHEAD_PIECES * PIECE_BYTES
READ_AHEAD_THREADS = 32
# Number of rows of a stream without end.
_ENDLESS = np.iinfo(np.int64).max
# At the end of the program nobody asks for rows any more after so long without.
_QUIET_SEC, _MOST_ENDING_SEC = 0.1, 5.0

Piece = Sequence[bytes | RecordError]
# Called with the number of a damaged record within the split, its position, and what is wrong.
OnDamage = Callable[[int, int, RecordError], None]


class Source(Protocol):
    """Reads pieces."""

    def read(self, piece: int) -> Piece:
        """Returns the records of a piece, or in place of a damaged one what is wrong with it."""


# The threads that read ahead, for all datasets of the process.
_threads = ThreadPoolExecutor(READ_AHEAD_THREADS, "imageshards-reader")


class _Ending:
    """The end of the program, and how often TensorFlow has asked for a row."""

    has_begun = False
    calls = 0


def _end() -> None:
    """Drops queued reads, and refuses TensorFlow's calls until no more of them come.

    A thread of TensorFlow that is in Python when Python ends never comes back, and whatever deletes
    the thread's iterator waits for it: without this, about every third program hung at its end.
    """
    _Ending.has_begun, before, most = True, 0, time.monotonic() + _MOST_ENDING_SEC
    _threads.shutdown(wait=False, cancel_futures=True)
    while before != _Ending.calls and time.monotonic() < most:
        before = _Ending.calls
        time.sleep(_QUIET_SEC)


# Unlike those of `atexit`, this function is called before Python waits for the threads of a pool.
threading._register_atexit(_end)  # type: ignore[attr-defined]


class RowReader:
    """Reads the rows of a host's streams; any number of iterators may ask for any row."""

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
        # Pieces that are being read, each with the number of rows that have asked and not taken.
        # Several streams may share a piece, and so may several iterators.
        self._asked: dict[int, tuple[Future[Piece], int]] = {}
        self._lock = lock = threading.RLock()

        # Rows are looked at twice: as they are asked for, and as they are taken.
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
        if stream == number == 0:  # `interleave` opens one stream after the other
            for each in range(self._num_streams):
                self._ask(each, 0)
        # A call asks for two further rows until `_depth` rows are ahead: the first batch does not
        # wait for the pieces of many later batches.
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
            with self._lock:  # the next iterator is to try again whatever this one has asked for
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
        """Has the piece of a row read, unless the row is behind the last one."""
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
            # Iterators that were dropped have not taken what they asked for.
            while len(self._asked) > 2 * (self._depth + 1) * self._num_streams:
                self._asked.pop(next(iter(self._asked)))

    def _take(self, piece: int, stream: int, number: int) -> Future[Piece]:
        with self._lock:
            if piece not in self._asked:  # of an iterator that was restored, for example
                for ahead in range(self._depth):
                    self._ask(stream, number + ahead)
            future, wanted = self._asked.pop(piece)
            if wanted > 1:
                self._asked[piece] = future, wanted - 1
        return future


def _cancel(asked: dict[int, tuple[Future[Piece], int]]) -> None:
    for future, _ in asked.values():
        future.cancel()
