"""Writes one shard: a unit of work that is done as a whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import tempfile

from beam_pipeline.images.pool_worker import Watch
from beam_pipeline.planning.refs import ShardUnit
from beam_pipeline.shards.copying import DAMAGED, read_files_and_records
from beam_pipeline.shards.record import make_record
from beam_pipeline.shards.rejects import RejectsFile
from beam_pipeline.shards.result import ShardResult, ShardStats, ShardSummary, count_classes
from beam_pipeline.shards.spec import RecordFile, WriteSpec
from imageshards import storage
from imageshards.errors import ImageError, OutputError
from imageshards.index import IndexRows
from imageshards.storage import AtomicFile
from imageshards.tfrecord import FOOTER_BYTES, HEADER_BYTES

# Errors of the output that every other shard would meet, too.
_FATAL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG}


def unit_digest(unit: ShardUnit, spec: WriteSpec) -> str:
    """Hash of all that a shard's bytes are a function of, with sizes and times of its files."""
    digest = hashlib.sha256(repr((dataclasses.astuple(spec.image), spec.versions)).encode())
    digest.update(repr((spec.damage, spec.quarantine_bytes)).encode())
    digest.update(repr((unit.name, unit.group, sorted(unit.class_ids.items()))).encode())
    for ref in unit.refs:
        columns = sorted(ref.columns.items()) if ref.columns else None
        where = (ref.offset_bytes, ref.source_bytes) if ref.is_record else None
        digest.update(repr((*ref[:7], columns, where)).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def finished_result(name: str, spec: WriteSpec, digest: str) -> ShardResult | None:
    """The result of an earlier run that wrote the very same shard, if it is still whole.

    A shard that could not read some of its images is tried again.
    """
    try:
        # Usually there is none yet, and some stores answer `exists` faster than a failing read.
        if not storage.is_local(spec.staging) and not storage.exists(spec.result_path(name)):
            return None
        result = _read_result(name, spec)
    except (OSError, ValueError):
        return None
    if result.digest != digest or any(r.stage == "read" for r in result.rejects):
        return None
    if result.num_rejects and not _has_size(spec.rejects_path(name), result.rejects_bytes):
        return None
    # A commit that was killed may have put another in its place, and kept a copy of this one.
    for folder in dict.fromkeys((spec.finished, spec.output, spec.staging)):
        if holds(storage.join(folder, spec.file_of(name)), result):
            found = dataclasses.replace(result, staged=folder == spec.staging)
            if found != result:  # the commit reads where it is
                _write_result(found, spec)
            return dataclasses.replace(found, reused=True)
    return None


def read_result(name: str, spec: WriteSpec) -> ShardResult:
    """The result kept beside a finished shard.

    Raises:
        OutputError: It is not what a build writes.
    """
    try:
        return _read_result(name, spec)
    except ValueError as e:
        raise OutputError(
            f"{spec.result_path(name)!r}, in the folder of an unfinished build, is not what one "
            f"writes beside a shard ({e}); delete it and give the same command again."
        ) from e


def _read_result(name: str, spec: WriteSpec) -> ShardResult:
    result = ShardResult.from_json(storage.read(spec.result_path(name)).decode())
    if result.name != name:
        raise ValueError(f"it is that of {result.name!r}")
    return result


def _write_result(result: ShardResult, spec: WriteSpec) -> None:
    with AtomicFile(spec.result_path(result.name)) as file:
        with open(file.local_path, "w", encoding="utf-8") as text:
            text.write(result.to_json())
        file.commit()


def _has_size(path: str, size_bytes: int) -> bool:
    try:
        found = storage.stat(path)
    except OSError:
        return False
    return found is not None and found.size_bytes == size_bytes


def holds(path: str, result: ShardSummary) -> bool:
    """Whether a file is the shard: by its version, or by its bytes where that says nothing."""
    try:
        found = storage.stat(path)
        if found is None or found.size_bytes != result.num_bytes:
            return False
        if found.version and isinstance(result, ShardResult) and found.version == result.stored:
            return True
        sha256 = hashlib.sha256()
        with storage.open_read(path) as file:
            while block := file.read(1 << 20):
                sha256.update(block)
    except OSError:
        return False
    return sha256.hexdigest() == result.sha256


def write_shard(unit: ShardUnit, spec: WriteSpec, watch: Watch | None = None) -> ShardResult:
    """Reads, encodes and writes the images of one shard, unless that is done already.

    Its rows for the index are in the file beside it, not in the result.

    Args:
        unit: The shard.
        spec: How and where.
        watch: Where what is done is counted, and which pictures are left out.

    Raises:
        OutputError: The output cannot be written.
    """
    name = spec.shard_name(unit)
    digest = unit_digest(unit, spec)
    watch = watch or Watch()
    if finished := finished_result(name, spec, digest):
        watch.add(len(unit.refs), 0, 0, len(unit.refs))
        return finished.without_rows()
    try:
        rejects_path = spec.rejects_path(name) if spec.keeps_rejects else ""
        with (
            AtomicFile(spec.written_path(name)) as file,
            RejectsFile(rejects_path, spec.quarantine_bytes) as rejects,
        ):
            result = _write_records(unit, spec, file, rejects, digest, watch)
            rejects.commit()
            result = dataclasses.replace(result, stored=file.commit())
        _write_result(result, spec)  # only now is it finished
        return result.without_rows()
    except OSError as e:
        raise output_error(spec.staging, e) from e


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
    unit: ShardUnit,
    spec: WriteSpec,
    file: AtomicFile,
    rejects: RejectsFile,
    digest: str,
    watch: Watch,
) -> ShardResult:
    rows = IndexRows()
    read_bytes = 0
    stats = ShardStats()
    damaged: dict[str, str] = {}
    with RecordFile(file.local_path) as records:
        found = read_files_and_records(unit.refs, spec.image.max_bytes, spec.urls)
        for index, (ref, data) in enumerate(found):
            if isinstance(data, ImageError):
                rejects.add(ref, data, "copy" if data.code == DAMAGED else "read")
                watch.add(1, 0, 1)
                continue
            read_bytes += len(data)
            try:
                with watch.picture(index):
                    record = make_record(ref, data, unit, spec, stats, index)
            except ImageError as e:
                if ref.is_record:
                    rejects.add(ref, e, "copy")
                else:
                    rejects.add(ref, e, "decode", data)
                watch.add(1, len(data), 1)
                continue
            records.write(record.payload)
            frame_bytes = HEADER_BYTES + len(record.payload) + FOOTER_BYTES
            if record.damage:
                damaged[ref.key] = record.damage
            rows.add(record.features, frame_bytes, record.source_bytes)
            stats.count_source(ref.source)
            file.note_size(records.num_bytes)
            watch.add(1, len(data), 0)
    return ShardResult(
        name=spec.shard_name(unit),
        split=unit.split,
        group=unit.group,
        num_records=len(rows),
        num_bytes=records.num_bytes,
        sha256=records.hexdigest(),
        classes=count_classes(rows.columns["class_name"]),
        num_rejects=len(rejects.rejects),
        staged=spec.finished == spec.staging,
        digest=digest,
        rows=rows,
        read_bytes=read_bytes,
        rejects=rejects.rejects,
        rejects_bytes=rejects.num_bytes,
        stats=stats,
        damaged=damaged,
        run_id=spec.run_id,
        unversioned=sum(ref.size_bytes < 0 and not ref.is_record for ref in unit.refs),
    )
