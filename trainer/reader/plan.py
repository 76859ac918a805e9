"""The order of the records, as arithmetic: pieces of shards, dealt into canonical streams.

A piece is a run of records that one read gives. A pass (an epoch) over N records is a permutation
of all pieces, each permuted inside, one behind the other; it is dealt into V streams. Positions of
the endless stream belong to the streams in turn: p to stream `(p mod B') // (B' / V)`. Each stream
gets as many records of a pass as there are positions of that pass that belong to it, so each
record comes once in the positions eN … (e+1)N-1, for any N, batch and sizes of shards. (The idea of
a fixed number of streams, whatever the hosts, is that of MosaicML's `num_canonical_nodes`.)

Nothing here reads a file or knows of hosts: a host follows the streams its positions belong to.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from trainer.dataset.pieces import Pieces

Array = np.ndarray[Any, Any]

# Goes up whenever a stream of the same seed comes in another order. Runs are not resumed across
# versions: they would read some records twice and others never.
ORDER_VERSION = 3
# So many streams mix two shards as well as a thousand; each keeps one piece in memory.
MOST_STREAMS = 64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True)
class Deal:
    """How positions are dealt to streams: `run` consecutive ones to each in turn.

    Attributes:
        streams: How many there are.
        run: Positions that a stream has before the next one's turn.
    """

    streams: int
    run: int

    @staticmethod
    def of_batch(batch_size: int) -> Deal:
        """The streams of a global batch: as many as possible that share it, or some batches."""
        period = batch_size * -(-MOST_STREAMS // batch_size)
        streams = max(n for n in range(1, MOST_STREAMS + 1) if period % n == 0)
        return Deal(streams, period // streams)

    @property
    def period(self) -> int:
        """Positions after which the first stream has its next turn."""
        return self.streams * self.run

    def taken(self, stream: Any, position: Any) -> Any:
        """How many positions before `position` belong to `stream`; integers or arrays."""
        rounds, rest = position // self.period, position % self.period
        return rounds * self.run + np.clip(rest - stream * self.run, 0, self.run)

    def runs(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """(stream, how many of its records) of the positions from `begin` on, before `end`."""
        while begin < end:
            stop = min(end, (begin // self.run + 1) * self.run)
            yield begin // self.run % self.streams, stop - begin
            begin = stop

    def streams_of(self, begin: int, end: int, batch_size: int) -> list[int]:
        """The streams that positions `begin` to `end` of a batch belong to, in any batch."""
        batches = range(math.lcm(self.period, batch_size) // batch_size)
        parts = (self.runs(k * batch_size + begin, k * batch_size + end) for k in batches)
        return sorted({stream for part in parts for stream, _ in part})


@dataclasses.dataclass(frozen=True)
class Row:
    """What a stream takes of one piece.

    Attributes:
        piece: Its number.
        records: int64, numbers of records within the split, in their order.
    """

    piece: int
    records: Array


class Passes:
    """Endless passes over the same records, dealt into streams.

    Args:
        pieces: All pieces of what is read.
        classes: For each record its class, below 0 where it is not read, int32 [records]; None
            where every record is read once.
        times: How often a record of each class is read in a pass, as (copies of each, further
            copies that turn about among all); None for once.
        seed: Of the order, below 2**63; None for the order of the files.
        deal: To which streams.
    """

    def __init__(
        self,
        pieces: Pieces,
        classes: Array | None,
        times: Sequence[tuple[int, int]] | None,
        seed: int | None,
        deal: Deal,
    ) -> None:
        self._pieces, self._seed, self._deal = pieces, seed, deal
        self._classes, self._times = classes, times
        self._epoch = functools.lru_cache(maxsize=2)(self._make_epoch)
        self._turns = None if classes is None or times is None else _turns(classes, len(times))
        self.num_records = int(self._epoch(0).ends[-1])

    def rows(self, stream: int, taken: int = 0, epochs: int | None = None) -> Iterator[Row]:
        """What a stream reads, without end.

        Args:
            stream: Its number.
            taken: How many of its records were read before.
            epochs: How many passes there are; None for no end.
        """
        total, epoch = self.num_records, self._find_epoch(stream, taken)
        while epochs is None or epoch < epochs:
            of_epoch = self._epoch(epoch)
            before = self._deal.taken(stream, epoch * total)
            mine = self._deal.taken(stream, (epoch + 1) * total) - before
            # Streams share the pass in their order.
            others = np.arange(stream)
            begin = int(
                np.sum(
                    self._deal.taken(others, (epoch + 1) * total)
                    - self._deal.taken(others, epoch * total)
                )
            )
            yield from self._cut(epoch, of_epoch, begin + max(0, taken - before), begin + mine)
            epoch += 1

    def _find_epoch(self, stream: int, taken: int) -> int:
        """The pass that a stream is in after so many of its records."""
        total, deal = self.num_records, self._deal
        epoch = taken * deal.streams // total
        while epoch and deal.taken(stream, epoch * total) > taken:
            epoch -= 1
        while deal.taken(stream, (epoch + 1) * total) <= taken:
            epoch += 1
        return epoch

    def _cut(self, epoch: int, of_epoch: _Epoch, begin: int, end: int) -> Iterator[Row]:
        """The rows of a pass from its `begin`th record to before its `end`th."""
        place = int(np.searchsorted(of_epoch.ends, begin, side="right"))
        while begin < end:
            piece, last = int(of_epoch.order[place]), int(of_epoch.ends[place])
            records = self._records(epoch, of_epoch, piece)
            first = last - len(records)
            yield Row(piece, records[begin - first : end - first])
            begin, place = last, place + 1

    def _records(self, epoch: int, of_epoch: _Epoch, piece: int) -> Array:
        """The records of a piece as a pass reads them."""
        first, count = int(self._pieces.first[piece]), int(self._pieces.count[piece])
        records = np.arange(first, first + count)
        if of_epoch.times is not None:
            records = np.repeat(records, of_epoch.times[first : first + count])
        if self._seed is None:
            return records
        keys = hashed(np.arange(len(records)), self._seed, epoch, piece)
        return records[np.argsort(keys, kind="stable")]

    def _make_epoch(self, epoch: int) -> _Epoch:
        times = self._times_in(epoch)
        counts = self._pieces.count
        if times is not None:
            before = np.concatenate([[0], np.cumsum(times)])
            counts = before[self._pieces.first + counts] - before[self._pieces.first]
        order = np.flatnonzero(counts)
        if self._seed is not None:
            order = order[np.argsort(hashed(order, self._seed, epoch), kind="stable")]
        return _Epoch(order, np.cumsum(counts[order]), times)

    def _times_in(self, epoch: int) -> Array | None:
        """How often each record is read in a pass; None for once each."""
        if self._classes is None:
            return None
        if self._turns is None:
            return (self._classes >= 0).astype(np.int64)
        times = np.zeros(len(self._classes), np.int64)
        for of_class, (copies, further) in zip(self._turns, self._times or (), strict=True):
            # Who gets a further copy turns about from pass to pass.
            turn = np.arange(len(of_class)) + epoch * further
            times[of_class] = copies + (turn % max(1, len(of_class)) < further)
        return times


@dataclasses.dataclass(frozen=True)
class _Epoch:
    """A pass: its pieces in their order, how many records there are after each, and how often
    each record is read (None: once)."""

    order: Array
    ends: Array
    times: Array | None


def hashed(values: Array, *seeds: int) -> Array:
    """Random bits of each value, uint64: SplitMix64 (Steele, Lea, Flood: OOPSLA 2014)."""
    state = np.uint64(0)
    with np.errstate(over="ignore"):
        for seed in seeds:
            state = _mixed(state + _GOLDEN * np.uint64(seed + 1))
        return np.asarray(_mixed(state + _GOLDEN * (values.astype(np.uint64) + np.uint64(1))))


def _mixed(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _turns(classes: Array, num_classes: int) -> list[Array]:
    """The records of each class."""
    order = np.argsort(classes, kind="stable")
    bounds = np.searchsorted(classes[order], np.arange(num_classes + 1))
    return [order[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
