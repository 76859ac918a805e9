"""Builds the order of the records for training or for one pass of evaluation."""

from __future__ import annotations

import dataclasses

from trainer.dataset.subset import Subset
from trainer.reader.plan import STREAMS, Deal, Order


def training_order(subset: Subset, batch_size: int, seed: int) -> Order:
    """Returns the order of the endless stream, independent of the number of hosts and replicas."""
    deal = Deal.of_batch(batch_size)
    return Order(subset.pieces, subset.record_classes, _times(subset), seed, deal)


def evaluation_order(subset: Subset, batch_size: int) -> Order:
    """Returns the order of one pass over the files; any number of hosts makes the same batches."""
    deal = Deal(1, batch_size)
    return Order(subset.pieces, subset.record_classes, _times(subset), None, deal, epochs=1)


def without_copies(subset: Subset) -> Subset:
    """Returns the subset with each record once."""
    if subset.balance != "sampling" or subset.class_counts is None:
        return subset
    return dataclasses.replace(subset, balance="none", num_records=sum(subset.class_counts))


def bytes_share(batch_size: int, hosts: int) -> float:
    """Returns the greatest share of the streams that a host opens; often 1 / hosts."""
    deal, share = Deal.of_batch(batch_size), batch_size // hosts
    parts = (deal.turns_within(k * share, (k + 1) * share, batch_size) for k in range(hosts))
    return max(map(len, parts)) / STREAMS


def _times(subset: Subset) -> list[tuple[int, int]] | None:
    """Returns how often a pass reads records of each class: max(class_counts) for every class."""
    if subset.balance != "sampling" or subset.class_counts is None:
        return None
    return [divmod(max(subset.class_counts), count) for count in subset.class_counts]


def shareable_size(rest: int, batch_size: int, replicas: int) -> int:
    """Returns a size for the last of two batches with which all replicas can share both batches.

    The two batches have `batch_size + rest` records. Returns `rest` if each replica gets a record,
    or if no other size helps.
    """
    # TensorFlow divides a batch of n for R replicas into shares of ceil(n / R), which may leave no
    # record for the last replicas: 10 become 3, 3, 3 and 1, but 9 become 3, 3, 3 and 0. The other
    # batch stays a multiple of `replicas`, as Keras needs equal shares in the first batch of a
    # pass.
    if rest % replicas:
        for last in range(rest, batch_size, replicas):
            if -(-last // replicas) * (replicas - 1) < last:
                return last
    return rest
