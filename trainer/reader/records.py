"""The serialized records of a host's part of every batch, read in the order of the plan.

Python deals the records, a few microseconds each; a batch at a time they go to TensorFlow. Where
reads wait for a store or a network disk the streams' next pieces are read ahead, in the same order.
"""

from __future__ import annotations

import atexit
import collections
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from imageshards.tfrecord import RecordError
from trainer.dataset.pieces import PIECE_BYTES
from trainer.dataset.spec import WHOLE, ReplicaSlices
from trainer.reader.order import Order
from trainer.reader.plan import Row

# What is read ahead where reads wait, and by how many threads.
READ_AHEAD_BYTES = 256 * PIECE_BYTES
READ_AHEAD_THREADS = 32
# Nothing is until so many batches were made: by then the first one is in use.
_FIRST_BATCHES = 8
# Reads of this machine's disks take less, on average; of so many the first ones are looked at.
_SLOW_READ_SEC = 0.005
_LOOKED_AT = 16
# At the end of the program nobody asks for records any more after so long without.
_QUIET_SEC, _MOST_ENDING_SEC = 0.1, 5.0
# Iterators of one dataset that are read in turn; one more begins anew where it was.
_MOST_FOLLOWERS = 4

_Piece = Sequence[bytes | RecordError]


class Source(Protocol):
    """Whose pieces are read."""

    is_remote: bool

    def read(self, piece: int) -> _Piece:
        """The records of a piece, or in their place what is wrong with them."""


