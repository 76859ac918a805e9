"""How shards become final: as they were written, or evened out after rejects left holes."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from beam_pipeline.shards.result import ShardResult, ShardSummary, count_classes
from beam_pipeline.shards.spec import RecordFile, WriteSpec
from beam_pipeline.shards.writer import output_error, read_result
from imageshards import storage, tfrecord
from imageshards.errors import OutputError
from imageshards.index import IndexRows, index_table, write_index
from imageshards.progress import note_activity
from imageshards.storage import AtomicFile, map_concurrently


@dataclasses.dataclass(frozen=True)
class Move:
    """Record `record` of shard `source` becomes the last of shard `target`."""

    source: int
    record: int
    target: int


def plan_moves(counts: Sequence[int]) -> list[Move]:
    """The fewest moves after which counts differ by at most one.

    The fullest shards keep the odd records (ties: the lower index); a shard gives from its
    end, in order, to the emptiest first by index. A function of the counts alone.

    Args:
        counts: Records per shard, as written.
    """
    if not counts:
        return []
    base, odd = divmod(sum(counts), len(counts))
    fullest = sorted(range(len(counts)), key=lambda i: (-counts[i], i))
    target = {shard: base + (place < odd) for place, shard in enumerate(fullest)}
    needs = [shard for shard in range(len(counts)) for _ in range(target[shard] - counts[shard])]
    gives = [
        (shard, record)
        for shard in range(len(counts))
        for record in range(target[shard], counts[shard])
    ]
    return [Move(source, record, to) for (source, record), to in zip(gives, needs, strict=True)]


@dataclasses.dataclass(frozen=True)
class FinalizeTask:
    """How a shard becomes final: as written, or with records taken from others.

    Attributes:
        shard: As written.
        keep: How many of its first records stay.
        take: (shard name, record) of those that follow.
        features: Those of the manifest; the small ones become columns of the index.
    """

    shard: ShardSummary
    keep: int
    take: tuple[tuple[str, int], ...]
    features: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether it differs from what was written."""
        return bool(self.take) or self.keep < self.shard.num_records


def plan_finalize(
    shards: Iterable[ShardSummary], features: Mapping[str, Mapping[str, Any]]
) -> list[FinalizeTask]:
    """How every shard becomes final, so that those of a split (and group) are even.

    Args:
        shards: As written.
        features: Those of the manifest.
    """
    groups: dict[tuple[str, str], list[ShardSummary]] = collections.defaultdict(list)
    for shard in sorted(shards, key=lambda s: s.name):
        groups[shard.split, shard.group].append(shard)
    tasks = []
    for group in groups.values():
        keep = [shard.num_records for shard in group]
        take: list[list[tuple[str, int]]] = [[] for _ in group]
        for move in plan_moves(keep):
            take[move.target].append((group[move.source].name, move.record))
            keep[move.source] -= 1
        for shard, kept, taken in zip(group, keep, take, strict=True):
            tasks.append(FinalizeTask(shard, kept, tuple(taken), features))
    return tasks


def backup_shards(tasks: Iterable[FinalizeTask], spec: WriteSpec) -> None:
    """Copies shards that will be rewritten in place: others may need their records.

    They are in place because that is where they were written, or because a commit that was
    killed had moved them. All copies are made before the first shard is rewritten.
    """
    names = [task.shard.name for task in tasks if task.changed and not task.shard.staged]
    for _ in map_concurrently(
        lambda n: storage.copy(spec.final_path(n), spec.staged_path(n)), names
    ):
        pass


def finalize_shard(task: FinalizeTask, spec: WriteSpec) -> dict[str, Any]:
    """Puts one shard and its index into place; returns its entry in the manifest and its split."""
    shard, file = task.shard, spec.file_of(task.shard.name)
    entry: dict[str, Any] = {
        "file": file,
        "num_records": shard.num_records,
        "num_bytes": shard.num_bytes,
        "sha256": shard.sha256,
        "classes": shard.classes,
    }
    try:
        if task.changed:
            rewritten, rows = _rewrite(task, spec)
            entry |= rewritten
        else:
            rows = read_result(shard.name, spec).rows
            if shard.staged:
                move_staged(spec.staged_path(shard.name), spec.final_path(shard.name))
        table = index_table(rows, shard.split, file, spec.compression, task.features)
        entry["index"] = write_index(spec.output, file, table)
        storage.sync(spec.final_path(shard.name))  # the manifest will name it, and that is synced
    except FileNotFoundError as e:
        raise _damaged(str(e.filename), "is gone") from e
    except OSError as e:
        raise output_error(spec.output, e) from e
    note_activity("committing", 1, "shard")
    return {"split": shard.split, **entry}


def move_staged(staged: str, final: str) -> None:
    """Puts a staged file in its place; may be done again."""
    if storage.is_local(staged):
        # Absent if a run of this step that was killed has moved it already.
        with contextlib.suppress(FileNotFoundError):
            storage.move(staged, final)
    else:
        storage.copy(staged, final)  # the staging folder is removed as a whole


def _damaged(path: str, how: str) -> OutputError:
    return OutputError(
        f"--output: {path} {how} since it was written; nothing was committed: run the same command "
        "again, which writes that shard again."
    )


def _rewrite(task: FinalizeTask, spec: WriteSpec) -> tuple[dict[str, Any], IndexRows]:
    """Writes a shard anew from encoded records; the first version stays until the commit's end."""
    rows = IndexRows()
    sources = [(task.shard.name, set(range(task.keep)))]
    for name, taken in itertools.groupby(task.take, key=lambda pair: pair[0]):
        sources.append((name, {record for _, record in taken}))
    final, staged = spec.final_path(task.shard.name), spec.staged_path(task.shard.name)
    with AtomicFile(final, beside=staged) as file:
        with RecordFile(file.local_path, spec.compression) as records:
            for name, wanted in sources:
                result = read_result(name, spec)
                path = spec.staged_path(name)
                written = []
                for index, payload in _payloads(path, result, wanted, spec.compression):
                    records.write(payload)
                    written.append(index)
                rows.extend(result.rows, written)
        file.commit()
    return {
        "num_records": len(rows),
        "num_bytes": records.num_bytes,
        "sha256": records.hexdigest(),
        "classes": count_classes(rows.columns["class_name"]),
    }, rows


def _payloads(
    path: str, result: ShardResult, wanted: set[int], compression: str
) -> Iterator[tuple[int, bytes]]:
    """Yields (index, record) of the wanted records; uncompressed, only their part is read.

    Raises:
        OutputError: The file does not hold all of them.
    """
    if not wanted:
        return
    first = min(wanted) if compression == "none" else 0
    last = max(wanted)
    with storage.open_read(path) as stream:
        stream.seek(sum(result.rows.columns["num_bytes"][:first]))
        for record in tfrecord.scan_records(stream, path, compression):
            if isinstance(record, tfrecord.RecordError):
                raise _damaged(path, f"has become damaged ({record.reason})") from record
            if first + record.number in wanted:
                yield first + record.number, record.payload
            if first + record.number == last:
                return
    raise _damaged(path, "has lost records")
