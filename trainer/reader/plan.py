"""Computes the order of the records: pieces of shards, dealt into a fixed number of streams.

A *piece* is a run of records that one read returns. An epoch of N records is a permutation of all
pieces, each with its records permuted. The endless sequence of records has positions from 0 on, and
the positions belong to 64 streams. In every period of B' positions, stream v owns the positions
⌊v·B'/64⌋ to ⌊(v+1)·B'/64⌋ - 1.

A stream takes as many records of an epoch as it owns positions of that epoch. Each record therefore
comes once in the positions eN … (e+1)N-1, for any N, batch size and sizes of shards. The fixed
number of streams, independent of the hosts, is the idea of MosaicML's `num_canonical_nodes`.

This module reads no file: a host follows the streams that its positions belong to.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from trainer.dataset.pieces import Pieces

Array = np.ndarray[Any, Any]
_Numbers = TypeVar("_Numbers", int, Array)

# Increases whenever the same seed gives another order. A run of another version is not resumed,
# because it would read some records twice and skip as many.
ORDER_VERSION = 5
# 64 streams mix two shards as well as a thousand shards; each stream keeps one piece in memory.
STREAMS = 64

# 2**64 / golden ratio: the increment of SplitMix64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True)
class Deal:
    """The rule that deals positions to streams: each period has one turn for every stream.

    The turns of two streams differ by one position at most. Methods take integers or arrays.

    Attributes:
        streams: Number of streams.
        period: Positions from one turn of a stream to its next turn.
    """

    streams: int
    period: int

    @staticmethod
    def of_batch(batch_size: int) -> Deal:
        """Returns the deal whose period is the smallest multiple of the batch from 64 on."""
        return Deal(STREAMS, batch_size * -(-STREAMS // batch_size))

    def first(self, stream: _Numbers) -> _Numbers:
        """Returns the first place of a stream's turn within the period."""
        return stream * self.period // self.streams

    def turn(self, stream: _Numbers) -> _Numbers:
        """Returns the number of positions in each turn of a stream."""
        return self.first(stream + 1) - self.first(stream)

    def owner(self, position: _Numbers) -> _Numbers:
        """Returns the stream that owns a position."""
        # The owner is the largest v with v * period // streams <= place.
        return ((position % self.period + 1) * self.streams - 1) // self.period

    def taken(self, stream: _Numbers, position: int) -> _Numbers:
        """Returns how many positions before `position` belong to `stream`."""
        turn, place = self.turn(stream), position % self.period
        return position // self.period * turn + np.clip(place - self.first(stream), 0, turn)

    def position(self, stream: int, taken: _Numbers) -> _Numbers:
        """Returns the position of a stream's record number `taken`, counted from 0."""
        turn = self.turn(stream)
        return taken // turn * self.period + self.first(stream) + taken % turn

    @property
    def longest_turn(self) -> int:
        """Returns the greatest number of positions in a turn."""
        return -(-self.period // self.streams)

    def turns_within(self, begin: int, end: int, batch_size: int) -> dict[int, Array]:
        """Returns the streams that own places `begin` to before `end` of a batch, in order.

        The value of a stream lists the places of its turn, from 0, in that range: int64 [places].
        """
        places = np.arange(self.period)
        places = places[(places % batch_size >= begin) & (places % batch_size < end)]
        owners = self.owner(places)
        return {int(v): places[owners == v] - self.first(int(v)) for v in np.unique(owners)}


@dataclasses.dataclass(frozen=True)
class Row:
    """The records that a stream reads from one piece.

    Attributes:
        piece: Number of the piece.
        records: int64, numbers of records within the split, in the order of the stream.
        taken: Number of records that the stream took before.
    """

    piece: int
    records: Array
    taken: int


class Order:
    """The order of endless epochs over the same records, dealt into streams.

    Args:
        pieces: All pieces of the split.
        classes: int32 [records], the class of each record, below 0 for a record to leave out; None
            to read every record.
        times: For each class (copies of each record, further copies given to records in turn); None
            to read each record once.
        seed: Seed of the permutations, below 2**63; None for the order of the files.
        deal: The rule that deals positions to streams.
        epochs: Number of epochs; None for an endless order.
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
        # Streams may be in two epochs at the same time, and their read-ahead in a third epoch.
        self._epoch = functools.lru_cache(maxsize=4)(self._make_epoch)
        self._turns = None if classes is None or times is None else _turns(classes, len(times))
        self.num_records = int(self._epoch(0).ends[-1])

    @property
    def records_per_piece(self) -> float:
        """Returns how many records a pass takes from a piece that it reads, on average."""
        return self.num_records / len(self._epoch(0).order)

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
        """Returns the epoch of a stream after the stream has taken `taken` records."""
        total, deal = self.num_records, self.deal
        # The estimate assumes that all turns are equal; the loops correct the estimate.
        epoch = taken * deal.streams // total
        while epoch and deal.taken(stream, epoch * total) > taken:
            epoch -= 1
        while deal.taken(stream, (epoch + 1) * total) <= taken:
            epoch += 1
        return epoch

    def pair_distance(self, share: int) -> int:
        """Returns how far apart the records of a mixed pair are in a `share` of a batch.

        Positions o and o + d of each block of 2d positions are a pair. No pair is of one turn, nor
        of the streams that read one piece at the same time, as far as the share is that long. The
        smallest such d is often the same for different shares, which then mix the same pairs.
        `has_pairs` says whether a share has pairs.
        """
        counts = np.diff(self._epoch(0).ends, prepend=0)
        longest = int(counts.max()) * self.deal.period / self.num_records
        halves = range(self.deal.longest_turn, share // 2 + 1)
        fits = [d for d in halves if share % (2 * d) == 0]
        return next((d for d in fits if d >= longest), fits[-1])

    def num_rows(self, stream: int, epoch: int, taken: int = 0) -> int:
        """Returns how many rows of an epoch a stream has left after `taken` records in total."""
        begin, end, ends = *self._span(stream, epoch, taken), self._epoch(epoch).ends
        if begin == end:
            return 0
        first, last = np.searchsorted(ends, [begin, end - 1], side="right")
        return int(last - first) + 1

    def row(self, stream: int, epoch: int, number: int, taken: int = 0) -> Row:
        """Returns row `number`, from 0, of the rows that `num_rows` counts."""
        of_epoch, (begin, end) = self._epoch(epoch), self._span(stream, epoch, taken)
        place = int(np.searchsorted(of_epoch.ends, begin, side="right")) + number
        piece, last = int(of_epoch.order[place]), int(of_epoch.ends[place])
        records = self._records(of_epoch, piece, place)
        # A stream may begin or end inside a piece, whose other records belong to its neighbours.
        first = last - len(records)
        low, high = max(begin, first), min(end, last)
        before = int(of_epoch.taken[stream]) + low - int(of_epoch.bounds[stream])
        return Row(piece, records[low - first : high - first], before)

    def _span(self, stream: int, epoch: int, taken: int) -> tuple[int, int]:
        """Returns the range of an epoch's records that a stream reads after `taken` records."""
        of_epoch = self._epoch(epoch)
        begin, end = int(of_epoch.bounds[stream]), int(of_epoch.bounds[stream + 1])
        return min(end, begin + max(0, taken - int(of_epoch.taken[stream]))), end

    def _records(self, of_epoch: _Epoch, piece: int, place: int) -> Array:
        """Returns the records of a piece, at `place` of an epoch, in its order, with copies."""
        first, count = int(self.pieces.first[piece]), int(self.pieces.count[piece])
        records = np.arange(first, first + count)
        if of_epoch.times is not None:
            records = np.repeat(records, of_epoch.times[first : first + count])
        if of_epoch.keys is None:
            return records
        # Sorting by hashes permutes without a generator, so any piece of any epoch can come first.
        keys = next_hash(of_epoch.keys[place], np.arange(len(records)))
        return records[np.argsort(keys, kind="stable")]

    def _make_epoch(self, epoch: int) -> _Epoch:
        times, counts = self._times_in(epoch), self.pieces.count
        # Pieces whose records are all left out have a count of 0, and are not read.
        if times is not None:
            before = np.concatenate([[0], np.cumsum(times)])
            counts = before[self.pieces.first + counts] - before[self.pieces.first]
        order, keys = np.flatnonzero(counts), None
        if self._seed is not None:
            keys = hashed(order, self._seed, epoch)
            by_key = np.argsort(keys, kind="stable")
            order, keys = order[by_key], keys[by_key]
        ends = np.cumsum(counts[order])
        streams, total = np.arange(self.deal.streams), int(ends[-1])
        # A stream takes as many records of the epoch as it owns positions between its ends.
        taken, after = (self.deal.taken(streams, e * total) for e in (epoch, epoch + 1))
        bounds = np.concatenate([[0], np.cumsum(after - taken)])
        return _Epoch(order, keys, ends, bounds, taken, times)

    def _times_in(self, epoch: int) -> Array | None:
        """Returns how often an epoch reads each record; None if it reads every record once."""
        if self._classes is None:
            return None
        if self._turns is None:
            return (self._classes >= 0).astype(np.int64)
        times = np.zeros(len(self._classes), np.int64)
        for of_class, (copies, further) in zip(self._turns, self._times or (), strict=True):
            # Another part of the class gets a further copy in each epoch.
            turn = np.arange(len(of_class)) + epoch * further
            times[of_class] = copies + (turn % max(1, len(of_class)) < further)
        return times


@dataclasses.dataclass(frozen=True)
class _Epoch:
    """The order of one epoch.

    Attributes:
        order: The pieces in order.
        keys: Random bits of each of these, uint64; None without a seed.
        ends: Number of records up to the end of each piece.
        bounds: For each stream the number of its first record; at the end the number of records.
        taken: Number of records that each stream took in earlier epochs.
        times: How often each record is read; None for once.
    """

    order: Array
    keys: Array | None
    ends: Array
    bounds: Array
    taken: Array
    times: Array | None


class StreamRows(Sequence[Row]):
    """The rows that a stream reads from a record on; without end unless the order ends.

    Args:
        order: The order of the records.
        stream: Number of the stream.
        taken: Number of records that the stream took before.
        places: The places of each turn to keep; None for all places.
    """

    def __init__(self, order: Order, stream: int, taken: int, places: Array | None = None) -> None:
        self._order, self._stream, self._taken = order, stream, taken
        is_whole = places is None or len(places) == order.deal.turn(stream)
        self._places = None if is_whole else places
        self._first = order.epoch_of(stream, taken)
        # Number of rows before each epoch, from the first epoch to the last requested epoch.
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
        places = (row.taken + np.arange(len(row.records))) % order.deal.turn(self._stream)
        return Row(row.piece, row.records[np.isin(places, self._places)], row.taken)


def has_pairs(batch_size: int, shares: int) -> bool:
    """Returns whether equal shares of a batch consist of pairs that are a turn apart."""
    share, rest = divmod(batch_size, shares)
    turn = Deal.of_batch(batch_size).longest_turn
    return not rest and share % 2 == 0 and share >= 2 * turn


def hashed(values: Array, *seeds: int) -> Array:
    """Returns random bits for each value, uint64: SplitMix64 (Steele, Lea, Flood: OOPSLA 2014).

    The bits of a value, as the `state` of `next_hash`, are those after one seed more.
    """
    state = np.zeros(1, np.uint64)
    for seed in seeds:
        state = next_hash(state, np.array([seed]))
    return next_hash(state, values)


def next_hash(state: Array, values: Array) -> Array:
    """Returns `hashed(values)` after the seeds that led to `state`, uint64 [1]."""
    x = state + _GOLDEN * (values.astype(np.uint64) + np.uint64(1))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _turns(classes: Array, num_classes: int) -> list[Array]:
    """Returns the records of each class."""
    order = np.argsort(classes, kind="stable")
    bounds = np.searchsorted(classes[order], np.arange(num_classes + 1))
    return [order[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