class RecordBatches:
    """The records of batch after batch; any number of iterators may ask for any part.

    Args:
        order: Which record is at which position.
        source: Of the pieces.
        first_records: Of every piece the number of its first record within the split.
        batch_size: Global batch.
        slices: Which parts of each batch are made, one after the other.
        total: How many positions there are, None for no end. Behind it a part is filled up with
            empty records of the number -1, or cut off where a batch is made in one slice.
        broken: Numbers of records that are given as empty ones.
    """

    def __init__(
        self,
        order: Order,
        source: Source,
        first_records: np.ndarray[Any, Any],
        batch_size: int,
        slices: ReplicaSlices,
        total: int | None = None,
        broken: frozenset[int] = frozenset(),
    ) -> None:
        self.order, self.source, self.first_records, self.broken = (
            order, source, first_records, broken
        )  # fmt: skip
        self._batch_size, self.slices, self._total = batch_size, slices, total
        self._of_host = batch_size // slices.hosts
        self._share = self._of_host // slices.replicas
        self._followers: dict[int, _Follower] = {}
        host = slices.host * self._of_host
        self.num_streams = len(order.deal.streams_of(host, host + self._of_host, batch_size))

    def dataset(self, start_step: int = 0) -> tf.data.Dataset:
        """(serialized string [share], record number within the split int64 [share]) of each part.

        Parts are numbered from `start_step` times the replicas of a host on.
        """
        is_cut = self.slices == WHOLE and (self._total or 0) % self._batch_size
        size = None if is_cut else self._share

        def fetch(part: Any) -> Any:
            records, numbers = tf.py_function(self._fetch, [part], [tf.string, tf.int64])
            return tf.ensure_shape(records, [size]), tf.ensure_shape(numbers, [size])

        steps = tf.int64.max if self._total is None else -(-self._total // self._batch_size)
        replicas = self.slices.replicas
        end = steps if self._total is None else steps * replicas
        return tf.data.Dataset.range(start_step * replicas, end).map(fetch)

    def _fetch(self, part: tf.Tensor) -> Any:
        _Ending.calls += 1
        if _Ending.has_begun:
            raise RuntimeError("the program ends")
        number = int(part)
        follower = self._followers.pop(number, None) or _Follower(self, number)
        batch = follower.next()
        while len(self._followers) >= _MOST_FOLLOWERS:
            self._followers.pop(next(iter(self._followers)))
        self._followers[number + 1] = follower
        return batch

    def positions(self, part: int) -> tuple[int, int, int]:
        """Where a part begins, and ends; and how many positions of it have a record."""
        batch, replica = divmod(part, self.slices.replicas)
        begin = batch * self._batch_size + self.slices.host * self._of_host
        begin += replica * self._share
        left = self._share if self._total is None else self._total - begin
        is_cut = self.slices == WHOLE
        count = min(self._share, max(0, left))
        return begin, begin + (count if is_cut else self._share), count


class _Ending:
    """The end of the program, and how often TensorFlow has asked for records."""

    has_begun = False
    calls = 0


@atexit.register
def _end() -> None:
    # A thread of TensorFlow that is in Python when that ends never comes back, and whoever deletes
    # its iterator waits for it. They are refused until they have stopped asking.
    _Ending.has_begun, before, most = True, -1, time.monotonic() + _MOST_ENDING_SEC
    while before != _Ending.calls and time.monotonic() < most:
        before = _Ending.calls
        time.sleep(_QUIET_SEC if before else 0)


class _Follower:
    """Reads part after part; one is made ahead, while pictures of the last are decoded."""

    def __init__(self, batches: RecordBatches, part: int) -> None:
        self._batches, self._part, self._made = batches, part, 0
        self._source, self._deal = batches.source, batches.order.deal
        self._streams: dict[int, _Stream] = {}
        self._pieces: weakref.WeakValueDictionary[int, Future[_Piece]]
        self._pieces = weakref.WeakValueDictionary()
        self._waits = self._source.is_remote
        self._reads: list[float] = []
        self._depth = 0
        self._maker = ThreadPoolExecutor(1, "imageshards-records")
        self._readers: ThreadPoolExecutor | None = None
        self._next = self._maker.submit(self._make)

    def next(self) -> Any:
        """The next part."""
        made = self._next.result()
        self._next = self._maker.submit(self._make)
        return made

    def piece(self, number: int) -> Future[_Piece]:
        """The records of a piece, read now, or by another thread where reads wait."""
        found = self._pieces.get(number)
        if found is None:
            if self._waits:
                self._readers = self._readers or ThreadPoolExecutor(
                    READ_AHEAD_THREADS, "imageshards-ahead"
                )
                found = self._readers.submit(self._source.read, number)
            else:
                begun = time.perf_counter()
                found = Future()
                found.set_result(self._source.read(number))
                self._look_at(time.perf_counter() - begun)
            self._pieces[number] = found
        return found

    def _look_at(self, took_sec: float) -> None:
        """Whether reads of this disk wait, like those of a store."""
        self._reads.append(took_sec)
        if len(self._reads) == _LOOKED_AT:
            self._waits = sum(self._reads) > _LOOKED_AT * _SLOW_READ_SEC
            self._reads.clear()

    def _make(self) -> tuple[tf.Tensor, tf.Tensor]:
        begin, end, count = self._batches.positions(self._part)
        runs = list(self._deal.runs(begin, begin + count))
        at, wanted = begin, []
        for stream, length in runs:
            # As many as `taken`, which costs more: this position is the stream's own.
            first = at // self._deal.period * self._deal.run + at % self._deal.run
            if stream not in self._streams:
                self._streams[stream] = _Stream(self, self._batches, stream, first)
            wanted.append((self._streams[stream], first, length))
            at += length
        if self._waits:
            # All that this part needs at once, before any is waited for.
            for one, first, length in wanted:
                one.request(first + length, self._depth)
        payloads: list[bytes] = []
        numbers: list[int] = []
        for one, first, length in wanted:
            one.take(first, length, payloads, numbers)
        payloads += [b""] * (end - at)
        numbers += [-1] * (end - at)
        self._part += 1
        self._made += 1
        if self._made >= _FIRST_BATCHES * self._batches.slices.replicas:
            self._depth = max(1, READ_AHEAD_BYTES // (PIECE_BYTES * self._batches.num_streams))
        with tf.device("CPU:0"):
            return tf.constant(payloads, tf.string), tf.constant(np.array(numbers, np.int64))


class _Stream:
    """The records of one stream from a number on."""

    def __init__(
        self, follower: _Follower, batches: RecordBatches, stream: int, taken: int
    ) -> None:
        self._follower, self._batches = follower, batches
        self._rows: Iterator[Row] = batches.order.rows(stream, taken)
        # Rows whose pieces were asked for, and where the last of them ends.
        self._ahead: collections.deque[tuple[Row, Future[_Piece] | None]] = collections.deque()
        self._begin = self._end = self._asked = taken
        self._payloads: list[bytes | RecordError] = []
        self._records: list[int] = []

    def request(self, end: int, depth: int) -> None:
        """Has the pieces read that hold the records before `end`, and `depth` more."""
        while self._asked < end or len(self._ahead) < depth:
            row = next(self._rows, None)
            if row is None:
                return
            self._ahead.append((row, self._follower.piece(row.piece)))
            self._asked += len(row.records)

    def take(self, at: int, count: int, payloads: list[bytes], numbers: list[int]) -> None:
        """Appends `count` records from the stream's `at`th on.

        Raises:
            RecordError: One is damaged, and must not be left out.
        """
        while count:
            while at >= self._end:
                self._next_row(at)
            first = at - self._begin
            length = min(count, self._end - at)
            taken = self._payloads[first : first + length]
            for one in taken:
                if isinstance(one, RecordError):
                    raise one
            payloads += taken  # type: ignore[arg-type]
            numbers += self._records[first : first + length]
            at, count = at + length, count - length

    def _next_row(self, at: int) -> None:
        if not self._ahead:
            row = next(self._rows)
            self._ahead.append((row, None))
            self._asked += len(row.records)
        row, piece = self._ahead.popleft()
        self._begin, self._end = self._end, self._end + len(row.records)
        if at >= self._end:  # what belongs to other hosts
            return
        self._piece = piece or self._follower.piece(row.piece)
        held, broken = self._piece.result(), self._batches.broken
        places = (row.records - self._batches.first_records[row.piece]).tolist()
        self._payloads, self._records = [held[place] for place in places], row.records.tolist()
        if broken:
            pairs = zip(self._payloads, self._records, strict=True)
            self._payloads = [b"" if number in broken else one for one, number in pairs]
