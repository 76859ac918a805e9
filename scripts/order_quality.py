"""Measures how well the reader shuffles records; prints a table for explanation/benchmarks.md.

    python scripts/order_quality.py

The script computes the order from the plan alone and reads no file. Record sizes are random values
around 20 kB.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.dataset.pieces import Pieces
from trainer.reader.plan import Deal, Order

Array = np.ndarray[Any, Any]

BATCH = 64
# Pairs of the number of shards and the number of records.
CASES = ((2, 40_001), (32, 11_211), (1_152, 23_424), (10, 40_001))
WINDOW, PARTS, CLASSES = 0.02, 20, 10


def cut(shards: int, records: int) -> tuple[Pieces, Array]:
    """Returns the pieces of equally long shards and the shard of each record, int64 [records]."""
    sizes = np.random.default_rng(1).lognormal(np.log(20_000), 0.3, records).astype(np.int64)
    lengths = [len(part) for part in np.array_split(np.arange(records), shards)]
    return Pieces.cut(np.array_split(sizes, shards)), np.repeat(np.arange(shards), lengths)


def epoch_of(order: Order, epoch: int) -> Array:
    """Returns the record number at each position of an epoch, int64 [records]."""
    total = order.num_records
    found = order.records_at(epoch * total, (epoch + 1) * total)
    if not np.array_equal(np.sort(found), np.arange(total)):
        raise RuntimeError("an epoch must contain each record once")
    return found


def entropy(records: Array, shard: Array) -> float:
    """Returns the entropy of the distances between neighbours, in bits.

    The entropy is the sum over two histograms: distances between record numbers, and distances
    between shard numbers. MosaicML's simulator uses the same measure (mosaicml/streaming,
    simulation/core/shuffle_quality.py).
    """
    total = 0.0
    for values in (records, shard[records]):
        counts = np.bincount(np.abs(np.diff(values)))
        shares = counts[counts > 0] / (len(values) - 1)
        total -= float(np.sum(shares * np.log2(shares)))
    return total


def held(records: Array) -> float:
    """Returns how many twentieths of the dataset occur in a window of an epoch, on average."""
    part = records * PARTS // len(records)
    width = int(WINDOW * len(records))
    windows = range(0, len(records) - width, width // 4)
    return float(np.mean([len(np.unique(part[i : i + width])) for i in windows]))


def in_a_batch(values: Array) -> float:
    """Returns the number of different values in a batch, averaged over all batches."""
    whole = values[: len(values) // BATCH * BATCH].reshape(-1, BATCH)
    return float(np.mean([len(np.unique(batch)) for batch in whole]))


def main() -> None:
    """Prints the table, which compares the order with random permutations."""
    head = ["shards, records", "entropy, bits", "of a random permutation",
            "rank correlation with the files", "with the epoch before", "twentieths of the data",
            "of a random permutation"]  # fmt: skip
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    deal = Deal.of_batch(BATCH)
    for shards, records in CASES:
        pieces, shard = cut(shards, records)
        order = Order(pieces, None, None, 1, deal)
        before, found = (epoch_of(order, epoch) for epoch in (0, 1))
        true = np.random.default_rng(2).permutation(records)
        name, by_class = f"{shards:,}, {records:,}", shards == CLASSES
        cells = [
            f"{name}; one shard per class" if by_class else name,
            f"{entropy(found, shard):.2f}", f"{entropy(true, shard):.2f}",
            f"{np.corrcoef(found, np.arange(records))[0, 1]:.3f}",
            f"{np.corrcoef(np.argsort(before), np.argsort(found))[0, 1]:.3f}",
            f"{held(found):.1f}", f"{held(true):.1f}",
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |")
        if by_class:
            classes = [f"{in_a_batch(shard[one]):.1f}" for one in (found, true)]
            print(f"\nClasses in a batch of {BATCH}: {classes[0]}; ", end="")
            print(f"with a random permutation: {classes[1]}")


if __name__ == "__main__":
    main()
