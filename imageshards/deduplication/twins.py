"""Which of two duplicates stays: every image that should go gets the twin that stays."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from imageshards.manifest import TRAIN_NAMES, VALIDATION_NAMES

# Columns of the index that are needed of a record with a twin.
COLUMNS = [
    "key", "split", "class_name", "shard", "record", "offset", "num_bytes",
    "source_sha256", "source_bytes",
]  # fmt: skip


class Twin(NamedTuple):
    """An image that should go, since another one that stays shows the same.

    Attributes:
        kept, other: Rows of the index, by column: the image that stays and the one that goes. The
            names of several labels are one text.
        exact: Whether their original files are equal, byte for byte.
        distance: Bits in which the hashes of their pictures differ.
    """

    kept: dict[str, Any]
    other: dict[str, Any]
    exact: bool
    distance: int

    @property
    def splits(self) -> tuple[str, str]:
        """The splits of both, the one that stays first."""
        return self.kept["split"], self.other["split"]

    @property
    def same_class(self) -> bool:
        """Whether both have the same labels: else one of them is wrong, and nobody knows which."""
        return bool(self.kept["class_name"] == self.other["class_name"])

    @property
    def badness(self) -> tuple[Any, ...]:
        """What is to be seen first sorts first: leaks into training, then what is nearest."""
        between = self.splits[0] != self.splits[1]
        leak = between and any(split in TRAIN_NAMES for split in self.splits)
        nearness = self.distance, not self.exact
        return not leak, not between, *nearness, self.same_class, self.other["key"]


def choose_twins(table: pa.Table, pairs: np.ndarray) -> list[Twin]:
    """Goes through the records, the most worth keeping first, and keeps what has no kept twin yet.

    So no two that stay are twins, and each that goes has a twin that stays: one of another split
    if there is one, else the nearest.

    Args:
        table: `COLUMNS` of all records that may have a twin, those that there are, and `dhash`, the
            hash of the picture, null where there is none.
        pairs: uint64 [n, 2], different hashes that are near.

    Returns:
        The twins, worst first.
    """
    near = defaultdict(list)
    for low, high in pairs.tolist():
        near[low].append(high)
        near[high].append(low)
    # Of each hash, and of each original, one row is kept at most: equal ones are its twins.
    kept_of_hash: dict[int, dict[str, Any]] = {}
    kept_of_original: dict[str, dict[str, Any]] = {}
    twins = []
    for row in sorted(table.to_pylist(), key=_rank):
        names = row.get("class_name", "")
        row["class_name"] = names if isinstance(names, str) else ", ".join(names)
        dhash, original = row["dhash"], row["source_sha256"]
        kept = [kept_of_hash[h] for h in (dhash, *near.get(dhash, ())) if h in kept_of_hash]
        kept += [kept_of_original[original]] if original in kept_of_original else []
        if kept:
            twins.append(min((_twin(other, row) for other in kept), key=_preference))
            continue
        kept_of_original[original] = row
        if dhash is not None:
            kept_of_hash[dhash] = row
    return sorted(twins, key=lambda twin: twin.badness)


def _rank(row: dict[str, Any]) -> tuple[Any, ...]:
    """What is worth keeping sorts first: test, validation, others, training; the larger file.

    What models are compared on stays as it is: its twins leave the training split.
    """
    orders = [(("test",), 0), (VALIDATION_NAMES, 1), (TRAIN_NAMES, 3)]
    order = next((place for names, place in orders if row["split"] in names), 2)
    return order, row["split"], -(row["source_bytes"] or 0), row["key"]


def _twin(kept: dict[str, Any], other: dict[str, Any]) -> Twin:
    exact = kept["source_sha256"] == other["source_sha256"]
    known = kept["dhash"] is not None and other["dhash"] is not None
    return Twin(kept, other, exact, (kept["dhash"] ^ other["dhash"]).bit_count() if known else 0)


def _preference(twin: Twin) -> tuple[Any, ...]:
    return twin.splits[0] == twin.splits[1], twin.distance, not twin.exact, twin.kept["key"]
