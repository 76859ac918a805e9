"""Reads pieces ahead of need, in the same way from local disks, network disks and stores."""

from __future__ import annotations

import collections
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from imageshards.tfrecord import RecordError
from trainer.dataset.pieces import Pieces
from trainer.reader.pieces import Piece
from trainer.reader.plan import STREAMS, Array

# The threads read at most this many pieces ahead, for all streams of a dataset together.
READ_AHEAD_PIECES = 256
READ_AHEAD_THREADS = 32
_MOST_HELD = 2 * (READ_AHEAD_PIECES + STREAMS)
# The program ends after TensorFlow has made no call for the first time, or after the second time.
_QUIET_SEC, _MOST_ENDING_SEC = 0.1, 5.0

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


def refuse_after_end() -> None:
    """Counts a call from TensorFlow; refuses it once the program ends."""
    _Ending.calls += 1
    if _Ending.has_begun:
        raise RuntimeError("the program ends")


class HeldPieces:
    """The pieces that are read or being read; any number of iterators may take their records.

    A piece comes when a row asks for it, or with the first of its records that is read unasked. A
    piece leaves with the last record that rows asked for, or as the oldest of too many pieces. So
    each piece is read once for all its rows, and memory stays bounded. `at_once` is the number of
    pieces that hold the records of a batch.
    """

    def __init__(self, pieces: Pieces, read: Callable[[int], Piece], at_once: int = 0) -> None:
        self._pieces, self._read = pieces, read
        # Large records of a batch, or few of each piece, may be in more pieces than are read ahead.
        self._most = _MOST_HELD + 2 * at_once
        # For each piece its records, and how many of these were asked for and not taken.
        self._held: dict[int, tuple[Future[Piece], int]] = {}
        self._lock = threading.RLock()
        weakref.finalize(self, _cancel, self._held)

    def ask(self, piece: int, count: int) -> None:
        """Starts to read a piece, of which `count` records will be read."""
        with self._lock:
            held = self._held.pop(piece, None)
            future, left = held or (_threads.submit(self._read, piece), 0)
            self._held[piece] = future, left + count
            # An iterator that was deleted never takes the records that it has asked for.
            while len(self._held) > self._most:
                self._held.pop(next(iter(self._held)))

    def read(self, numbers: Array) -> list[bytes | RecordError]:
        """Returns records by their numbers, with a `RecordError` in place of each damaged one."""
        first = self._pieces.first
        pieces = np.searchsorted(first, numbers, side="right") - 1
        places = (numbers - first[pieces]).tolist()
        wanted = pieces.tolist()
        try:
            taken = {
                piece: self._take(piece, n) for piece, n in collections.Counter(wanted).items()
            }
            held = {piece: future.result() for piece, future in taken.items()}
        except Exception:
            with self._lock:  # the next iterator must read the failed pieces again
                self._held.clear()
            raise
        found = [held[piece][place] for piece, place in zip(wanted, places, strict=True)]
        return [bytes(one) if isinstance(one, memoryview) else one for one in found]

    def _take(self, piece: int, count: int) -> Future[Piece]:
        with self._lock:
            if piece not in self._held:  # for example after an iterator was restored
                self.ask(piece, int(self._pieces.count[piece]))
            future, left = self._held[piece]
            if left > count:
                self._held[piece] = future, left - count
            else:
                del self._held[piece]
        return future


def _cancel(held: dict[int, tuple[Future[Piece], int]]) -> None:
    for future, _ in held.values():
        future.cancel()
