"""Which record is at which position of a stream to train on, or of one pass to evaluate with."""

from __future__ import annotations

import dataclasses

from trainer.dataset.spec import Subset
from trainer.reader.plan import STREAMS, Deal, Order


def training_order(subset: Subset, batch_size: int, seed: int) -> Order:
    """Returns the order of the endless stream, which no number of hosts or replicas changes."""
    deal = Deal.of_batch(batch_size)
    return Order(subset.pieces, subset.record_classes, _times(subset), seed, deal)


def evaluation_order(subset: Subset, batch_size: int) -> Order:
    """Returns the order of one pass: that of the files, so that any hosts make the same batches."""
    deal = Deal(1, batch_size)
    return Order(subset.pieces, subset.record_classes, _times(subset), None, deal, epochs=1)


def without_copies(subset: Subset) -> Subset:
    """Returns the same records, each of them once."""
    if subset.balance != "sampling" or subset.class_counts is None:
        return subset
    return dataclasses.replace(subset, balance="none", num_records=sum(subset.class_counts))


def bytes_share(batch_size: int, hosts: int) -> float:
    """Returns the share of the streams that a host opens, at most; 1 / hosts where that divides."""
    deal, share = Deal.of_batch(batch_size), batch_size // hosts
    parts = (deal.turns_within(k * share, (k + 1) * share, batch_size) for k in range(hosts))
    return max(map(len, parts)) / STREAMS


def _times(subset: Subset) -> list[tuple[int, int]] | None:
    """How often a record of each class comes in a pass: max(class_counts) of every class."""
    if subset.balance != "sampling" or subset.class_counts is None:
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
