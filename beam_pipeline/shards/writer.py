"""Writes one shard, as a whole or not at all, with its index and its rejected images."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from beam_pipeline.images.pool_worker import Watch
from beam_pipeline.metrics import Clock
from beam_pipeline.options import ShardOptions
from beam_pipeline.planning.refs import ImageRef, ShardUnit, label_kind, names_of
from beam_pipeline.shards.copying import DAMAGED, read_files_and_records
from beam_pipeline.shards.places import ShardPlaces
from beam_pipeline.shards.record import make_record
from beam_pipeline.shards.result import (
    ShardResult,
    ShardStats,
    WrittenFile,
    count_classes,
    finished_result,
    output_error,
    read_result,
    unit_digest,
    write_result,
)
from imageshards import storage
from imageshards.errors import ImageError
from imageshards.example import Values, decode_example, encode_example
from imageshards.index import IndexRows, encode_index, index_table
from imageshards.manifest.file import Reject
from imageshards.text import printable
from imageshards.tfrecord import FRAME_BYTES, frame_record

# A record has about 20 kB, so one write to the file is for some fifty records.
_BUFFER_BYTES = 1 << 20


def write_shard(
    unit: ShardUnit, places: ShardPlaces, options: ShardOptions, watch: Watch | None = None
) -> ShardResult:
    """Reads, encodes and writes the images of one shard, unless an earlier run has finished it.

    Returns the result without details, which are in the file beside the shard. `watch` counts the
    images, and rejects pictures that crashed a process before.
    """
    shard = _Shard(unit, places, options, watch or Watch())
    try:
        places.check_job()
        before = storage.stat(places.staged_path(shard.name))
        if before and (finished := shard.finished()):
            shard.watch.add(len(unit.refs), 0, 0, len(unit.refs))
        else:
            finished = shard.write(before and before.version)
        return finished.without_details()
    except OSError as e:
        raise output_error(places.staging, e) from e


class _Shard:
    """Shard that is written, with the rows of its index and its counts."""

    def __init__(self, unit: ShardUnit, places: ShardPlaces, options: ShardOptions, watch: Watch):
        self.unit, self.places, self.options, self.watch = unit, places, options, watch
        self.name = unit.name
        self._digest = unit_digest(unit, options)
        self._label = label_kind(unit.refs[0].label)
        self._rows, self._stats, self._read_bytes = IndexRows(), ShardStats(), 0
        self._clocks = {stage: Clock() for stage in ("read", "decode", "encode", "write")}

    def finished(self) -> ShardResult | None:
        """Returns the result of an earlier attempt that has written this shard."""
        return finished_result(self.name, self.places, self._digest)

    def write(self, before: str | None) -> ShardResult:
        """Writes the shard in place of the object of version `before`, None for no object."""
        path = self.places.rejects_path(self.name)
        # Neither file has its final name before its `commit`, so a killed process leaves no file
        # that looks like a whole shard.
        with (
            RecordFile(self.places.staged_path(self.name)) as records,
            RejectsFile(path, self.options.quarantine_bytes) as rejects,
        ):
            self._write_records(records, rejects)
            with self._clocks["write"].running():
                version = self._put_in_place(records, before)
            if version is None:
                return read_result(self.name, self.places)
            result = ShardResult(
                name=self.name,
                split=self.unit.split,
                num_records=len(self._rows),
                classes=count_classes(self._rows.columns["class_name"]),
                label=self._label,
                num_rejects=len(rejects.rejects),
                rejects_file=rejects.commit(),
                index=self._write_index(),
                file=records.written(version),
                digest=self._digest,
                read_bytes=self._read_bytes,
                msec={stage: clock.msec for stage, clock in self._clocks.items()},
                rejects=rejects.rejects,
                stats=self._stats,
                run_id=self.options.run_id,
            )
        write_result(result, self.places)  # makes the shard finished, so it comes last
        return result

    def _put_in_place(self, file: RecordFile, before: str | None) -> str | None:
        """Moves the shard to its path; returns its version, or None if another was faster."""
        while True:
            # Another job may have taken the output over while this shard was written.
            self.places.check_job()
            try:
                return file.commit(before)
            except OSError as e:
                if e.errno != errno.ESTALE:
                    raise
            # A worker of a job that has lost the output, or another attempt, wrote there.
            if self.finished():
                return None
            before = (found := storage.stat(file.path)) and found.version

    def _write_records(self, records: RecordFile, rejects: RejectsFile) -> None:
        image, refs = self.options.image, self.unit.refs
        found = read_files_and_records(refs, image.max_bytes, self.options.urls)
        read, decode, encode, write = self._clocks.values()
        for index, (ref, data) in enumerate(read.over(found)):
            if isinstance(data, ImageError):
                rejects.add(ref, data, "copy" if data.code == DAMAGED else "read")
                self.watch.add(1, 0, 1)
                continue
            self._read_bytes += len(data)
            try:
                # The picture may crash this process; then the next attempt knows which it was.
                with decode.running(), self.watch.picture(index):
                    record = make_record(ref, data, self.unit, self.options, self._stats, index)
            except ImageError as e:
                # A record is still in its dataset, so only originals are kept with their bytes.
                stage, original = ("copy", None) if ref.is_record else ("decode", data)
                rejects.add(ref, e, stage, original)
                self.watch.add(1, len(data), 1)
                continue
            decode.ns -= record.encode_ns
            encode.ns += record.encode_ns
            with write.running():
                records.write(record.payload)
            frame_bytes = FRAME_BYTES + len(record.payload)
            self._rows.add(
                record.features, frame_bytes, record.source_bytes, is_original=record.is_original
            )
            self.watch.add(1, len(data), 0)
        for reject in rejects.rejects:
            self._stats.count("rejects", reject.reason)

    def _write_index(self) -> WrittenFile | None:
        unit, file = self.unit, self.places.file_of(self.name)
        # Without `AnalyseColumns` in the pipeline the columns of an index are unknown.
        if unit.features is None:
            return None
        keeps_jpegs = self.options.image.keeps_jpegs
        table = index_table(self._rows, unit.split, file, unit.features, self._label, keeps_jpegs)
        entry, data = encode_index(file, table)
        stored = storage.write(self.places.index_path(self.name), data)
        return WrittenFile(entry.num_bytes, entry.sha256, stored.version)


class RecordFile(storage.AtomicFile):
    """TFRecord file, which is hashed while it is written, and appears as a whole on `commit`."""

    def __enter__(self) -> RecordFile:
        super().__enter__()
        os.makedirs(os.path.dirname(self.local_path) or ".", exist_ok=True)
        self._file = open(self.local_path, "wb", _BUFFER_BYTES)
        self._hash = hashlib.sha256()
        self.num_bytes = 0
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        super().__exit__(*error)

    def commit(self, version: str | None = "") -> str:
        self._file.close()
        return super().commit(version)

    def write(self, payload: bytes) -> None:
        framed = frame_record(payload)
        self._file.write(framed)
        self._hash.update(framed)
        self.num_bytes += len(framed)

    def written(self, version: str = "") -> WrittenFile:
        return WrittenFile(self.num_bytes, self._hash.hexdigest(), version)


class RejectsFile(contextlib.ExitStack):
    """File of the rejected images of a shard; the first rejected image creates the file.

    The commit reads this file, because an original may be deleted or changed by then.
    """

    def __init__(self, path: str, keeps_bytes: bool):
        super().__init__()
        self._keeps_bytes = keeps_bytes
        self._path = path
        self._records: RecordFile | None = None
        self.rejects: list[Reject] = []

    def add(self, ref: ImageRef, error: ImageError, stage: str, data: bytes | None = None) -> None:
        """Adds an image, with the stage that failed: `read`, `decode` or `copy`."""
        label = ", ".join(names_of(ref.label))
        fields = (ref.key, ref.uri, label, str(ref.split), error.code, stage, error.message)
        reject = Reject(*map(printable, fields))
        self.rejects.append(reject)
        if self._records is None:
            self._records = self.enter_context(RecordFile(self._path))
        self._records.write(encode_reject(reject, data if self._keeps_bytes else None))

    def commit(self) -> WrittenFile | None:
        """Moves the file to its path; returns None if there were no rejects."""
        return self._records.written(self._records.commit()) if self._records else None


_REJECT_FEATURES = ("image/filename", *Reject.__struct_fields__[1:])


def decode_reject(payload: bytes) -> Reject:
    found: Mapping[str, Any] = decode_example(payload, {*_REJECT_FEATURES})
    return Reject(*(found[name][0].decode() for name in _REJECT_FEATURES))


def encode_reject(reject: Reject, data: bytes | None) -> bytes:
    texts = zip(_REJECT_FEATURES, msgspec.structs.astuple(reject), strict=True)
    features: dict[str, Values] = {name: [text.encode()] for name, text in texts}
    if data is not None:
        features["image/encoded"] = [data]
    return encode_example(features)
