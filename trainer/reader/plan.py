"""The order of the records, as arithmetic: pieces of shards, dealt into canonical streams.

A piece is a run of records that one read gives. An epoch of N records is a permutation of all
pieces, each permuted inside, one behind the other. The positions of the endless stream of records
belong to 64 streams in turn: in every period of B' positions, stream v owns the positions
⌊v·B'/64⌋ to ⌊(v+1)·B'/64⌋ - 1. Each stream gets as many records of an epoch as it owns positions of
that epoch, so each record comes once in the positions eN … (e+1)N-1, for any N, batch and sizes of
shards. (A fixed number of streams, whatever the hosts, is the idea of MosaicML's
`num_canonical_nodes`.)

Nothing here reads a file: a host follows the streams that its positions belong to.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainer.dataset.pieces import Pieces

Array = np.ndarray[Any, Any]
_Numbers = TypeVar("_Numbers", int, Array)
_Bits = TypeVar("_Bits", np.uint64, NDArray[np.uint64])

# Goes up whenever a stream of the same seed comes in another order. Runs are not resumed across
# versions: they would read some records twice and others never.
ORDER_VERSION = 4
# So many streams mix two shards as well as a thousand; each keeps one piece in memory.
STREAMS = 64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True)
class Deal:
    """How positions are dealt to streams: in each period, a turn to every stream.

    Methods take integers or arrays. The turns of two streams differ by one position at most.

    Attributes:
        streams: Number of streams.
        period: Positions after which the first stream has its next turn.
    """

    streams: int
    period: int

    @staticmethod
    def of_batch(batch_size: int) -> Deal:
        """Returns the deal of a global batch: the period is one batch of 64 records, or several."""
        return Deal(STREAMS, batch_size * -(-STREAMS // batch_size))

    def first(self, stream: _Numbers) -> _Numbers:
        """Returns the first place of a stream's turn within the period."""
        return stream * self.period // self.streams

    def turn(self, stream: _Numbers) -> _Numbers:
        """Returns the number of positions in each turn of a stream."""
        return self.first(stream + 1) - self.first(stream)

    def owner(self, position: _Numbers) -> _Numbers:
        """Returns the stream that a position belongs to."""
        # The largest v with v * period // streams <= place.
        return ((position % self.period + 1) * self.streams - 1) // self.period

    def taken(self, stream: _Numbers, position: int) -> _Numbers:
        """Returns how many positions before `position` belong to `stream`."""
        turn, place = self.turn(stream), position % self.period
        return position // self.period * turn + np.clip(place - self.first(stream), 0, turn)

    def position(self, stream: int, taken: _Numbers) -> _Numbers:
        """Returns where a stream's record is that comes after `taken` others of the stream."""
        turn = self.turn(stream)
        return taken // turn * self.period + self.first(stream) + taken % turn

    def turns_within(self, begin: int, end: int, batch_size: int) -> dict[int, Array]:
        """Returns the streams that own places `begin` to before `end` of a batch, in their order.

        The value of a stream holds the places of its turn, from 0, that lie there: int64 [places].
        """
        places = np.arange(self.period)
        places = places[(places % batch_size >= begin) & (places % batch_size < end)]
        owners = self.owner(places)
        return {int(v): places[owners == v] - self.first(int(v)) for v in np.unique(owners)}


@dataclasses.dataclass(frozen=True)
class Row:
    """Records that a stream reads from one piece.

    Attributes:
        piece: Number of the piece.
        records: int64, numbers of records within the split, in the order of the stream.
        positions: int64, where the records are in the endless stream.
    """

    piece: int
    records: Array
    positions: Array


