"""Cuts shards into pieces, runs of records that one read fetches, by the dataset's index."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from imageshards import storage
from imageshards.index import read_shard_index
from trainer.dataset.spec import DatasetSpec, Split

# A piece is one seek and one read. The order of records depends on this number, so it is the same
# on disks and in stores.
PIECE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of a split, in the order of its records; arrays are int64 [pieces].

    Attributes:
        shard: Number of the shard within the split.
        first: Number of the first record within the split.
        count: Number of records, at least one.
        offset: Where the piece begins in its shard, in bytes.
        num_bytes: Size of the records with their framing, in bytes.
    """

    shard: NDArray[np.int64]
    first: NDArray[np.int64]
    count: NDArray[np.int64]
    offset: NDArray[np.int64]
    num_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shard)

    @staticmethod
    def cut(shards: Sequence[NDArray[np.int64]]) -> Pieces:
        """Cuts a piece from the records that begin in the same `PIECE_BYTES` of a shard.

        `shards` has the sizes of each shard's records, in bytes with their framing.
        """
        found, first = [np.zeros((5, 0), np.int64)], 0
        for number, sizes in enumerate(shards):
            ends = np.cumsum(sizes)
            offsets = ends - sizes
            # A piece begins at each record that is the first in its stretch of `PIECE_BYTES`.
            begins = np.flatnonzero(np.diff(offsets // PIECE_BYTES, prepend=-1))
            stops = np.append(begins[1:], len(sizes))[: len(begins)]
            begin, size = offsets[begins], ends[stops - 1] - offsets[begins]
            shard = np.full(len(begins), number)
            found.append(np.stack([shard, first + begins, stops - begins, begin, size]))
            first += len(sizes)
        return Pieces(*np.concatenate(found, axis=1))


def record_sizes(dataset: DatasetSpec, split: Split) -> list[NDArray[np.int64]]:
    """Returns the sizes of the records of each shard, framing included, in bytes, int64."""
    sizes_of = functools.partial(shard_sizes, dataset, split)
    return list(storage.map_concurrently(sizes_of, range(len(split.shards))))


def shard_sizes(dataset: DatasetSpec, split: Split, shard: int) -> NDArray[np.int64]:
    """Returns the sizes of a shard's records, framing included, in bytes, from the index."""
    import pyarrow as pa

    schema = pa.schema([("num_bytes", pa.int64())])
    table = read_shard_index(dataset.data, split.shards[shard], schema, "data")
    return table["num_bytes"].to_numpy()
