"""The serialized records of a host's part of every batch: `tf.data` interleaves the plan's streams.

One call of Python reads a piece, about 40 records. A pool of threads reads the next pieces of each
stream ahead, from local disks, network disks and stores alike.
"""

from __future__ import annotations

import functools
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import tensorflow as tf

from imageshards.tfrecord import RecordError
from trainer.dataset.pieces import PIECE_BYTES
from trainer.dataset.spec import WHOLE, ReplicaSlices
from trainer.reader.plan import Array, Order, Row, StreamRows

# Pieces of all streams together that are read ahead, and by how many threads.
READ_AHEAD_PIECES = 128
READ_AHEAD_BYTES = READ_AHEAD_PIECES * PIECE_BYTES
READ_AHEAD_THREADS = 32
# At the end of the program nobody asks for rows any more after so long without.
_QUIET_SEC, _MOST_ENDING_SEC = 0.1, 5.0

Piece = Sequence[bytes | RecordError]
# Called with the number of a damaged record within the split, its position, and what is wrong.
OnDamage = Callable[[int, int, RecordError], None]


class Source(Protocol):
    """Reads pieces."""

    def read(self, piece: int) -> Piece:
        """Returns the records of a piece, or in place of a damaged one what is wrong with it."""


def record_batches(
    order: Order,
    source: Source,
    batch_size: int,
    slices: ReplicaSlices = WHOLE,
    start_step: int = 0,
    on_damage: OnDamage | None = None,
) -> tf.data.Dataset:
    """(serialized string [share], record number within the split int64 [share]) of each part.

    Args:
        order: Which record is at which position.
        source: Reads the pieces.
        batch_size: Global batch.
        slices: Which parts of each batch are made, one after the other.
        start_step: Batches that were read before.
        on_damage: Called with each damaged record before its batch is made, in which the record is
            an empty one; None to raise the `RecordError`.

    Returns:
        A dataset without end, or with an order of one epoch all parts of the pass. There the last
        batch is filled up with empty records of the number -1, or is a short one where a batch is
        made in one slice.
    """
    of_host, deal = batch_size // slices.hosts, order.deal
    share, period = of_host // slices.replicas, deal.period // batch_size
    begin = slices.host * of_host
    turns = deal.turns_within(begin, begin + of_host, batch_size)
    reader = _Reader(order, source, turns, start_step // period, on_damage)
    sizes = tf.constant([len(places) for places in turns.values()], tf.int64)
    num_rows = tf.constant(reader.num_rows, tf.int64)
    # A random number: no other process has a reader of it.
    number = secrets.randbits(62)
    _readers[number] = reader

    def turns_of(stream: tf.Tensor) -> tf.data.Dataset:
        rows = tf.data.Dataset.range(num_rows[stream])
        return rows.map(lambda row: _read_piece(number, stream, row)).rebatch(sizes[stream])

    # One element is one turn of a stream.
    records = tf.data.Dataset.range(len(turns)).interleave(
        turns_of, cycle_length=len(turns), block_length=1
    )
    is_cut, num_parts = False, None
    if order.epochs is not None:
        is_cut = slices == WHOLE and order.num_records % batch_size > 0
        steps = -(-order.num_records // batch_size)
        rest = order.num_records - (steps - 1) * batch_size
        missing = of_host - min(of_host, max(0, rest - begin))
        num_parts = max(0, steps - start_step) * slices.replicas
        if missing and not is_cut:
            filling = tf.fill([missing], b""), tf.fill([missing], np.int64(-1))
            records = records.concatenate(tf.data.Dataset.from_tensors(filling))
    # A period may be several batches: those before the first one are dropped.
    parts = records.rebatch(share, drop_remainder=not is_cut)
    parts = parts.skip(start_step % period * slices.replicas)
    cardinality = tf.data.INFINITE_CARDINALITY if num_parts is None else num_parts
    parts = parts.apply(tf.data.experimental.assert_cardinality(cardinality))
    # Whatever is made of this dataset holds it, and each iterator holds what it iterates.
    parts.reader = reader
    return parts


# The threads that read ahead, for all datasets of the process.
_threads = ThreadPoolExecutor(READ_AHEAD_THREADS, "imageshards-reader")

# TensorFlow keeps every function that `numpy_function` is given, and all that belongs to it, for
# ever. So it is given a function of this module and a number; the dataset alone keeps the reader.
_readers: weakref.WeakValueDictionary[int, _Reader] = weakref.WeakValueDictionary()


def _read_piece(reader: int, stream: tf.Tensor, row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    kinds = [tf.string, tf.int64]
    records, numbers = tf.numpy_function(
        _read, [tf.constant(reader, tf.int64), stream, row], kinds, stateful=False
    )
    return tf.ensure_shape(records, [None]), tf.ensure_shape(numbers, [None])


def _read(reader: Array, stream: Array, row: Array) -> tuple[Array, Array]:
    _Ending.calls += 1
    if _Ending.has_begun:
        raise RuntimeError("the program ends")
    return _readers[int(reader)].read(int(stream), int(row))


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


class _Reader:
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
        self.num_rows = [tf.int64.max if order.epochs is None else len(rows) for rows in streams]
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
        if stream == number == 0:  # the first call: `interleave` opens one stream after the other
            for ahead in range(self._depth):
                for each in range(self._num_streams):
                    self._ask(each, ahead)
        self._ask(stream, number + self._depth)
        row = self._row(stream, number)
        numbers = row.records
        if not len(numbers):
            return np.array([], object), numbers
        held = self._take(row.piece, stream, number).result()
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
                self._asked.pop(next(iter(self._asked)))[0].cancel()

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
