"""Reads pieces of shards: whole records, and descriptions of damaged records."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Sequence

from imageshards import storage
from imageshards.tfrecord import Record, RecordError, scan_records, split_records
from trainer.dataset.pieces import shard_sizes
from trainer.dataset.subset import Subset

# A failed read is repeated after pauses of 1, 2 and 4 seconds.
ATTEMPTS = 4
RETRY_SEC = 1.0
# Another attempt would fail with the same error.
_FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


class PieceReader:
    """A reader of the pieces of a split, which repeats failed reads."""

    def __init__(self, subset: Subset) -> None:
        self._subset = subset
        self._shards = subset.split.shards

    def read(self, piece: int) -> Sequence[bytes | RecordError]:
        """Returns the records of a piece, with a `RecordError` in place of each damaged record."""
        pieces = self._subset.pieces
        begin, size = int(pieces.offset[piece]), int(pieces.num_bytes[piece])
        path = self._shards[int(pieces.shard[piece])].path
        data = self._bytes(path, begin, begin + size)
        # The fast path checks all records in one call; only a damaged piece needs their sizes.
        records = split_records(data)
        if records is not None and len(records) == pieces.count[piece] and all(records):
            return records
        return [one.payload if isinstance(one, Record) else one for one in self.places(piece, data)]

    def places(self, piece: int, data: bytes | None = None) -> list[Record | RecordError]:
        """Returns the records of a piece with their places in the shard, as the index stores them.

        `data` holds the bytes of the piece; None to read them.
        """
        pieces = self._subset.pieces
        shard, first = int(pieces.shard[piece]), int(pieces.first[piece])
        path = self._shards[shard].path
        number = first - self._subset.split.starts[shard]
        sizes = shard_sizes(self._subset.dataset, self._subset.split, shard)
        sizes = sizes[number : number + int(pieces.count[piece])]
        offset = begin = int(pieces.offset[piece])
        if data is None:
            data = self._bytes(path, begin, begin + int(sizes.sum()))
        found: list[Record | RecordError] = []
        for size in sizes.tolist():
            framed = data[offset - begin : offset - begin + size]
            found.append(_record(path, number, offset, framed, size))
            number, offset = number + 1, offset + size
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


def _record(path: str, number: int, offset: int, framed: bytes, size: int) -> Record | RecordError:
    """Returns the record in `framed`, or an error unless it takes `size` bytes as in the index."""
    reason = ""
    # Only local files are looked up: in a store the answer costs a request for each record.
    if not framed:
        there = not storage.is_local(path) or os.path.exists(path)
        reason = "the file ends before it" if there else "the file is missing"
    elif (found := next(scan_records(io.BytesIO(framed), path), None)) is not None:
        if isinstance(found, RecordError):
            reason = found.reason
        elif not found.payload:
            reason = "it is empty"
        elif found.next_offset_bytes == size:
            return found._replace(number=number, offset_bytes=offset)
    reason = reason or f"it has another length than the {size} bytes that the index says"
    return RecordError(path, number, offset, reason)
