"""Which record is at which position of a stream to train on, or of one pass to evaluate with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainer.dataset.spec import Subset
from trainer.reader.plan import Array, Deal, Passes, Row


class Order:
    """The order of the records of `subset`: its passes, and a deal.

    Args:
        subset: What is read.
        deal: Positions to streams.
        seed: Of the order, at least 0, below 2**31; None for one pass in the order of the files.
    """

    def __init__(self, subset: Subset, deal: Deal, seed: int | None) -> None:
        self.deal, self._epochs = deal, 1 if seed is None else None
        self._passes = Passes(subset.pieces, subset.record_classes, _times(subset), seed, deal)

    def rows(self, stream: int, taken: int) -> Iterator[Row]:
        """What a stream reads after `taken` of its records, by numbers of the whole split."""
        return self._passes.rows(stream, taken, self._epochs)

    def records_at(self, begin: int, end: int) -> Array:
        """The numbers within the split of the records at positions `begin` to before `end`."""
        streams: dict[int, Iterator[int]] = {}
        found: list[Any] = []
        for stream, count in self.deal.runs(begin, end):
            if stream not in streams:
                rows = self.rows(stream, self.deal.taken(stream, begin))
                streams[stream] = (number for row in rows for number in row.records.tolist())
            found += [next(streams[stream]) for _ in range(count)]
        return np.array(found, np.int64)


def training_order(subset: Subset, batch_size: int, seed: int) -> Order:
    """That of the endless stream: a function of these, and of no number of hosts or replicas."""
    return Order(subset, Deal.of_batch(batch_size), seed)


def evaluation_order(subset: Subset, batch_size: int) -> Order:
    """That of one pass: the order of the files, so that batches are the same on any hosts."""
    return Order(subset, Deal(1, batch_size), None)


def without_copies(subset: Subset) -> Subset:
    """The same records, each of them once."""
    if not subset.sampling or subset.class_counts is None:
        return subset
    return dataclasses.replace(subset, sampling=False, num_records=sum(subset.class_counts))


def bytes_share(batch_size: int, hosts: int) -> float:
    """The share of the streams that a host opens, at most; 1 / hosts where they can be shared."""
    deal, share = Deal.of_batch(batch_size), batch_size // hosts
    parts = (deal.streams_of(k * share, (k + 1) * share, batch_size) for k in range(hosts))
    return max(map(len, parts)) / deal.streams


def _times(subset: Subset) -> list[tuple[int, int]] | None:
    """How often a record of each class comes in a pass: max(class_counts) of every class."""
    if not subset.sampling or subset.class_counts is None:
        return None
    return [divmod(max(subset.class_counts), count) for count in subset.class_counts]


def shareable_size(rest: int, batch_size: int, replicas: int) -> int:
    """The size of the last of two batches with `batch_size + rest` records that replicas can share.

    TensorFlow cuts a batch of n for R replicas into shares of ceil(n / R), so that nothing may be
    left for the last replicas: 10 are 3, 3, 3 and 1, but 9 are 3, 3, 3 and 0. Returns `rest` where
    each replica gets some of it, or where no other size helps. The other batch stays a multiple of
    `replicas`, as Keras needs equal shares in the first batch of a pass.
    """
    if rest % replicas:
        for last in range(rest, batch_size, replicas):
            if -(-last // replicas) * (replicas - 1) < last:
                return last
    return rest
