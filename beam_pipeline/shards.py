"""Writes one shard: a unit of work that is done as a whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import uuid
from collections.abc import Callable

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.errors import ImageError, OutputError
from beam_pipeline.examples import encode_example
from beam_pipeline.options import ImageOptions
from beam_pipeline.planning import ShardUnit
from beam_pipeline.reading import read_images
from beam_pipeline.record import ShardStats, make_features, merge_stats
from beam_pipeline.refs import ImageRef
from beam_pipeline.sink import BalancedSink

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
        name: Stem of its file.
        record_classes: Class of each record, in order.
        reused: Whether an earlier run had written it.
    """

    digest: str
    name: str
    split: str
    group: str
    num_records: int
    num_bytes: int
    sha256: str
    record_classes: list[str]
    rejects: list[Reject]
    stats: ShardStats
    reused: bool = False

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
    digest.update(
        repr((unit.name, unit.group, unit.first, sorted(unit.class_ids.items()))).encode()
    )
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
        _finish(result, spec, temporary)
    except OSError as e:
        _remove([temporary, f"{temporary}.json"])
        raise output_error(spec.staging, e) from e
    except BaseException:
        _remove([temporary, f"{temporary}.json"])
        raise
    return result


def _finish(result: ShardResult, spec: WriteSpec, temporary: str) -> None:
    """Names a written file, then says that it is finished."""
    _replace(temporary, spec.staged_path(result.name))
    _write_text(f"{temporary}.json", result.to_json())
    _replace(f"{temporary}.json", spec.result_path(result.name))


def join_parts(digest: str, name: str, parts: list[ShardResult], spec: WriteSpec) -> ShardResult:
    """Joins the files of a shard's parts into its file; the same bytes as written in one go."""
    temporary = f"{spec.staged_path(name)}.tmp-join"
    try:
        with spec.sink.open(temporary) as target:
            for part in parts:
                with FileSystems.open(spec.staged_path(part.name)) as source:
                    while block := source.read(1 << 20):
                        target.write(block)
        result = ShardResult(
            digest, name, parts[0].split, parts[0].group, sum(p.num_records for p in parts),
            spec.sink.hashing.num_bytes, spec.sink.hashing.hexdigest(),
            [label for p in parts for label in p.record_classes],
            [reject for p in parts for reject in p.rejects],
            merge_stats(p.stats for p in parts), all(p.reused for p in parts),
        )  # fmt: skip
        _finish(result, spec, temporary)
    except OSError as e:
        _remove([temporary, f"{temporary}.json"])
        raise output_error(spec.staging, e) from e
    _remove([path(p.name) for p in parts for path in (spec.staged_path, spec.result_path)])
    return result


def output_error(path: str, e: OSError) -> Exception:
    """An error of the output, as a sentence when it is a known one."""
    if e.errno in _FATAL:
        return OutputError(
            f"--output {path!r} cannot be written ({e.strerror}); make room or mend its rights, "
            "then give the same command again: finished shards are kept."
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
        images = read_images(unit.refs, spec.image.max_bytes)
        for place, (ref, data) in enumerate(images, start=unit.first):
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
            stats.add(encoded, len(payload))
            progress(1, len(data), 0)
    finally:
        spec.sink.close(handle)
    return ShardResult(
        digest, unit.name, unit.split, unit.group, len(record_classes),
        spec.sink.hashing.num_bytes, spec.sink.hashing.hexdigest(), record_classes, rejects, stats,
    )  # fmt: skip


def _reject(ref: ImageRef, e: ImageError, stage: str) -> Reject:
    return Reject(ref.key, ref.uri, ref.label, str(ref.split), e.code, stage, e.message)


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
        except Exception:  # noqa: BLE001, S112  # there is a better error to raise
            continue
