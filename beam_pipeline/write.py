"""Writes planned shards: one unit of work per shard, done as a whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.io import tfrecordio
from apache_beam.io.filesystem import CompressedFile, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from beam_pipeline import local_pool
from beam_pipeline.errors import ImageError, OutputError
from beam_pipeline.examples import encode_example
from beam_pipeline.options import ImageOptions
from beam_pipeline.planning import ShardUnit
from beam_pipeline.reading import read_images
from beam_pipeline.record import ShardStats, make_features
from beam_pipeline.refs import ImageRef

# Errors of the output that no other shard would escape.
_FATAL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG}

Progress = Callable[[int, int, int], None]


@dataclasses.dataclass(frozen=True)
class Reject:
    """An image that did not become a record: a row of the quarantine."""

    key: str
    uri: str
    label: str
    split: str
    reason: str
    stage: str
    message: str


@dataclasses.dataclass(frozen=True)
class ShardResult:
    """What is known of a written shard; kept beside it, as JSON, when it is finished.

    Attributes:
        digest: Of everything its bytes depend on; tells finished work from stale work.
        record_classes: Class of each record, in order.
        reused: Whether an earlier run had written it.
    """

    digest: str
    split: str
    index: int
    num_shards: int
    group: str
    num_records: int
    num_bytes: int
    sha256: str
    record_classes: list[str]
    rejects: list[Reject]
    stats: ShardStats
    reused: bool = False

    @property
    def name(self) -> str:
        """Stem of its file."""
        return f"{self.split}-{self.index:05d}-of-{self.num_shards:05d}"

    def to_json(self) -> str:
        """The text of the file beside a finished shard."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ShardResult:
        """Raises ValueError, KeyError or TypeError for a text that is no result."""
        fields = json.loads(text)
        fields["rejects"] = [Reject(**reject) for reject in fields["rejects"]]
        fields["stats"] = ShardStats(**fields["stats"])
        return cls(**fields | {"reused": True})


class _HashingWriter:
    """Passes bytes on, and knows their number and SHA-256."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._hash = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.num_bytes += len(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class BalancedSink(tfrecordio._TFRecordSink):
    """Beam's TFRecord sink for a file whose name and place the plan has chosen."""

    def open(self, temp_path: str) -> Any:
        """Opens a file; what is written to it is hashed on the way (`sink.hashing`)."""
        raw = FileSystems.create(temp_path, self.mime_type, CompressionTypes.UNCOMPRESSED)
        self.hashing = _HashingWriter(raw)
        if self.compression_type == CompressionTypes.GZIP:
            return CompressedFile(self.hashing, CompressionTypes.GZIP)
        return self.hashing

    def file_name(self, split: str, index: int, num_shards: int) -> str:
        """Name of a shard below the output folder."""
        shard = self.shard_name_format % {"shard_num": index, "num_shards": num_shards}
        return f"{split}{shard}{self.file_name_suffix.get()}"


@dataclasses.dataclass(frozen=True)
class WriteSpec:
    """What a worker needs besides the unit itself.

    Attributes:
        output: Folder of the data set.
        staging: Folder for finished shards of an unfinished data set.
        image: How pictures are encoded.
        versions: Library versions that the bytes depend on.
        sink: Frames and writes records.
    """

    output: str
    staging: str
    image: ImageOptions
    versions: tuple[tuple[str, str], ...]
    sink: BalancedSink

    def staged_path(self, name: str) -> str:
        """Where the shard `name` is written before it is committed."""
        return FileSystems.join(self.staging, name + self.sink.file_name_suffix.get())

    def result_path(self, name: str) -> str:
        """Where its `ShardResult` is kept; there only when the shard is finished."""
        return FileSystems.join(self.staging, name + ".json")


