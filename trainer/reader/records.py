"""Reads the serialized records of a host's part of every batch; `tf.data` interleaves the streams.

The streams carry numbers of records alone. A call into Python returns the numbers of a few rows; a
row is what a stream takes from a piece, about 40 records. One further call for each part of a batch
returns the records of its numbers.
"""

from __future__ import annotations

import functools
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from imageshards.tfrecord import RecordError
from trainer.dataset.batch import WHOLE, ReplicaSlices
from trainer.reader.plan import Array, Order, Row, StreamRows
from trainer.reader.read_ahead import READ_AHEAD_PIECES, refuse_after_end

# A call for each row would cost as much as all further work for the rows of small shards.
_ROWS_PER_CALL = 4
# An element of a stream holds this many turns, as each element costs as much as its numbers.
_TURNS = 8
_ENDLESS = np.iinfo(np.int64).max

# Takes the number of a damaged record within the split, its batch, and the reason.
OnDamage = Callable[[int, int, RecordError], None]


class Source(Protocol):
    """A source of records, which learns ahead of time how many records of a piece will be read."""

    def ask(self, piece: int, count: int) -> None:
        """Prepares the reading of `count` records of a piece."""

    def read(self, numbers: Array) -> list[bytes | RecordError]:
        """Returns records by their numbers, with a `RecordError` in place of each damaged one."""


