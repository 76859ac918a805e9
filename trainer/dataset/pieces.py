"""Pieces of shards: runs of records that are read at once, cut by the dataset's index."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from imageshards import storage
from imageshards.index import read_shard_index

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainer.dataset.spec import DatasetSpec, Split

# One seek and one read. The order depends on it: it is the same wherever shards are.
PIECE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces:
    """All pieces of a split, in the order of its records; int64 arrays have an entry for each.

    Numbers of shard and first record are those within the split. A piece has at least one record,
    and begins `offset` bytes into its shard; `num_bytes` are those with framing.
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
        """Pieces of the records that begin in the same `PIECE_BYTES` of a shard.

        `shards` has of each the sizes of its records in bytes, with their framing.
        """
        import numpy as np

        found, first = [np.zeros((5, 0), np.int64)], 0
        for number, sizes in enumerate(shards):
            ends = np.cumsum(sizes)
            offsets = ends - sizes
            begins = np.flatnonzero(np.diff(offsets // PIECE_BYTES, prepend=-1))
            stops = np.append(begins[1:], len(sizes))[: len(begins)]
            begin, size = offsets[begins], ends[stops - 1] - offsets[begins]
            shard = np.full(len(begins), number)
            found.append(np.stack([shard, first + begins, stops - begins, begin, size]))
            first += len(sizes)
        return Pieces(*np.concatenate(found, axis=1))


def record_sizes(dataset: DatasetSpec, split: Split) -> list[NDArray[np.int64]]:
    """Of each shard of a split the sizes of its records, framing included, in bytes, int64."""
    sizes_of = functools.partial(shard_sizes, dataset, split)
    return list(storage.map_concurrently(sizes_of, range(len(split.shards))))


def shard_sizes(dataset: DatasetSpec, split: Split, shard: int) -> NDArray[np.int64]:
    """The sizes of the records of one shard, framing included, in bytes, as the index tells."""
    import pyarrow as pa

    listed = dataset.manifest.splits[split.name].shards[shard]
    schema = pa.schema([("num_bytes", pa.int64())])
    return read_shard_index(dataset.data, listed, schema, "data")["num_bytes"].to_numpy()
