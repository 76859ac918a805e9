"""How shards become final: as they were written, or with records of others."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from beam_pipeline.commit.outcome import Finished
from beam_pipeline.commit.rebalance import plan_moves
from beam_pipeline.shards.result import ShardResult
from beam_pipeline.shards.writer import WriteSpec, output_error, read_result
from imageshards import storage, tfrecord
from imageshards.storage import AtomicFile, map_concurrently


@dataclasses.dataclass(frozen=True)
class FinalShard:
    """How a shard becomes final: as written, or with records taken from others.

    Attributes:
        finished: The shard as written.
        keep: How many of its first records stay.
        take: (shard name, record) of those that follow.
    """

    finished: Finished
    keep: int
    take: tuple[tuple[str, int], ...]

    @property
    def changed(self) -> bool:
        """Whether it differs from what was written."""
        return bool(self.take) or self.keep < self.finished.num_records


def final_shards(finished: Iterable[Finished]) -> list[FinalShard]:
    """How every shard becomes final, so that those of a split (and group) are even."""
    groups: dict[tuple[str, str], list[Finished]] = collections.defaultdict(list)
    for shard in sorted(finished, key=lambda s: s.name):
        groups[shard.split, shard.group].append(shard)
    tasks = []
    for shards in groups.values():
        keep = [shard.num_records for shard in shards]
        take: list[list[tuple[str, int]]] = [[] for _ in shards]
        for move in plan_moves(keep):
            take[move.target].append((shards[move.source].name, move.record))
            keep[move.source] -= 1
        for shard, kept, taken in zip(shards, keep, take, strict=True):
            tasks.append(FinalShard(shard, kept, tuple(taken)))
    return tasks


def set_aside(changed: list[Finished], spec: WriteSpec) -> None:
    """Copies shards that will be rewritten where they are: others may need their records.

    They are there because that is where they were written, or because a commit that was
    killed had moved them. All copies are made before the first shard is rewritten.
    """
    names = [shard.name for shard in changed if not shard.staged]
    for _ in map_concurrently(
        lambda n: storage.copy(spec.final_path(n), spec.staged_path(n)), names
    ):
        pass


def finish_shard(task: FinalShard, spec: WriteSpec, compression: str) -> dict[str, Any]:
    """Puts one shard into its final place; returns its entry in the manifest."""
    shard = task.finished
    entry: dict[str, Any] = {
        "file": spec.file_of(shard.name),
        "num_records": shard.num_records,
        "num_bytes": shard.num_bytes,
        "sha256": shard.sha256,
        "classes": shard.classes,
    }
    try:
        if task.changed:
            entry |= _rewrite(task, spec, compression)
        elif shard.staged:
            _move(spec.staged_path(shard.name), spec.final_path(shard.name))
    except OSError as e:
        raise output_error(spec.output, e) from e
    return {"split": shard.split, **entry}


def _move(staged: str, final: str) -> None:
    if storage.is_local(staged):
        # Absent when this was done before, by a run of the same step that was killed.
        with contextlib.suppress(FileNotFoundError):
            storage.move(staged, final)
    else:
        storage.copy(staged, final)  # what was written goes with its folder


def _rewrite(task: FinalShard, spec: WriteSpec, compression: str) -> dict[str, Any]:
    """Writes a shard anew from encoded records; what was written stays until the end."""
    sink = spec.sink
    classes: collections.Counter[str] = collections.Counter()
    sources = [(task.finished.name, set(range(task.keep)))]
    for name, taken in itertools.groupby(task.take, key=lambda pair: pair[0]):
        sources.append((name, {record for _, record in taken}))
    final, staged = spec.final_path(task.finished.name), spec.staged_path(task.finished.name)
    with AtomicFile(final, aside=staged) as file:
        handle = sink.open(file.local_path)
        try:
            for name, wanted in sources:
                result = read_result(name, spec)
                path = spec.staged_path(name)
                for index, payload in _payloads(path, result, wanted, compression):
                    sink.write_encoded_record(handle, payload)
                    classes[result.record_classes[index]] += 1
        finally:
            sink.close(handle)
        file.commit()
    return {
        "num_records": sum(classes.values()),
        "num_bytes": sink.hashing.num_bytes,
        "sha256": sink.hashing.hexdigest(),
        "classes": dict(sorted(classes.items())),
    }


def _payloads(
    path: str, result: ShardResult, wanted: set[int], compression: str
) -> Iterator[tuple[int, bytes]]:
    """Some records of a shard; without compression only the bytes around them are read."""
    if not wanted:
        return
    first = min(wanted) if compression == "none" else 0
    last = max(wanted)
    with storage.open_read(path) as stream:
        stream.seek(sum(result.record_bytes[:first]))
        for record in tfrecord.scan_records(stream, path, compression):
            if isinstance(record, tfrecord.RecordError):
                raise record
            if first + record.number in wanted:
                yield first + record.number, record.payload
            if first + record.number == last:
                return
