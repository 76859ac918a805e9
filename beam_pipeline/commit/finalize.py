"""How shards become final: as they were written, or evened out after rejects left holes."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from beam_pipeline.commit.moves import plan_moves
from beam_pipeline.planning.refs import ImageRef
from beam_pipeline.shards.copying import read_records
from beam_pipeline.shards.finished import holds, output_error, read_result
from beam_pipeline.shards.places import ShardPlaces
from beam_pipeline.shards.result import ShardResult, count_classes
from beam_pipeline.shards.writer import RecordFile
from imageshards import storage
from imageshards.errors import ImageError, IndexDamageError, OutputError
from imageshards.index import moved_rows, read_shard_index, write_index
from imageshards.manifest import File, Shard
from imageshards.progress import note_activity
from imageshards.storage import AtomicFile, map_concurrently
from imageshards.tfrecord import FOOTER_BYTES, HEADER_BYTES


class FinalShard(NamedTuple):
    """A shard in its final place.

    Attributes:
        split: The split that it belongs to.
        shard: Its entry in the manifest.
        rejected: Path below the dataset → the file with its rejected originals, if there is one.
    """

    split: str
    shard: Shard
    rejected: dict[str, File]


@dataclasses.dataclass(frozen=True)
class FinalizeTask:
    """How a shard becomes final: as written, or with records that others give.

    Attributes:
        shard: As written, without details.
        give: Stratum (`ShardResult.strata`) → how many of its last records in it go to others.
        take: (shard name, stratum, number of the record among those in it) of what comes.
    """

    shard: ShardResult
    give: Mapping[str, int]
    take: tuple[tuple[str, str, int], ...]

    @property
    def changed(self) -> bool:
        """Whether it differs from what was written."""
        return bool(self.take or self.give)


def plan_finalize(shards: Iterable[ShardResult]) -> list[FinalizeTask]:
    """How every shard becomes final, so that those of a split are even."""
    splits: dict[str, list[ShardResult]] = collections.defaultdict(list)
    for shard in sorted(shards, key=lambda s: s.name):
        splits[shard.split].append(shard)
    tasks = []
    for group in splits.values():
        give = [collections.Counter[str]() for _ in group]
        take: list[list[tuple[str, str, int]]] = [[] for _ in group]
        # The plan made them even: only rejects leave holes.
        has_holes = any(shard.num_rejects for shard in group)
        for move in plan_moves([shard.strata for shard in group]) if has_holes else ():
            give[move.source][move.class_name] += 1
            take[move.target].append((group[move.source].name, move.class_name, move.number))
        for shard, given, taken in zip(group, give, take, strict=True):
            tasks.append(FinalizeTask(shard, dict(given), tuple(sorted(taken))))
    return tasks


def backup_shards(tasks: Iterable[FinalizeTask], places: ShardPlaces) -> None:
    """Copies shards that will be rewritten in place: others may need their records.

    They are in place because that is where they were written. All copies are made before the first
    shard is rewritten; one that is there already stays, as its shard may have been rewritten.
    """

    def back_up(shard: ShardResult) -> None:
        # A failed read ends this step. Copying after it could replace the only copy of the first
        # version by a shard that an earlier attempt has rewritten.
        if not holds(places.staged_path(shard.name), shard.file):
            storage.copy(places.final_path(shard.name), places.staged_path(shard.name))

    shards = [task.shard for task in tasks if task.changed and not task.shard.staged]
    for _ in map_concurrently(back_up, shards):
        pass


def finalize_shard(task: FinalizeTask, places: ShardPlaces) -> FinalShard:
    """Puts a shard, its index and its rejects into place; may be done again, also twice at once.

    What it reads in the staging folder stays as it is.
    """
    places.check_job()
    shard = task.shard
    try:
        entry = _rewrite(task, places) if task.changed else _link(shard, places)
        rejected: dict[str, File] = {}
        if originals := shard.rejects_file:
            path = places.quarantine_path(shard.name)
            storage.link(places.rejects_path(shard.name), path)
            rejected[path[len(storage.join(places.output, "")) :]] = originals.entry
        storage.sync(places.final_path(shard.name))  # the manifest will name it, and that is synced
    except FileNotFoundError as e:
        raise _damaged(str(e.filename), "it is gone") from e
    except ValueError as e:
        raise _damaged(places.result_path(shard.name), str(e)) from e
    except OSError as e:
        raise output_error(places.output, e) from e
    note_activity("committing", 1, "shard")
    return FinalShard(shard.split, entry, rejected)


def _damaged(path: str, how: str) -> OutputError:
    return OutputError(
        argument="output",
        received=f"{path}, which has changed since it was written ({how}), so nothing was "
        "committed",
        remedy="run the same command again, which writes that shard again",
    )


def _link(shard: ShardResult, places: ShardPlaces) -> Shard:
    """Puts a shard and its index into place as they are; not by a move, as this step may be run
    again, and other shards may need its records.
    """
    entry = shard.entry(places.file_of(shard.name))
    if shard.staged:
        storage.link(places.staged_path(shard.name), places.final_path(shard.name))
    index = storage.join(places.output, entry.index.file)
    storage.link(places.index_path(shard.name), index)
    return entry


def _rewrite(task: FinalizeTask, places: ShardPlaces) -> Shard:
    """Writes a shard anew from encoded records; the first version stays until the commit's end."""
    shard, file_name = task.shard, places.file_of(task.shard.name)
    # Its own first, then what others give, in the order of their names: the same bytes every time.
    kept = {n: range(count - task.give.get(n, 0)) for n, count in shard.strata.items()}
    tables = [_rows_of(shard, kept, places)]
    for name, taken in itertools.groupby(task.take, key=lambda record: record[0]):
        of_class: dict[str, set[int]] = collections.defaultdict(set)
        for _, class_name, number in taken:
            of_class[class_name].add(number)
        tables.append(_rows_of(read_result(name, places), of_class, places))
    table = pa.concat_tables(tables)
    final, staged = places.final_path(shard.name), places.staged_path(shard.name)
    with AtomicFile(final, beside=staged) as file:
        with RecordFile(file.local_path) as records:
            for ref, payload in read_records(_refs_to(table, places.staging)):
                if isinstance(payload, ImageError):
                    raise _damaged(ref.uri, payload.message)
                records.write(payload)
        file.commit()
    classes = count_classes(_labels_in(table))
    rewritten = msgspec.structs.replace(
        shard, num_records=len(table), file=records.written(), classes=classes
    )
    index = write_index(places.output, file_name, moved_rows(table, file_name))
    return rewritten.entry(file_name, index)


