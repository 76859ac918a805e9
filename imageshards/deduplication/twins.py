"""Chooses which of two duplicates stays, so that each image that goes has a twin that stays."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from imageshards.manifest import TRAIN_NAMES, VALIDATION_NAMES

# The columns of the index that this module needs.
COLUMNS = [
    "key", "split", "class_name", "shard", "record", "offset", "num_bytes",
    "source_sha256", "source_bytes",
]  # fmt: skip


class Twin(NamedTuple):
    """An image that should go, and an image that stays and shows the same.

    Attributes:
        kept, other: The rows of the index, by column, of the image that stays and the image that
            goes. Several class names are one text.
        exact: Whether the original files are equal byte for byte.
        distance: The number of bits in which the hashes of the pictures differ.
    """

    kept: dict[str, Any]
    other: dict[str, Any]
    exact: bool
    distance: int

    @property
    def splits(self) -> tuple[str, str]:
        """The splits of the image that stays and of the image that goes."""
        return self.kept["split"], self.other["split"]

    @property
    def same_class(self) -> bool:
        """Whether both images have the same labels; if not, one image has a wrong label."""
        return bool(self.kept["class_name"] == self.other["class_name"])

    @property
    def badness(self) -> tuple[Any, ...]:
        """The sort key of the page: leaks into training first, then the nearest twins."""
        between = self.splits[0] != self.splits[1]
        leak = between and any(split in TRAIN_NAMES for split in self.splits)
        nearness = self.distance, not self.exact
        return not leak, not between, *nearness, self.same_class, self.other["key"]


def choose_twins(table: pa.Table, pairs: np.ndarray) -> list[Twin]:
    """Returns the images that should go, worst first, so that no two images that stay are twins.

    Each image that goes gets a twin that stays: a twin of another split, or else the nearest twin.

    Args:
        table: The rows of all records that may have a twin: `COLUMNS`, as far as the index has
            them, and `dhash`, the hash of the picture, null if unknown.
        pairs: uint64 [n, 2], pairs of different hashes that are near.
    """
    near = defaultdict(list)
    for low, high in pairs.tolist():
        near[low].append(high)
        near[high].append(low)
    # At most one row of each hash and of each original stays, since equal ones are twins.
    kept_of_hash: dict[int, dict[str, Any]] = {}
    kept_of_original: dict[str, dict[str, Any]] = {}
    twins = []
    # The images that are most worth keeping come first; an image without a kept twin is kept.
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
    """Returns the sort key by which the image that is most worth keeping comes first."""
    # Models are compared on test and validation images, so training images go. Then the larger
    # original stays.
    orders = [(("test",), 0), (VALIDATION_NAMES, 1), (TRAIN_NAMES, 3)]
    order = next((place for names, place in orders if row["split"] in names), 2)
    return order, row["split"], -(row["source_bytes"] or 0), row["key"]


def _twin(kept: dict[str, Any], other: dict[str, Any]) -> Twin:
    exact = kept["source_sha256"] == other["source_sha256"]
    known = kept["dhash"] is not None and other["dhash"] is not None
    return Twin(kept, other, exact, (kept["dhash"] ^ other["dhash"]).bit_count() if known else 0)


def _preference(twin: Twin) -> tuple[Any, ...]:
    return twin.splits[0] == twin.splits[1], twin.distance, not twin.exact, twin.kept["key"]
