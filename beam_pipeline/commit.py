"""From finished shards to a data set: even them out, make them visible, write the manifest."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam import pvalue

from beam_pipeline import plan, quarantine, records
from beam_pipeline.manifest import MANIFEST_NAME, to_json, write_whole
from beam_pipeline.publish import manifest_of, publish
from beam_pipeline.rebalance import plan_moves
from beam_pipeline.record import ShardStats
from beam_pipeline.shards import Reject, ShardResult, WriteSpec, output_error
from beam_pipeline.staging_folder import mark_committed

_SHARD_FILE = re.compile(r"\w+-\d{5}-of-\d{5}\.tfrecord(\.gz)?")


@dataclasses.dataclass(frozen=True)
class Finished:
    """What the commit needs to know of a written shard: its size does not grow with it."""

    name: str
    split: str
    group: str
    num_records: int
    num_bytes: int
    sha256: str
    classes: dict[str, int]
    digest: str


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


@dataclasses.dataclass(frozen=True)
class CommitSpec:
    """Where and how a data set is committed.

    Attributes:
        output: The data set's folder.
        write: The spec the shards were written with.
        max_reject_fraction: Budget of rejects.
        report: Whether pictures for people are made.
        options: What the manifest says of the options.
        image: What it says of the pictures.
        versions: What it says of library versions.
        shard_by, compression: What it says of them.
    """

    output: str
    write: WriteSpec
    max_reject_fraction: float
    report: bool
    options: dict[str, Any]
    image: dict[str, Any]
    versions: dict[str, str]
    shard_by: str
    compression: str

    def final_path(self, name: str) -> str:
        """Where the shard `name` is when it is committed."""
        return os.path.join(self.output, name + self.write.sink.file_name_suffix.get())


def summarise(result: ShardResult) -> Finished:
    """The part of a result that travels to the commit."""
    classes = collections.Counter(result.record_classes)
    return Finished(
        result.name, result.split, result.group, result.num_records, result.num_bytes,
        result.sha256, dict(sorted(classes.items())), result.digest,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of some shards.

    Attributes:
        finished: The shards.
        rejects: Their rejected images.
        stats: Split → counts over accepted images.
    """

    finished: list[Finished]
    rejects: list[Reject]
    stats: dict[str, ShardStats]


def outcome_of(result: ShardResult) -> Outcome:
    """The part of a result that travels to the commit."""
    return Outcome([summarise(result)], result.rejects, {result.split: result.stats})


def merge_outcomes(found: Iterable[Outcome]) -> Outcome:
    """Outcome of all shards together."""
    total = Outcome([], [], collections.defaultdict(ShardStats))
    for each in found:
        total.finished.extend(each.finished)
        total.rejects.extend(each.rejects)
        for split, stats in each.stats.items():
            total.stats[split].merge(stats)
    return dataclasses.replace(total, stats=dict(total.stats))


def to_list(found: Iterable[list[Any]]) -> list[Any]:
    """Concatenates lists."""
    return [value for values in found for value in values]


def begin_commit(outcome: Outcome, layout: plan.Layout, spec: CommitSpec) -> Iterator[FinalShard]:
    """Checks that nothing was lost, takes the old data set away, and tells what moves.

    Raises:
        UserError: More rejects than the budget.
        RuntimeError: Records and rejects do not add up to what was listed.
    """
    finished, rejects = outcome.finished, outcome.rejects
    listed = layout.num_images
    accepted = sum(shard.num_records for shard in finished)
    planned = sum(layout.num_shards.values())
    if accepted + len(rejects) != listed or len(finished) != planned:
        raise RuntimeError(
            f"{accepted} records and {len(rejects)} rejects in {len(finished)} shards do not add "
            f"up to {listed} images in {planned} shards: the runner lost work; nothing was "
            "committed"
        )
    where = quarantine.write_list(rejects, spec.write.staging)
    quarantine.check_budget(rejects, listed, spec.max_reject_fraction, where)
    _take_away_old(spec, {shard.name for shard in finished})
    groups: dict[tuple[str, str], list[Finished]] = collections.defaultdict(list)
    for shard in sorted(finished, key=lambda s: s.name):
        groups[shard.split, shard.group].append(shard)
    for shards in groups.values():
        keep = [shard.num_records for shard in shards]
        take: list[list[tuple[str, int]]] = [[] for _ in shards]
        for move in plan_moves(keep):
            take[move.target].append((shards[move.source].name, move.record))
            keep[move.source] -= 1
        for shard, kept, taken in zip(shards, keep, take, strict=True):
            task = FinalShard(shard, kept, tuple(taken))
            staged = spec.write.staged_path(shard.name)
            if task.changed and not os.path.exists(staged):
                # A commit that was killed had moved it; others may need its records.
                shutil.copyfile(spec.final_path(shard.name), staged)
            yield task