def unit_digest(unit: ShardUnit, spec: WriteSpec) -> str:
    """Hash of all that a shard's bytes are a function of, with sizes and times of its files."""
    digest = hashlib.sha256(repr((dataclasses.astuple(spec.image), spec.versions)).encode())
    digest.update(str(spec.sink.compression_type).encode())
    digest.update(repr((unit.name, unit.group, sorted(unit.class_ids.items()))).encode())
    for ref in unit.refs:
        columns = sorted(ref.columns.items()) if ref.columns else None
        digest.update(repr((*ref[:7], columns)).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def finished_result(unit: ShardUnit, spec: WriteSpec, digest: str) -> ShardResult | None:
    """The result of an earlier run that wrote the very same shard, if it is still whole.

    A shard that could not read some of its images is tried again.
    """
    try:
        with FileSystems.open(spec.result_path(unit.name)) as file:
            result = ShardResult.from_json(file.read().decode())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if result.digest != digest or any(r.stage == "read" for r in result.rejects):
        return None
    staged = spec.staged_path(unit.name)
    # A commit that was killed may have moved it to its final place.
    for path in (staged, FileSystems.join(spec.output, FileSystems.split(staged)[1])):
        if _sha256_of(path) == result.sha256:
            return result
    return None


def _sha256_of(path: str) -> str | None:
    found = hashlib.sha256()
    try:
        with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            while block := file.read(1 << 20):
                found.update(block)
    except OSError:
        return None
    return found.hexdigest()


def write_shard(
    unit: ShardUnit, spec: WriteSpec, progress: Progress = lambda images, size, rejects: None
) -> ShardResult:
    """Reads, encodes and writes the images of one shard, unless that is done already.

    Args:
        unit: The shard.
        spec: How and where.
        progress: Called after every image with (images, bytes read, rejects) to add.

    Raises:
        OutputError: The output cannot be written.
    """
    digest = unit_digest(unit, spec)
    if finished := finished_result(unit, spec, digest):
        return finished
    temporary = f"{spec.staged_path(unit.name)}.tmp-{uuid.uuid4().hex[:8]}"
    try:
        result = _write_records(unit, spec, temporary, digest, progress)
        _replace(temporary, spec.staged_path(unit.name))
        _write_text(f"{temporary}.json", result.to_json())
        _replace(f"{temporary}.json", spec.result_path(unit.name))
    except OSError as e:
        _remove([temporary, f"{temporary}.json"])
        raise output_error(spec.staging, e) from e
    except BaseException:
        _remove([temporary, f"{temporary}.json"])
        raise
    return result


def output_error(path: str, e: OSError) -> Exception:
    """An error of the output, as a sentence when it is a known one."""
    if e.errno in _FATAL:
        return OutputError(
            f"--output {path!r} cannot be written ({e.strerror}); make room or mend its rights, then "
            "give the same command again: finished shards are kept."
        )
    return e


def _write_records(
    unit: ShardUnit, spec: WriteSpec, path: str, digest: str, progress: Progress
) -> ShardResult:
    rejects: list[Reject] = []
    record_classes: list[str] = []
    stats = ShardStats()
    handle = spec.sink.open(path)
    try:
        for ref, data in read_images(unit.refs, spec.image.max_bytes):
            try:
                if isinstance(data, ImageError):
                    raise data
                sample = stats.wants_pixels(len(record_classes))
                features, encoded = make_features(ref, data, unit.class_ids, spec.image, sample)
            except ImageError as e:
                rejects.append(_reject(ref, e, "read" if e is data else "decode"))
                progress(1, 0 if e is data else len(data), 1)
                continue
            payload = encode_example(features)
            spec.sink.write_record(handle, payload)
            record_classes.append(ref.label)
            stats.add(encoded, len(payload))
            progress(1, len(data), 0)
    finally:
        spec.sink.close(handle)
    return ShardResult(
        digest, unit.split, unit.index, unit.num_shards, unit.group, len(record_classes),
        spec.sink.hashing.num_bytes, spec.sink.hashing.hexdigest(), record_classes, rejects, stats,
    )  # fmt: skip


def _reject(ref: ImageRef, e: ImageError, stage: str) -> Reject:
    uri = ref.uri.encode("utf-8", "backslashreplace").decode()
    return Reject(ref.key, uri, ref.label, str(ref.split), e.code, stage, e.message)


def _write_text(path: str, text: str) -> None:
    with FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        file.write(text.encode())


def _replace(source: str, target: str) -> None:
    if "://" in target:
        FileSystems.rename([source], [target])
    else:
        os.replace(source, target)  # Beam's local rename refuses an existing target


def _remove(paths: list[str]) -> None:
    for path in paths:
        try:
            FileSystems.delete([path])
        except Exception:  # noqa: S112  # there is a better error to raise
            continue


class _WriteShardFn(beam.DoFn):
    """ShardUnit → ShardResult, in this process."""

    def __init__(self, spec: WriteSpec):
        self._spec = spec
        self._images = beam.metrics.Metrics.counter("write", "images")
        self._bytes = beam.metrics.Metrics.counter("write", "bytes_read")
        self._rejects = beam.metrics.Metrics.counter("write", "rejects")

    def process(self, unit: ShardUnit) -> Iterator[ShardResult]:
        yield write_shard(unit, self._spec, self._count)

    def _count(self, images: int, size_bytes: int, rejects: int) -> None:
        self._images.inc(images)
        self._bytes.inc(size_bytes)
        self._rejects.inc(rejects)


class _StartShardFn(beam.DoFn):
    """ShardUnit → its name; a process of the local pool begins to write it."""

    def __init__(self, spec: WriteSpec):
        self._spec = spec

    def process(self, unit: ShardUnit) -> Iterator[str]:
        local_pool.active().submit(unit.name, write_shard, unit, self._spec, size=len(unit.refs))
        yield unit.name


class _FinishShardFn(beam.DoFn):
    """Name → ShardResult, once the local pool has written it."""

    def process(self, name: str, *after: Any) -> Iterator[ShardResult]:
        yield local_pool.active().result(name)


class WriteBalancedTFRecord(beam.io.WriteToTFRecord):
    """`WriteToTFRecord` whose shards are chosen by a plan before a pixel is read.

    Takes `ShardUnit`s instead of encoded records: Beam's own transform sends every byte
    through a GroupByKey and starts each bundle at a random shard; here only references
    were shuffled, and every shard's place, size and bytes are known in advance. Finished
    shards are left in `staging` for the commit.

    Args:
        file_path_prefix, coder, file_name_suffix, num_shards, shard_name_template,
            compression_type: As for `WriteToTFRecord`; each unit brings its own number of
            shards, so `num_shards` must be 0.
        staging: Folder for finished shards until they are committed.
        image: How pictures are encoded.
        versions: (library, version) pairs that the bytes depend on.
        after: Collections that must be complete before results are given out.

    Attributes:
        spec: What a worker is given besides its unit.
    """

    def __init__(
        self,
        file_path_prefix: str,
        coder: beam.coders.Coder = BytesCoder(),  # noqa: B008  # Beam's own signature
        file_name_suffix: str = "",
        num_shards: int = 0,
        shard_name_template: str | None = None,
        compression_type: str = CompressionTypes.AUTO,
        *,
        staging: str,
        image: ImageOptions,
        versions: tuple[tuple[str, str], ...] = (),
        after: tuple[beam.PCollection, ...] = (),
    ):
        if num_shards:
            raise ValueError(f"num_shards received {num_shards}; the plan chooses shards: leave it 0.")
        framing = (coder, file_name_suffix, num_shards, shard_name_template, compression_type)
        super().__init__(file_path_prefix, *framing)
        self._sink = BalancedSink(file_path_prefix, *framing)
        output = FileSystems.split(file_path_prefix)[0]
        self.spec = WriteSpec(output, staging, image, versions, self._sink)
        self._after = tuple(beam.pvalue.AsIter(collection) for collection in after)

    def expand(self, units: beam.PCollection) -> beam.PCollection:
        spread = units | "Spread" >> beam.Reshuffle()
        if local_pool.is_active():
            # The analysis of columns runs in this process while the pool writes shards.
            return (
                spread
                | "StartShard" >> beam.ParDo(_StartShardFn(self.spec))
                | "Started" >> beam.Reshuffle()
                | "FinishShard" >> beam.ParDo(_FinishShardFn(), *self._after)
            )
        return spread | "WriteShard" >> beam.ParDo(_WriteShardFn(self.spec))
