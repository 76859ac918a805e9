"""Beam's TFRecord sink for files whose names and places a plan has chosen."""

from __future__ import annotations

import hashlib
import io
from typing import Any, BinaryIO

from apache_beam.io import tfrecordio
from apache_beam.io.filesystem import CompressedFile, CompressionTypes
from apache_beam.io.filesystems import FileSystems

# Records are small: one write to the file for some fifty of them.
BUFFER_BYTES = 1 << 20


class HashingWriter:
    """Passes bytes on, and knows their number and SHA-256."""

    mode = "wb"

    def __init__(self, file: BinaryIO):
        self._file = io.BufferedWriter(file, BUFFER_BYTES)
        self._hash = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.num_bytes += len(data)

    def tell(self) -> int:
        return self.num_bytes

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> HashingWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class BalancedSink(tfrecordio._TFRecordSink):
    """Beam's TFRecord sink for a file whose name and place the plan has chosen."""

    def open(self, temp_path: str) -> Any:
        """Opens a file; what is written to it is hashed on the way (`sink.hashing`)."""
        raw = FileSystems.create(temp_path, self.mime_type, CompressionTypes.UNCOMPRESSED)
        self.hashing = HashingWriter(raw)
        if self.compression_type == CompressionTypes.GZIP:
            return CompressedFile(self.hashing, CompressionTypes.GZIP)
        return self.hashing

    def file_name(self, split: str, index: int, num_shards: int) -> str:
        """Name of a shard below the output folder."""
        shard = self.shard_name_format % {"shard_num": index, "num_shards": num_shards}
        return f"{split}{shard}{self.file_name_suffix.get()}"