def _rows_of(
    shard: ShardResult, numbers: Mapping[str, Container[int]], places: ShardPlaces
) -> pa.Table:
    """Rows of the index of a shard, by their numbers among those of a stratum.

    Raises:
        OutputError: The index is not the one that was written, or gone.
    """
    try:
        table = read_shard_index(places.staging, shard.entry(places.file_of(shard.name)))
    except IndexDamageError as e:
        raise _damaged(places.index_path(shard.name), f"it {e.problem}") from e
    seen = collections.Counter[str]()
    is_wanted = []
    for label in _labels_in(table):
        stratum = label if isinstance(label, str) else ""
        is_wanted.append(seen[stratum] in numbers.get(stratum, ()))
        seen[stratum] += 1
    return table.filter(pa.array(is_wanted, pa.bool_()))


def _labels_in(table: pa.Table) -> list[Any]:
    """The label of each record: a name, names, or None."""
    if "class_name" not in table.column_names:
        return [None] * len(table)
    return list(table["class_name"].to_pylist())


def _refs_to(table: pa.Table, folder: str) -> list[ImageRef]:
    """References to the records of an index, whose shards are in a folder."""
    columns = (table[name].to_pylist() for name in ("shard", "offset", "num_bytes"))
    framing = HEADER_BYTES + FOOTER_BYTES
    return [
        ImageRef("", storage.join(folder, file), "", size_bytes=size - framing, offset_bytes=offset)
        for file, offset, size in zip(*columns, strict=True)
    ]
