"""Writes one shard: a unit of work that is done as a whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import tempfile
from collections.abc import Callable

from beam_pipeline.images.read import read_images
from beam_pipeline.options import ImageOptions
from beam_pipeline.planning.refs import ImageRef
from beam_pipeline.planning.shard_unit import ShardUnit
from beam_pipeline.shards.record import ShardStats, make_features
from beam_pipeline.shards.result import Reject, ShardResult
from beam_pipeline.shards.sink import BalancedSink
from imageshards import storage
from imageshards.errors import ImageError, OutputError
from imageshards.example import encode_example
from imageshards.storage import AtomicFile
from imageshards.tfrecord import FOOTER_BYTES, HEADER_BYTES

# Errors of the output that no other shard would escape.
_FATAL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG}

Progress = Callable[[int, int, int], None]


@dataclasses.dataclass(frozen=True)
class WriteSpec:
    """What a worker needs besides the unit itself.

    Attributes:
        output: Folder of the data set.
        staging: Folder for what is known of finished shards of an unfinished data set.
        finished: Folder for the shards themselves: `staging`, or `output` in a store that
            holds no data set there yet.
        image: How pictures are encoded.
        versions: Library versions that the bytes depend on.
        sink: Frames and writes records.
    """

    output: str
    staging: str
    finished: str
    image: ImageOptions
    versions: tuple[tuple[str, str], ...]
    sink: BalancedSink

    def file_of(self, name: str) -> str:
        """Name of the file of the shard `name`."""
        return name + str(self.sink.file_name_suffix.get())

    def staged_path(self, name: str) -> str:
        """Where a shard waits for the commit, and where what it rewrites is kept."""
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
        # Mostly there is none, which some stores' clients say sooner when they are asked so.
        if not storage.is_local(spec.staging) and not storage.exists(spec.result_path(unit.name)):
            return None
        result = read_result(unit.name, spec)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if result.digest != digest or any(r.stage == "read" for r in result.rejects):
        return None
    # A commit that was killed may have put another in its place, and this one aside.
    for folder in dict.fromkeys((spec.finished, spec.output, spec.staging)):
        if _holds(storage.join(folder, spec.file_of(unit.name)), result):
            return dataclasses.replace(result, staged=folder == spec.staging)
    return None


def read_result(name: str, spec: WriteSpec) -> ShardResult:
    """The result kept beside a finished shard."""
    return ShardResult.from_json(storage.read(spec.result_path(name)).decode())


def _holds(path: str, result: ShardResult) -> bool:
    """Whether a file is the shard: by its version, or by its bytes where that says nothing."""
    try:
        found = storage.stat(path)
        if found is None or found.size_bytes != result.num_bytes:
            return False
        if found.version and found.version == result.stored:
            return True
        sha256 = hashlib.sha256()
        with storage.open_read(path) as file:
            while block := file.read(1 << 20):
                sha256.update(block)
    except OSError:
        return False
    return sha256.hexdigest() == result.sha256


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
    try:
        with AtomicFile(spec.written_path(unit.name)) as file:
            result = _write_records(unit, spec, file, digest, progress)
            return _finish(result, spec, file)
    except OSError as e:
        raise output_error(spec.staging, e) from e


def _finish(result: ShardResult, spec: WriteSpec, shard: AtomicFile) -> ShardResult:
    """Puts a written file in its place, then says that it is finished."""
    staged = shard.path == spec.staged_path(result.name)
    result = dataclasses.replace(result, stored=shard.commit(), staged=staged)
    with AtomicFile(spec.result_path(result.name)) as beside:
        with open(beside.local_path, "w", encoding="utf-8") as file:
            file.write(result.to_json())
        beside.commit()
    return result


def output_error(path: str, e: OSError) -> Exception:
    """An error of the output, as a sentence when it is a known one or a store's."""
    is_local = storage.is_local(path)
    if e.errno not in _FATAL and is_local:
        return e
    remedy = "make room or fix its permissions"
    if not is_local and e.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"make room in {tempfile.gettempdir()}, where a shard waits (TMPDIR is another)"
    return OutputError(
        f"--output {path!r} cannot be written ({e.strerror or e}); {remedy}, then give the same "
        "command again: finished shards are kept."
    )


def _write_records(
    unit: ShardUnit, spec: WriteSpec, file: AtomicFile, digest: str, progress: Progress
) -> ShardResult:
    rejects: list[Reject] = []
    record_classes: list[str] = []
    record_bytes: list[int] = []
    stats = ShardStats()
    handle = spec.sink.open(file.local_path)
    try:
        images = read_images(unit.refs, spec.image.max_bytes)
        for place, (ref, data) in enumerate(images):
            if isinstance(data, ImageError):
                rejects.append(_reject(ref, data, "read"))
                progress(1, 0, 1)
                continue
            try:
                sample = stats.wants_pixels(place)
                features, encoded = make_features(ref, data, unit.class_ids, spec.image, sample)
            except ImageError as e:
                rejects.append(_reject(ref, e, "decode"))
                progress(1, len(data), 1)
                continue
            payload = encode_example(features)
            spec.sink.write_record(handle, payload)
            record_classes.append(ref.label)
            record_bytes.append(HEADER_BYTES + len(payload) + FOOTER_BYTES)
            stats.add(encoded, len(payload))
            file.note_size(spec.sink.hashing.num_bytes)
            progress(1, len(data), 0)
    finally:
        spec.sink.close(handle)
    return ShardResult(
        digest, unit.name, unit.split, unit.group, len(record_classes),
        spec.sink.hashing.num_bytes, spec.sink.hashing.hexdigest(), record_classes, record_bytes,
        rejects, stats,
    )  # fmt: skip


def _reject(ref: ImageRef, e: ImageError, stage: str) -> Reject:
    return Reject(ref.key, ref.uri, ref.label, str(ref.split), e.code, stage, e.message)
