"""Beam's TFRecord sink for files whose names and places a plan has chosen."""

from __future__ import annotations

import hashlib
import io
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO

from apache_beam.io import tfrecordio
from apache_beam.io.filesystem import CompressedFile, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from imageshards import storage
from imageshards.storage import map_concurrently

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


class _Upload:
    """A local file that becomes an object when it is closed."""

    def __init__(self, path: str):
        self._path = path
        self._file = tempfile.NamedTemporaryFile(prefix="imageshards-")

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def close(self) -> None:
        with self._file as file:
            file.flush()
            storage.upload(file.name, self._path)


class StoreSink(tfrecordio._TFRecordSink):
    """Beam's TFRecord sink for a prefix in a store, which `storage` reaches.

    Beam's own clients of stores are made anew for every file, wait long for credentials, and
    need rights to the bucket itself.
    """

    def initialize_write(self) -> str:
        """A folder for what bundles write; it is not left in the folder of the result."""
        folder = storage.parent_of(self.file_path_prefix.get())
        return f"{folder}-{uuid.uuid4().hex[:8]}"

    def open(self, temp_path: str) -> Any:
        return _Upload(temp_path)

    def pre_finalize(self, init_result: Any, writer_results: Any) -> list[str]:
        return []

    def finalize_write(
        self, init_result: Any, writer_results: Any, unused_pre_finalize_result: Any, w: Any = None
    ) -> Iterator[str]:
        """Copies what bundles wrote to its names; may be done again."""
        written = sorted(writer_results)
        names = [
            self.file_path_prefix.get()
            + self.shard_name_format % {"shard_num": place, "num_shards": len(written)}
            + self.file_name_suffix.get()
            for place in range(len(written))
        ]
        for _ in map_concurrently(
            lambda pair: storage.copy(*pair), zip(written, names, strict=True)
        ):
            pass
        yield from names