class Order:
    """Which record is at which position: endless epochs over the same records, dealt into streams.

    Args:
        pieces: All pieces of the split.
        classes: For each record its class, below 0 where the record is left out, int32 [records];
            None where every record is read once.
        times: How often an epoch has a record of each class, as (copies of each record, further
            copies that records get in turn); None for once.
        seed: Seed of the permutations, below 2**63; None for the order of the files.
        deal: Positions to streams.
        epochs: Number of epochs; None for no end.
    """

    def __init__(
        self,
        pieces: Pieces,
        classes: Array | None,
        times: Sequence[tuple[int, int]] | None,
        seed: int | None,
        deal: Deal,
        epochs: int | None = None,
    ) -> None:
        self.deal, self.epochs = deal, epochs
        self.pieces, self._seed = pieces, seed
        self._classes, self._times = classes, times
        # Streams are in two epochs at a time, and their read-ahead may be in a third.
        self._epoch = functools.lru_cache(maxsize=4)(self._make_epoch)
        self._turns = None if classes is None or times is None else _turns(classes, len(times))
        self.num_records = int(self._epoch(0).ends[-1])

    def records_at(self, begin: int, end: int) -> Array:
        """Returns the numbers of the records at positions `begin` to before `end`, int64."""
        owners = self.deal.owner(np.arange(begin, end))
        found = np.empty(len(owners), np.int64)
        for stream in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == stream)
            rows = StreamRows(self, stream, int(self.deal.taken(stream, begin)))
            numbers = itertools.chain.from_iterable(row.records.tolist() for row in rows)
            found[mine] = list(itertools.islice(numbers, len(mine)))
        return found

    def epoch_of(self, stream: int, taken: int) -> int:
        """Returns the epoch that a stream is in after `taken` of its records."""
        total, deal = self.num_records, self.deal
        epoch = taken * deal.streams // total
        while epoch and deal.taken(stream, epoch * total) > taken:
            epoch -= 1
        while deal.taken(stream, (epoch + 1) * total) <= taken:
            epoch += 1
        return epoch

    def num_rows(self, stream: int, epoch: int, taken: int = 0) -> int:
        """Returns how many rows a stream reads in an epoch after `taken` of its records in all."""
        begin, end, ends = *self._span(stream, epoch, taken), self._epoch(epoch).ends
        if begin == end:
            return 0
        first, last = np.searchsorted(ends, [begin, end - 1], side="right")
        return int(last - first) + 1

    def row(self, stream: int, epoch: int, number: int, taken: int = 0) -> Row:
        """Returns one of these rows, by its number from 0."""
        of_epoch, (begin, end) = self._epoch(epoch), self._span(stream, epoch, taken)
        place = int(np.searchsorted(of_epoch.ends, begin, side="right")) + number
        piece, last = int(of_epoch.order[place]), int(of_epoch.ends[place])
        records = self._records(epoch, of_epoch, piece)
        first = last - len(records)
        low, high = max(begin, first), min(end, last)
        before = int(of_epoch.taken[stream]) + low - int(of_epoch.bounds[stream])
        positions = self.deal.position(stream, before + np.arange(high - low))
        return Row(piece, records[low - first : high - first], positions)

    def _span(self, stream: int, epoch: int, taken: int) -> tuple[int, int]:
        """Where the records of an epoch begin and end that a stream reads after `taken`."""
        of_epoch = self._epoch(epoch)
        begin, end = int(of_epoch.bounds[stream]), int(of_epoch.bounds[stream + 1])
        return min(end, begin + max(0, taken - int(of_epoch.taken[stream]))), end

    def _records(self, epoch: int, of_epoch: _Epoch, piece: int) -> Array:
        """The records of a piece as an epoch reads them."""
        first, count = int(self.pieces.first[piece]), int(self.pieces.count[piece])
        records = np.arange(first, first + count)
        if of_epoch.times is not None:
            records = np.repeat(records, of_epoch.times[first : first + count])
        if self._seed is None:
            return records
        keys = hashed(np.arange(len(records)), self._seed, epoch, piece)
        return records[np.argsort(keys, kind="stable")]

    def _make_epoch(self, epoch: int) -> _Epoch:
        times = self._times_in(epoch)
        counts = self.pieces.count
        if times is not None:
            before = np.concatenate([[0], np.cumsum(times)])
            counts = before[self.pieces.first + counts] - before[self.pieces.first]
        order = np.flatnonzero(counts)
        if self._seed is not None:
            order = order[np.argsort(hashed(order, self._seed, epoch), kind="stable")]
        ends = np.cumsum(counts[order])
        streams, total = np.arange(self.deal.streams), int(ends[-1])
        # Each stream has as many records of an epoch as it owns of the epoch's positions.
        taken, after = (self.deal.taken(streams, e * total) for e in (epoch, epoch + 1))
        return _Epoch(order, ends, np.concatenate([[0], np.cumsum(after - taken)]), taken, times)

    def _times_in(self, epoch: int) -> Array | None:
        """How often each record is read in an epoch; None for once each."""
        if self._classes is None:
            return None
        if self._turns is None:
            return (self._classes >= 0).astype(np.int64)
        times = np.zeros(len(self._classes), np.int64)
        for of_class, (copies, further) in zip(self._turns, self._times or (), strict=True):
            # The records that get a further copy change from epoch to epoch.
            turn = np.arange(len(of_class)) + epoch * further
            times[of_class] = copies + (turn % max(1, len(of_class)) < further)
        return times