def _take_away_old(spec: CommitSpec, names: set[str]) -> None:
    """Removes a data set that is replaced: its manifest first, so that it is none any more."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(spec.output, MANIFEST_NAME))
    keep = {os.path.basename(spec.final_path(name)) for name in names}
    for name in os.listdir(spec.output):
        if _SHARD_FILE.fullmatch(name) and name not in keep:
            os.remove(os.path.join(spec.output, name))


def finish_shard(task: FinalShard, spec: CommitSpec) -> dict[str, Any]:
    """Puts one shard into its final place; returns its entry in the manifest."""
    shard = task.finished
    final = spec.final_path(shard.name)
    entry: dict[str, Any] = {
        "file": os.path.basename(final),
        "num_records": shard.num_records,
        "num_bytes": shard.num_bytes,
        "sha256": shard.sha256,
        "classes": shard.classes,
    }
    try:
        if task.changed:
            entry |= _rewrite(task, spec, final)
        else:
            # Absent when a commit that was killed had moved it already.
            with contextlib.suppress(FileNotFoundError):
                os.replace(spec.write.staged_path(shard.name), final)
    except OSError as e:
        raise output_error(spec.output, e) from e
    return {"split": shard.split, **entry}


def _rewrite(task: FinalShard, spec: CommitSpec, final: str) -> dict[str, Any]:
    """Writes a shard anew from encoded records; what was written stays until the end."""
    sink = spec.write.sink
    temporary = f"{spec.write.staged_path(task.finished.name)}.tmp-final"
    classes: collections.Counter[str] = collections.Counter()
    sources = [(task.finished.name, set(range(task.keep)))]
    for name, taken in itertools.groupby(task.take, key=lambda pair: pair[0]):
        sources.append((name, {record for _, record in taken}))
    handle = sink.open(temporary)
    try:
        for name, wanted in sources:
            of_record = _result(name, spec.write).record_classes
            path = spec.write.staged_path(name)
            for index, _, payload in records.read_records(path, spec.compression):
                if index in wanted:
                    sink.write_encoded_record(handle, payload)
                    classes[of_record[index]] += 1
    finally:
        sink.close(handle)
    os.replace(temporary, final)
    return {
        "num_records": sum(classes.values()),
        "num_bytes": sink.hashing.num_bytes,
        "sha256": sink.hashing.hexdigest(),
        "classes": dict(sorted(classes.items())),
    }


def _result(name: str, spec: WriteSpec) -> ShardResult:
    with open(spec.result_path(name), encoding="utf-8") as file:
        return ShardResult.from_json(file.read())


def finish_commit(
    shards: list[dict[str, Any]],
    layout: plan.Layout,
    outcome: Outcome,
    skipped: dict[str, int],
    spec: CommitSpec,
    *complete: Any,
) -> str:
    """Writes everything beside the shards, the manifest last; returns its fingerprint.

    Args:
        shards: Entries of the manifest, each with its split.
        layout: What was planned.
        outcome: Of all shards, as they were written.
        skipped: Reason → files that were not listed.
        spec: Where and how.
        *complete: What must be complete before: the exported transform, the quarantine.
    """
    try:
        manifest = manifest_of(shards, layout, outcome, skipped, spec)
        publish(manifest, outcome.rejects, spec)
        mark_committed(spec.write.staging, manifest["fingerprint"])
        write_whole(os.path.join(spec.output, MANIFEST_NAME), to_json(manifest))
    except OSError as e:
        raise output_error(spec.output, e) from e
    return str(manifest["fingerprint"])


class CommitShards(beam.PTransform):
    """Results of all shards → the fingerprint of the committed data set, one element."""

    def __init__(
        self,
        spec: CommitSpec,
        layout: beam.PCollection,
        skipped: beam.PCollection,
        quarantined: beam.PCollection,
        after: tuple[beam.PCollection, ...],
    ):
        super().__init__()
        self._spec = spec
        self._layout = pvalue.AsSingleton(layout)
        self._skipped = pvalue.AsSingleton(skipped)
        self._after = tuple(pvalue.AsIter(each) for each in (quarantined, *after))

    def expand(self, results: beam.PCollection) -> beam.PCollection:
        outcome = (
            results
            | "Outcome" >> beam.Map(outcome_of)
            | "AllOutcomes" >> beam.CombineGlobally(merge_outcomes)
        )  # Outcome
        return (
            outcome
            | "BeginCommit" >> beam.FlatMap(begin_commit, self._layout, self._spec)  # FinalShard
            | "Spread" >> beam.Reshuffle()
            | "FinishShard" >> beam.Map(lambda task, spec: [finish_shard(task, spec)], self._spec)
            | "AllShards" >> beam.CombineGlobally(to_list)  # list of entries
            | "FinishCommit"
            >> beam.Map(
                finish_commit,
                self._layout,
                pvalue.AsSingleton(outcome),
                self._skipped,
                self._spec,
                *self._after,
            )
        )