def record_batches(
    order: Order,
    source: Source,
    batch_size: int,
    slices: ReplicaSlices = WHOLE,
    start_step: int = 0,
    on_damage: OnDamage | None = None,
) -> tf.data.Dataset:
    """Returns a dataset of parts of batches: (number of the part on this host, serialized string
    [share], record number int64 [share]).

    Args:
        order: The order of the records.
        source: Reads the records.
        batch_size: Records of a global batch.
        slices: The parts of each batch to return, in order.
        start_step: Number of batches to skip.
        on_damage: Called with each damaged record before its batch is returned with an empty record
            in its place; None to raise the `RecordError`.

    Returns:
        A dataset of known cardinality; numbers count within the split. If an order has one epoch,
        its last batch is short, or in slices filled with empty records of number -1.
    """
    of_host, deal = batch_size // slices.hosts, order.deal
    share, period = of_host // slices.replicas, deal.period // batch_size
    begin = slices.host * of_host
    turns = deal.turns_within(begin, begin + of_host, batch_size)
    reader = _Reader(order, source, turns, start_step // period, on_damage)
    # A random number cannot name a reader of another process, should a graph get there.
    name = tf.constant(secrets.randbits(62), tf.int64)
    _readers[int(name)] = reader
    # The turns that a stream deals at once hold its pieces in memory, so they span two at most.
    fitting = int(2 * order.records_per_piece) // deal.longest_turn
    num_turns = 1 if order.epochs else max(1, min(_TURNS, fitting))
    numbers = _interleaved(name, reader.num_calls, turns, num_turns)
    is_cut, num_parts = False, None
    if order.epochs is not None:
        is_cut = slices == WHOLE and order.num_records % batch_size > 0
        steps = -(-order.num_records // batch_size)
        rest = order.num_records - (steps - 1) * batch_size
        missing = of_host - min(of_host, max(0, rest - begin))
        num_parts = max(0, steps - start_step) * slices.replicas
        if missing and not is_cut:
            filling = tf.fill([missing], np.int64(-1))
            numbers = numbers.concatenate(tf.data.Dataset.from_tensors(filling))
    # A period may have several batches, so parts of batches before `start_step` are dropped.
    parts = numbers.rebatch(share, drop_remainder=not is_cut)
    parts = parts.skip(start_step % period * slices.replicas)
    cardinality = tf.data.INFINITE_CARDINALITY if num_parts is None else num_parts
    parts = parts.apply(tf.data.experimental.assert_cardinality(cardinality))

    def read(part: tf.Tensor, of_part: tf.Tensor) -> tuple[tf.Tensor, ...]:
        step = part // slices.replicas
        records = _called(_records, tf.string, name, step, of_part)
        return part, tf.ensure_shape(records, of_part.shape), of_part

    # One call at a time: damaged records are met in the order of batches, and waiting for a piece
    # never takes more than one thread from decoding.
    found = parts.enumerate(start_step * slices.replicas).map(read, synchronous=True)
    # Derived datasets hold this dataset, and iterators hold their datasets, so the reader lives as
    # long as anything can call it.
    found.reader = reader
    return found


def _interleaved(
    reader: tf.Tensor, num_calls: Sequence[int], turns: dict[int, Array], num_turns: int
) -> tf.data.Dataset:
    """Returns the numbers of a host's records in the order of the plan, in vectors of any size.

    An element of a stream holds `num_turns` of its turns.
    """
    sizes = tf.constant([num_turns * len(places) for places in turns.values()], tf.int64)
    calls_of = tf.constant(num_calls, tf.int64)

    def turns_of(stream: tf.Tensor) -> tf.data.Dataset:
        calls = tf.data.Dataset.range(calls_of[stream])
        numbers = calls.map(lambda call: _called(_numbers, tf.int64, reader, stream, call))
        return numbers.rebatch(sizes[stream])

    # `interleave` takes the turns of all streams in the plan's order.
    numbers = tf.data.Dataset.range(len(turns)).interleave(
        turns_of, cycle_length=len(turns), block_length=1
    )
    # `rebatch` makes slices of a tensor, and prints an error for each slice that it gets itself.
    numbers = numbers.map(lambda sliced: tf.gather(sliced, tf.range(tf.size(sliced))))
    if num_turns == 1:
        return numbers
    turn_of = [np.repeat(np.arange(num_turns), len(places)) for places in turns.values()]
    by_turn = np.argsort(np.concatenate(turn_of), kind="stable")
    return numbers.rebatch(len(by_turn)).map(lambda dealt: tf.gather(dealt, by_turn))


class _Reader:
    """The rows of a host's streams, and the records of its parts of batches."""

    def __init__(
        self,
        order: Order,
        source: Source,
        turns: dict[int, Array],
        periods: int,
        on_damage: OnDamage | None,
    ) -> None:
        self._source, self._on_damage = source, on_damage
        streams = [
            StreamRows(order, stream, periods * int(order.deal.turn(stream)), places)
            for stream, places in turns.items()
        ]
        self._num_rows = [_ENDLESS if order.epochs is None else len(rows) for rows in streams]
        self.num_calls = [-(-rows // _ROWS_PER_CALL) for rows in self._num_rows]
        self._depth = max(2, READ_AHEAD_PIECES // len(streams) - _ROWS_PER_CALL + 1)
        self._begun: set[int] = set()
        lock = threading.Lock()

        # The cache holds the rows ahead of all streams: each row is computed when its piece is
        # asked for, and used once more when the row is read.
        @functools.lru_cache(2 * (self._depth + _ROWS_PER_CALL) * len(streams))
        def row(stream: int, number: int) -> Row:
            with lock:
                found: Row = streams[stream][number]
            return found

        self._row = row

    def numbers(self, stream: int, call: int) -> Array:
        """Returns the numbers of the records of a stream's next rows, and asks for rows ahead."""
        # `interleave` opens its streams one by one, so the first call asks for all first pieces.
        if stream == call == 0:
            for each in range(len(self._num_rows)):
                self._ask(each, 0)
        # A call asks for as many further rows as were returned before, until `_depth` rows are
        # ahead, so that the first batch does not wait for pieces of many later batches.
        begin, end = (n * _ROWS_PER_CALL for n in (call, call + 1))
        asked, wanted = (min(2 * n, n + self._depth) for n in (begin, end))
        if stream not in self._begun:  # also where a restored iterator goes on
            asked = max(1, begin)
            self._begun.add(stream)
        for row in range(max(1, asked), wanted):
            self._ask(stream, row)
        rows = range(begin, min(end, self._num_rows[stream]))
        return np.concatenate([self._row(stream, row).records for row in rows])

    def _ask(self, stream: int, number: int) -> None:
        """Asks for the records of a row, unless the stream has no such row."""
        if number < self._num_rows[stream]:
            row = self._row(stream, number)
            if len(row.records):
                self._source.ask(row.piece, len(row.records))

    def records(self, step: int, numbers: Array) -> Array:
        """Returns records of batch `step`, object [n]; empty ones for damage and for -1."""
        known = numbers[numbers >= 0]
        found = self._source.read(known)
        for i, record in enumerate(found):
            if isinstance(record, RecordError):
                if self._on_damage is None:
                    raise record
                self._on_damage(int(known[i]), step, record)
                found[i] = b""
        return np.array(found + [b""] * (len(numbers) - len(known)), object)


# TensorFlow keeps every function given to `numpy_function`, with all of its references, until the
# process ends. It therefore gets a function of this module and a number; the dataset alone keeps
# the reader.
_readers: weakref.WeakValueDictionary[int, _Reader] = weakref.WeakValueDictionary()


def _called(function: Callable[..., Array], dtype: tf.DType, *given: tf.Tensor) -> tf.Tensor:
    """Calls `function` with arrays; returns its array, a vector."""
    return tf.ensure_shape(tf.numpy_function(function, given, dtype, stateful=False), [None])


def _numbers(reader: Array, stream: Array, row: Array) -> Array:
    refuse_after_end()
    return _readers[int(reader)].numbers(int(stream), int(row))


def _records(reader: Array, step: Array, numbers: Array) -> Array:
    refuse_after_end()
    return _readers[int(reader)].records(int(step), numbers)
