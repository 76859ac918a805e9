"""Writes one shard: a unit of work that is done as a whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING

from beam_pipeline.planning.refs import ImageRef, ShardUnit
from beam_pipeline.shards.copying import DAMAGED, copy_record, read_files_and_records
from beam_pipeline.shards.record import make_features
from beam_pipeline.shards.result import Reject, ShardResult, ShardStats, count_classes
from imageshards import storage
from imageshards.errors import ImageError, OutputError
from imageshards.example import encode_example
from imageshards.index import IndexRows
from imageshards.storage import AtomicFile
from imageshards.tfrecord import FOOTER_BYTES, HEADER_BYTES

if TYPE_CHECKING:
    from beam_pipeline.shards.sink import BalancedSink

# Errors of the output that no other shard would escape.
_FATAL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG}

Progress = Callable[[int, int, int], None]


def unit_digest(unit: ShardUnit, sink: BalancedSink) -> str:
    """Hash of all that a shard's bytes are a function of, with sizes and times of its files."""
    digest = hashlib.sha256(repr((dataclasses.astuple(sink.image), sink.versions)).encode())
    digest.update(str(sink.compression_type).encode())
    digest.update(repr((unit.name, unit.group, sorted(unit.class_ids.items()))).encode())
    for ref in unit.refs:
        columns = sorted(ref.columns.items()) if ref.columns else None
        where = (ref.offset_bytes, ref.known) if ref.is_record else None
        digest.update(repr((*ref[:7], columns, where)).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def finished_result(name: str, sink: BalancedSink, digest: str) -> ShardResult | None:
    """The result of an earlier run that wrote the very same shard, if it is still whole.

    A shard that could not read some of its images is tried again.
    """
    try:
        # Mostly there is none, which some stores' clients say sooner when they are asked so.
        if not storage.is_local(sink.staging) and not storage.exists(sink.result_path(name)):
            return None
        result = read_result(name, sink)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if result.digest != digest or any(r.stage == "read" for r in result.rejects):
        return None
    # A commit that was killed may have put another in its place, and kept a copy of this one.
    for folder in dict.fromkeys((sink.finished, sink.output, sink.staging)):
        if _holds(storage.join(folder, sink.file_of(name)), result):
            found = dataclasses.replace(result, staged=folder == sink.staging)
            if found != result:  # the commit reads where it is
                _write_result(found, sink)
            return dataclasses.replace(found, reused=True)
    return None


def read_result(name: str, sink: BalancedSink) -> ShardResult:
    """The result kept beside a finished shard."""
    return ShardResult.from_json(storage.read(sink.result_path(name)).decode())


def _write_result(result: ShardResult, sink: BalancedSink) -> None:
    with AtomicFile(sink.result_path(result.name)) as file:
        with open(file.local_path, "w", encoding="utf-8") as text:
            text.write(result.to_json())
        file.commit()


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
    unit: ShardUnit, sink: BalancedSink, progress: Progress = lambda images, size, rejects: None
) -> ShardResult:
    """Reads, encodes and writes the images of one shard, unless that is done already.

    Its rows for the index are in the file beside it, not in the result.

    Args:
        unit: The shard.
        sink: How and where.
        progress: Called after every image with (images, bytes read, rejects) to add.

    Raises:
        OutputError: The output cannot be written.
    """
    name = sink.shard_name(unit)
    digest = unit_digest(unit, sink)
    if finished := finished_result(name, sink, digest):
        return finished.without_rows()
    try:
        with AtomicFile(sink.written_path(name)) as file:
            result = _write_records(unit, sink, file, digest, progress)
            result = dataclasses.replace(result, stored=file.commit())
        _write_result(result, sink)  # only now is it finished
        return result.without_rows()
    except OSError as e:
        raise output_error(sink.staging, e) from e


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
    unit: ShardUnit, sink: BalancedSink, file: AtomicFile, digest: str, progress: Progress
) -> ShardResult:
    rejects: list[Reject] = []
    rows = IndexRows()
    read_bytes = 0
    stats = ShardStats()
    handle = sink.open(file.local_path)
    try:
        found = read_files_and_records(unit.refs, sink.image.max_bytes, sink.urls)
        for index, (ref, data) in enumerate(found):
            if isinstance(data, ImageError):
                rejects.append(_reject(ref, data, "copy" if data.code == DAMAGED else "read"))
                progress(1, 0, 1)
                continue
            read_bytes += len(data)
            sample = stats.wants_pixels(index)
            source_bytes: int | None
            dhash: int | None
            try:
                if ref.is_record:
                    payload, features = copy_record(ref, data, unit.class_ids)
                    source_bytes, dhash = ref.known or (None, None)
                    stats.add_record(features, len(payload), sample)
                else:
                    features, encoded = make_features(ref, data, unit.class_ids, sink.image, sample)
                    payload = encode_example(features)
                    source_bytes, dhash = len(data), encoded.dhash
                    stats.add(encoded, len(payload))
            except ImageError as e:
                rejects.append(_reject(ref, e, "copy" if ref.is_record else "decode"))
                progress(1, len(data), 1)
                continue
            sink.write_record(handle, payload)
            frame_bytes = HEADER_BYTES + len(payload) + FOOTER_BYTES
            rows.add(features, frame_bytes, source_bytes, dhash)
            stats.count_source(ref.source)
            file.note_size(sink.hashing.num_bytes)
            progress(1, len(data), 0)
    finally:
        sink.close(handle)
    return ShardResult(
        name=sink.shard_name(unit),
        split=unit.split,
        group=unit.group,
        num_records=len(rows),
        num_bytes=sink.hashing.num_bytes,
        sha256=sink.hashing.hexdigest(),
        classes=count_classes(rows.columns["class_name"]),
        num_rejects=len(rejects),
        staged=sink.finished == sink.staging,
        digest=digest,
        rows=rows,
        read_bytes=read_bytes,
        rejects=rejects,
        stats=stats,
        run_id=sink.run_id,
    )


def _reject(ref: ImageRef, e: ImageError, stage: str) -> Reject:
    return Reject(ref.key, ref.origin, ref.label, str(ref.split), e.code, stage, e.message)