@dataclasses.dataclass(frozen=True)
class _Epoch:
    """An epoch.

    Attributes:
        order: The pieces in their order.
        ends: Number of records up to each piece's end.
        bounds: For each stream its first record, and last the number of all records.
        taken: How many records each stream had before.
        times: How often each record is read; None for once.
    """

    order: Array
    ends: Array
    bounds: Array
    taken: Array
    times: Array | None


class StreamRows(Sequence[Row]):
    """The rows that a stream reads from a record on; without end unless the order has one.

    Args:
        order: Which record is at which position.
        stream: Number of the stream.
        taken: How many of its records were read before.
        places: The places of each turn of the stream whose records are wanted; None for all.
    """

    def __init__(self, order: Order, stream: int, taken: int, places: Array | None = None) -> None:
        self._order, self._stream, self._taken = order, stream, taken
        is_whole = places is None or len(places) == order.deal.turn(stream)
        self._places = None if is_whole else places
        self._first = order.epoch_of(stream, taken)
        # How many rows there are before each epoch from the first one on, as far as was asked.
        self._before = [0]

    def __len__(self) -> int:
        order, first = self._order, self._first
        if order.epochs is None:
            raise TypeError("an endless stream has no length")
        return sum(
            order.num_rows(self._stream, epoch, self._taken) for epoch in range(first, order.epochs)
        )

    def __getitem__(self, number: Any) -> Any:
        order, before = self._order, self._before
        while number >= before[-1]:
            epoch = self._first + len(before) - 1
            if order.epochs is not None and epoch >= order.epochs:
                raise IndexError(number)
            before.append(before[-1] + order.num_rows(self._stream, epoch, self._taken))
        place = bisect.bisect_right(before, number) - 1
        epoch, number = self._first + place, number - before[place]
        row = order.row(self._stream, epoch, number, self._taken)
        if self._places is None:
            return row
        places = row.positions % order.deal.period - order.deal.first(self._stream)
        mine = np.isin(places, self._places)
        return Row(row.piece, row.records[mine], row.positions[mine])


def hashed(values: Array, *seeds: int) -> Array:
    """Random bits of each value, uint64: SplitMix64 (Steele, Lea, Flood: OOPSLA 2014)."""
    state = np.uint64(0)
    with np.errstate(over="ignore"):
        for seed in seeds:
            state = _mixed(state + _GOLDEN * np.uint64(seed + 1))
        return np.asarray(_mixed(state + _GOLDEN * (values.astype(np.uint64) + np.uint64(1))))


def _mixed(x: _Bits) -> _Bits:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _turns(classes: Array, num_classes: int) -> list[Array]:
    """The records of each class."""
    order = np.argsort(classes, kind="stable")
    bounds = np.searchsorted(classes[order], np.arange(num_classes + 1))
    return [order[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
