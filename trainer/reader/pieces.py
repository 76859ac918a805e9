"""Reads pieces of shards: whole records, and descriptions of damaged records."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from imageshards import storage
from imageshards.tfrecord import RecordError, record_in, split_records
from trainer.dataset.pieces import shard_sizes
from trainer.dataset.subset import Subset

# A failed read is repeated after pauses of 1, 2 and 4 seconds.
ATTEMPTS = 4
RETRY_SEC = 1.0
# Another attempt would fail with the same error.
_FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


# Most records are views of the bytes that one read has returned.
Piece = Sequence[bytes | memoryview | RecordError]


class PieceReader:
    """A reader of the pieces of a split, which repeats failed reads."""

    def __init__(self, subset: Subset) -> None:
        self._subset = subset
        self._paths = subset.split.paths

    def read(self, piece: int) -> Piece:
        """Returns the records of a piece, with a `RecordError` in place of each damaged record."""
        pieces = self._subset.pieces
        begin, size = int(pieces.offset[piece]), int(pieces.num_bytes[piece])
        path = self._paths[int(pieces.shard[piece])]
        data = self._bytes(path, begin, begin + size)
        # The fast path checks all records in one call; only a damaged piece needs their sizes.
        records = split_records(data)
        if records is not None and len(records) == pieces.count[piece] and all(records):
            return records
        return self._each(piece, path, data)

    def _each(self, piece: int, path: str, data: bytes) -> list[bytes | RecordError]:
        pieces, split = self._subset.pieces, self._subset.split
        shard, offset = int(pieces.shard[piece]), int(pieces.offset[piece])
        number = int(pieces.first[piece]) - split.starts[shard]
        sizes = shard_sizes(self._subset.dataset, split, shard)
        sizes = sizes[number : number + int(pieces.count[piece])]
        found: list[bytes | RecordError] = []
        for size, end in zip(sizes.tolist(), np.cumsum(sizes).tolist(), strict=True):
            begin = end - size
            try:
                record = record_in(data[begin:end], path, number, offset + begin, size)
                found.append(record.payload)
            except RecordError as e:
                found.append(e)
            number += 1
        return found

    def _bytes(self, path: str, begin: int, end: int) -> bytes:
        """Returns bytes of a file; none if the file is missing."""
        for attempt in range(ATTEMPTS):
            try:
                return storage.read_range(path, begin, end)
            except FileNotFoundError:
                return b""
            except OSError as e:
                if attempt + 1 == ATTEMPTS or isinstance(e, _FINAL):
                    raise
                time.sleep(RETRY_SEC * 2**attempt)
        raise RuntimeError("not reached")
