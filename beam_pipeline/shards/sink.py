"""Beam's TFRecord sink for planned shards: their names, their framing, one writer a bundle."""

from __future__ import annotations

import collections
import copy
import functools
import hashlib
import io
import logging
import socket
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import apache_beam as beam
from apache_beam.io import iobase, tfrecordio
from apache_beam.io.filesystem import CompressedFile, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.options import ImageOptions, UrlOptions
from beam_pipeline.planning.refs import ShardUnit
from beam_pipeline.shards import process_pool
from beam_pipeline.shards.result import Reject, ShardResult
from beam_pipeline.shards.versions import differences, versions
from beam_pipeline.shards.writer import read_result, write_shard
from imageshards import storage
from imageshards.errors import UserError
from imageshards.storage import map_concurrently
from imageshards.text import counted

# Records are small: one write to the file for some fifty of them.
BUFFER_BYTES = 1 << 20

_LOGGER = logging.getLogger(__name__)


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
    """Beam's TFRecord sink whose elements are `ShardUnit`s instead of encoded records.

    The file of a shard is `file_path_prefix` + split + shard template + suffix.

    Args:
        file_path_prefix, coder, file_name_suffix, shard_name_template, compression_type: As
            for `WriteToTFRecord`.
        staging: Folder where finished shards, and what is known of them, wait for
            `CommitShards`; "" for shards that get their names when all are written.
        finished: Folder for the shards themselves until then; default: `staging`.
        image: How pictures are encoded.
        urls: How images at http:// and https:// addresses are fetched.
        versions: (library, version) pairs that the bytes depend on.

    Attributes:
        run_id: Of this run: a result of another was written by an earlier one.

    Raises:
        ValueError: The compression is not one that TensorFlow reads.
    """

    def __init__(
        self,
        file_path_prefix: str,
        coder: beam.coders.Coder,
        file_name_suffix: str,
        shard_name_template: str | None,
        compression_type: str,
        *,
        staging: str,
        finished: str,
        image: ImageOptions,
        urls: UrlOptions = UrlOptions(),  # noqa: B008  # frozen
        versions: tuple[tuple[str, str], ...],
    ):
        super().__init__(
            file_path_prefix, coder, file_name_suffix, 0, shard_name_template, compression_type
        )
        # Beam makes 1 of it for an empty template; then one worker would write everything.
        self.num_shards = 0
        if compression_type == CompressionTypes.AUTO:
            self.compression_type = CompressionTypes.detect_compression_type(file_name_suffix)
        if self.compression_type not in (CompressionTypes.UNCOMPRESSED, CompressionTypes.GZIP):
            raise ValueError(
                f"compression_type received {self.compression_type!r}; expected UNCOMPRESSED or "
                "GZIP, which are what TensorFlow and this project read."
            )
        self.output, _, self._first_name = file_path_prefix.rpartition("/")
        self.staging = staging
        self.finished = finished or staging
        self.image = image
        self.urls = urls
        self.versions = versions
        self.run_id = uuid.uuid4().hex

    @property
    def compression(self) -> str:
        """`none` or `gzip`, as the manifest says it."""
        return "gzip" if self.compression_type == CompressionTypes.GZIP else "none"

    # What shards are called, and where they are.

    def shard_name(self, unit: ShardUnit) -> str:
        """Name of a shard: its split and the filled-in template.

        Raises:
            ValueError: The template gives all shards of the split one name.
        """
        shards = {"shard_num": unit.index, "num_shards": unit.num_shards}
        if unit.num_shards > 1 and "%(shard_num)" not in self.shard_name_format:
            raise ValueError(
                f"shard_name_template received {self.shard_name_template!r} for the "
                f"{unit.num_shards} shards of split {unit.split!r}; expected an S in it, as in "
                "'-SSSSS-of-NNNNN', or one shard a split."
            )
        return unit.split + str(self.shard_name_format % shards)

    def file_of(self, name: str) -> str:
        """Name of the file of the shard `name`."""
        return f"{self._first_name}{name}{self.file_name_suffix.get()}"

    def name_of(self, path: str) -> str:
        """Name of the shard whose final path this is."""
        file = storage.name_of(path)
        return file[len(self._first_name) : len(file) - len(self.file_name_suffix.get())]

    def staged_path(self, name: str) -> str:
        """Where a shard waits for the commit, and the originals of what it rewrites."""
        return storage.join(self.staging, self.file_of(name))

    def written_path(self, name: str) -> str:
        """Where the shard `name` is written."""
        return storage.join(self.finished, self.file_of(name))

    def final_path(self, name: str) -> str:
        """Where the shard `name` is when it is committed."""
        return storage.join(self.output, self.file_of(name))

    def result_path(self, name: str) -> str:
        """Where its `ShardResult` is kept; there only when the shard is finished."""
        return storage.join(self.staging, name + ".json")

    # Beam's framing.

    def open(self, temp_path: str) -> Any:
        """Opens a local file; what is written to it is hashed on the way (`hashing`)."""
        raw = FileSystems.create(temp_path, self.mime_type, CompressionTypes.UNCOMPRESSED)
        self.hashing = HashingWriter(raw)
        if self.compression_type == CompressionTypes.GZIP:
            return CompressedFile(self.hashing, CompressionTypes.GZIP)
        return self.hashing

    # What Beam's `WriteImpl` calls.

    def initialize_write(self) -> str:
        """The folder that bundles write to."""
        if self.staging:
            return self.staging
        return str(self._create_temp_dir(self.file_path_prefix.get()))

    def open_writer(self, init_result: str, uid: str) -> ShardWriter:
        """A writer of planned shards, whatever their number.

        Raises:
            UserError: This worker's libraries would write other bytes than the client's.
        """
        check_versions(self.versions)
        sink = copy.copy(self)
        sink.staging = init_result
        sink.finished = sink.finished or init_result
        return ShardWriter(sink)

    def pre_finalize(self, init_result: str, writer_results: Iterable[Any]) -> list[Any]:
        """Old shards are the commit's business."""
        return []

    def finalize_write(
        self,
        init_result: str,
        writer_results: Iterable[tuple[str, ...]],
        unused_pre_finalize_results: Any,
        w: Any = None,
    ) -> Iterator[str]:
        """The final paths of all shards; without `staging` they are moved there first."""
        names = sorted(name for names in writer_results for name in names)
        if not self.staging:
            sink = copy.copy(self)
            sink.staging = sink.finished = init_result
            reasons = collections.Counter[str]()
            for rejects in map_concurrently(functools.partial(_move_to_final_path, sink), names):
                reasons.update(reject.reason for reject in rejects)
            if reasons:
                _LOGGER.warning(
                    "%s of %s* left out as rejected: %s",
                    counted(reasons.total(), "image"),
                    self.file_path_prefix.get(),
                    dict(reasons.most_common()),
                )
            storage.delete_folder(init_result)
        yield from map(self.final_path, names)


