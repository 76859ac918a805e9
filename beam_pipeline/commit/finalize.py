"""Puts shards into their final places, evened out if rejected images left holes."""

from __future__ import annotations

import collections
import dataclasses
import errno
import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from beam_pipeline.planning.refs import ImageRef
from beam_pipeline.shards.copying import read_records
from beam_pipeline.shards.places import ShardPlaces
from beam_pipeline.shards.result import (
    ShardResult,
    count_classes,
    is_unchanged,
    output_error,
    read_result,
)
from beam_pipeline.shards.writer import RecordFile
from imageshards import storage
from imageshards.errors import ImageError, IndexDamageError, OutputError
from imageshards.index import moved_rows, read_shard_index, write_index
from imageshards.manifest import File, Shard
from imageshards.progress import note_activity
from imageshards.tfrecord import FRAME_BYTES


class Move(NamedTuple):
    """Move of the `number`-th record of a class, counted from 0, from one shard to another."""

    source: int
    class_name: str
    number: int
    target: int


def plan_moves(counts: Sequence[Mapping[str, int]]) -> list[Move]:
    """Returns moves after which sizes of shards, and counts of each class, differ by at most one.

    `counts` has for each shard the class names with their records. Every shard gets ⌊count /
    shards⌋ records of each class. A controlled rounding of the table of counts (Cox 1987) decides
    which shards get one extra record, and of which class. A shard keeps an extra record that it
    has, if possible, and gives away its last records of a class.
    """
    if not counts:
        return []
    totals = collections.Counter[str]()
    for of_shard in counts:
        totals.update(of_shard)
    base = {name: total // len(counts) for name, total in totals.items()}
    extras = _choose_extras(counts, totals)
    _even_out(extras, counts, base)
    moves = []
    for name in sorted(totals):
        target = [base[name] + (name in extra) for extra in extras]
        has = [of_shard.get(name, 0) for of_shard in counts]
        needs = (i for i in range(len(counts)) for _ in range(target[i] - has[i]))
        for source, wanted in enumerate(target):
            for number in range(wanted, has[source]):
                moves.append(Move(source, name, number, next(needs)))
    return moves


def _choose_extras(
    counts: Sequence[Mapping[str, int]], totals: Mapping[str, int]
) -> list[set[str]]:
    """Returns for each shard the classes of which it gets more than ⌊count / shards⌋ records."""
    extras: list[set[str]] = [set() for _ in counts]
    for of_shard, extra in zip(counts, extras, strict=True):
        extra.update(n for n, count in of_shard.items() if count > totals[n] // len(counts))
    chosen = collections.Counter(name for extra in extras for name in extra)
    for name in sorted(totals):
        surplus = chosen[name] - totals[name] % len(counts)
        # If too many shards have an extra record, the shards with the most extras give theirs away.
        # If too few have an extra record, the shards with the fewest extras get one.
        if surplus:
            shards = [i for i, extra in enumerate(extras) if (name in extra) == (surplus > 0)]
            shards.sort(key=lambda i: (len(extras[i]), -i), reverse=surplus > 0)
            for shard in shards[: abs(surplus)]:
                extras[shard] ^= {name}
    return extras


def _even_out(
    extras: list[set[str]], counts: Sequence[Mapping[str, int]], base: Mapping[str, int]
) -> None:
    """Passes extra records from shards with too many to shards with too few, in `extras`."""
    share, odd = divmod(sum(map(len, extras)), len(extras))
    fullest = sorted(range(len(extras)), key=lambda i: (-len(extras[i]), i))
    wanted = {shard: share + (place < odd) for place, shard in enumerate(fullest)}
    needs = (i for i, extra in enumerate(list(map(len, extras))) for _ in range(wanted[i] - extra))

    def cost(name: str, giver: int, taker: int) -> int:
        """Returns how many more records move if this class is passed on."""
        has_extra = [counts[shard].get(name, 0) > base[name] for shard in (giver, taker)]
        return has_extra[0] - has_extra[1]

    for giver, extra in enumerate(extras):
        for _ in range(len(extra) - wanted[giver]):
            taker = next(needs)
            # The giver has more extra records than the taker, so there is a class only it has.
            name = min(extra - extras[taker], key=lambda n: (cost(n, giver, taker), n))
            extra.remove(name)
            extras[taker].add(name)


class FinalShard(NamedTuple):
    split: str
    shard: Shard  # the entry in the manifest
    rejected: dict[str, File]  # path below the dataset → file of rejected originals; may be empty


@dataclasses.dataclass(frozen=True)
class FinalizeTask:
    """Task to make a shard final, as written or with records that move between shards."""

    shard: ShardResult  # as written, without details
    give: Mapping[str, int]  # stratum (`ShardResult.strata`) → how many of its last records leave
    take: tuple[tuple[str, str, int], ...]  # (shard, stratum, number in the stratum) of what comes

    @property
    def changed(self) -> bool:
        """Whether records leave or come, so that the shard must be written again."""
        return bool(self.take or self.give)


def plan_finalize(shards: Iterable[ShardResult]) -> list[FinalizeTask]:
    """Plans the moves of records after which all shards of a split have equal sizes, ±1."""
    splits: dict[str, list[ShardResult]] = collections.defaultdict(list)
    for shard in sorted(shards, key=lambda s: s.name):
        splits[shard.split].append(shard)
    tasks = []
    for group in splits.values():
        give = [collections.Counter[str]() for _ in group]
        take: list[list[tuple[str, str, int]]] = [[] for _ in group]
        # The plan made the shards even, and only rejects leave holes.
        has_holes = any(shard.num_rejects for shard in group)
        for move in plan_moves([shard.strata for shard in group]) if has_holes else ():
            give[move.source][move.class_name] += 1
            take[move.target].append((group[move.source].name, move.class_name, move.number))
        for shard, given, taken in zip(group, give, take, strict=True):
            tasks.append(FinalizeTask(shard, dict(given), tuple(sorted(taken))))
    return tasks


def finalize_shard(task: FinalizeTask, places: ShardPlaces) -> FinalShard:
    """Puts a shard, its index and its rejects into their final places.

    Beam may run this step again, or twice at the same time: files in the staging folder stay.
    """
    places.check_job()
    shard = task.shard
    try:
        if task.changed:
            entry = _rewrite(task, places)
        else:
            # A move would break a second run of this step, and shards that need its records.
            entry = shard.entry(places.file_of(shard.name))
            _check_staged(shard, places)
            storage.link(places.staged_path(shard.name), places.final_path(shard.name))
            index = storage.join(places.output, entry.index.file)
            storage.link(places.index_path(shard.name), index)
        rejected: dict[str, File] = {}
        if originals := shard.rejects_file:
            path = places.quarantine_path(shard.name)
            storage.link(places.rejects_path(shard.name), path)
            rejected[path[len(storage.join(places.output, "")) :]] = originals.entry
        # The synced manifest will name this shard, so the shard must survive a power cut as well.
        storage.sync(places.final_path(shard.name))
    except FileNotFoundError as e:
        raise _damaged(str(e.filename), "it is gone") from e
    except ValueError as e:
        raise _damaged(places.result_path(shard.name), str(e)) from e
    except OSError as e:
        raise output_error(places.output, e) from e
    note_activity("committing", 1, "shard")
    return FinalShard(shard.split, entry, rejected)


def _check_staged(shard: ShardResult, places: ShardPlaces) -> None:
    # A worker of a job that has lost the output may have written there.
    if not is_unchanged(path := places.staged_path(shard.name), shard.file):
        raise _damaged(path, "it has other bytes")


def _damaged(path: str, how: str) -> OutputError:
    received = f"{path}, which has changed since it was written ({how}), so nothing was committed"
    remedy = "run the same command again, which writes that shard again"
    return OutputError(argument="output", received=received, remedy=remedy)


def _rewrite(task: FinalizeTask, places: ShardPlaces) -> Shard:
    """Writes a shard again from encoded records; the first version stays in the staging folder."""
    shard, file_name = task.shard, places.file_of(task.shard.name)
    # Own records come first, then records of further shards in the order of their names, so that
    # every run writes the same bytes.
    kept = {n: range(count - task.give.get(n, 0)) for n, count in shard.strata.items()}
    tables = [_rows_of(shard, kept, places)]
    for name, taken in itertools.groupby(task.take, key=lambda record: record[0]):
        of_class: dict[str, set[int]] = collections.defaultdict(set)
        for _, class_name, number in taken:
            of_class[class_name].add(number)
        tables.append(_rows_of(read_result(name, places), of_class, places))
    table = pa.concat_tables(tables)
    final, staged = places.final_path(shard.name), places.staged_path(shard.name)
    before = storage.stat(final)
    with RecordFile(final, beside=staged) as records:
        for ref, payload in read_records(_refs_to(table, places.staging)):
            if isinstance(payload, ImageError):
                raise _damaged(ref.uri, payload.message)
            records.write(payload)
        places.check_job()
        try:
            records.commit(before and before.version)
        except OSError as e:
            # Another attempt at this step writes the same bytes.
            if e.errno != errno.ESTALE or not is_unchanged(final, records.written()):
                raise
    classes = count_classes(_labels_in(table))
    rewritten = msgspec.structs.replace(
        shard, num_records=len(table), file=records.written(), classes=classes
    )
    index = write_index(places.output, file_name, moved_rows(table, file_name))
    return rewritten.entry(file_name, index)


def _rows_of(
    shard: ShardResult, numbers: Mapping[str, Container[int]], places: ShardPlaces
) -> pa.Table:
    """Returns rows of a shard's index: `numbers` counts the wanted records in each stratum."""
    _check_staged(shard, places)
    try:
        table = read_shard_index(places.staging, shard.entry(places.file_of(shard.name)))
    except IndexDamageError as e:
        raise _damaged(places.index_path(shard.name), f"it {e.damage}") from e
    seen = collections.Counter[str]()
    is_wanted = []
    for label in _labels_in(table):
        stratum = label if isinstance(label, str) else ""
        is_wanted.append(seen[stratum] in numbers.get(stratum, ()))
        seen[stratum] += 1
    return table.filter(pa.array(is_wanted, pa.bool_()))


def _labels_in(table: pa.Table) -> list[Any]:
    """Returns the label of each record: a class name, a list of them, or None."""
    if "class_name" not in table.column_names:
        return [None] * len(table)
    return list(table["class_name"].to_pylist())


def _refs_to(table: pa.Table, folder: str) -> list[ImageRef]:
    columns = (table[name].to_pylist() for name in ("shard", "offset", "num_bytes"))
    return [
        ImageRef(
            "", storage.join(folder, file), "", size_bytes=size - FRAME_BYTES, offset_bytes=offset
        )
        for file, offset, size in zip(*columns, strict=True)
    ]