def _move_to_final_path(sink: BalancedSink, name: str) -> list[Reject]:
    result = read_result(name, sink)
    storage.move(sink.written_path(name), sink.final_path(name))
    return result.rejects


@functools.cache
def check_versions(expected: tuple[tuple[str, str], ...]) -> None:
    """Refuses to write other bytes than the client's packages would.

    Raises:
        UserError: A library that the bytes depend on has another version here.
    """
    differ = differences(dict(expected), versions())
    if differ:
        raise UserError(
            f"versions on worker host {socket.gethostname()} differ from the client's "
            f"({differ}); expected the same ones, as the bytes depend on them: install this "
            "release with its constraints.txt on both, and start the workers again."
        )


class ShardWriter(iobase.Writer):
    """Writes the planned shards of a bundle; gives out their names.

    Where this process has a local pool, a shard is queued there and the bundle goes on, so that
    the pool's processes share out all shards of the job; `close` waits for them. Elsewhere a
    shard is written at once, and given out as soon as it is.
    """

    def __init__(self, sink: BalancedSink):
        self._sink = sink
        self._pool = process_pool.active()
        self._queued: list[str] = []
        self._written: list[str] = []
        counter = beam.metrics.Metrics.counter
        self._images = counter("write", "images")
        self._bytes = counter("write", "bytes_read")
        self._rejects = counter("write", "rejects")
        self._reused = counter("write", "reused")
        self._requests = counter("store", "requests")
        self._retries = counter("store", "retries")

    def write(self, unit: ShardUnit) -> None:
        """Writes a shard, or has it written."""
        name = self._sink.shard_name(unit)
        if self._pool:
            self._pool.submit(name, write_shard, unit, self._sink, size=len(unit.refs))
            self._queued.append(name)
            return
        result = write_shard(unit, self._sink, self._count)
        asked = storage.unreported()
        self._requests.inc(asked.requests)
        self._retries.inc(asked.retries)
        self._written.append(self._done(result))

    def at_capacity(self) -> bool:
        """Whether there are names to give out at once."""
        return bool(self._written)

    def close(self) -> tuple[str, ...]:
        """Names of the shards, when all of them are written."""
        for name in self._queued:
            if self._pool:
                result = self._pool.result(name)
                if not result.reused:
                    self._count(result.num_images, result.read_bytes, result.num_rejects)
                self._written.append(self._done(result))
        return tuple(self._written)

    def _done(self, result: ShardResult) -> str:
        if result.reused:
            self._reused.inc(result.num_images)
        return result.name

    def _count(self, images: int, read_bytes: int, rejects: int) -> None:
        self._images.inc(images)
        self._bytes.inc(read_bytes)
        self._rejects.inc(rejects)
