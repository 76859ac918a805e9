"""From finished shards to a data set: even them out, make them visible, write the manifest."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam import pvalue

from beam_pipeline.commit import quarantine
from beam_pipeline.commit.companions import manifest_of, publish
from beam_pipeline.commit.final_shard import FinalShard, final_shards, finish_shard, set_aside
from beam_pipeline.commit.outcome import (
    Finished,
    MergeOutcomesFn,
    Outcome,
    ToListFn,
    outcome_of,
    totals,
)
from beam_pipeline.commit.staging import mark_committed
from beam_pipeline.planning import plan
from beam_pipeline.shards.result import Reject
from beam_pipeline.shards.writer import WriteSpec, output_error, read_result
from imageshards import storage
from imageshards.manifest import MANIFEST_NAME, to_json, write_whole
from imageshards.storage import map_concurrently, run_concurrently

_SHARD_FILE = re.compile(r"\w+-\d{5}-of-\d{5}\.tfrecord(\.gz)?")


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


def begin_commit(outcome: Outcome, layout: plan.Layout, spec: CommitSpec) -> list[FinalShard]:
    """Checks that nothing was lost, takes the old data set away, and tells what moves.

    Raises:
        UserError: More rejects than the budget.
        RuntimeError: Records and rejects do not add up to what was listed.
    """
    finished, rejected = outcome.finished, sum(outcome.rejects.values())
    listed = layout.num_images
    accepted = sum(shard.num_records for shard in finished)
    planned = sum(layout.num_shards.values())
    if accepted + rejected != listed or len(finished) != planned:
        raise RuntimeError(
            f"{accepted} records and {rejected} rejects in {len(finished)} shards do not add "
            f"up to {listed} images in {planned} shards: the runner lost work; nothing was "
            "committed"
        )
    try:
        where = quarantine.write_list(_rejects(finished, spec.write), spec.write.staging)
        quarantine.check_budget(outcome.rejects, listed, spec.max_reject_fraction, where)
        _take_away_old(spec, {shard.name for shard in finished})
        tasks = final_shards(finished)
        set_aside([task.finished for task in tasks if task.changed], spec.write)
    except OSError as e:
        raise output_error(spec.output, e) from e
    return tasks


def _rejects(finished: Iterable[Finished], spec: WriteSpec) -> Iterator[Reject]:
    """The rejected images of all shards, from the files beside those that have some."""
    names = [shard.name for shard in finished if shard.num_rejects]
    for result in map_concurrently(lambda name: read_result(name, spec), names):
        yield from result.rejects


def _take_away_old(spec: CommitSpec, names: set[str]) -> None:
    """Removes a data set that is replaced: its manifest first, so that it is none any more."""
    _, found = run_concurrently(
        lambda: storage.delete([storage.join(spec.output, MANIFEST_NAME)]),
        lambda: storage.list_folder(spec.output),
    )
    keep = {spec.write.file_of(name) for name in names}
    storage.delete(
        entry.path
        for entry in found
        if _SHARD_FILE.fullmatch(entry.name) and entry.name not in keep
    )


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
        outcome: Totals of all shards, as they were written.
        skipped: Reason → files that were not listed.
        spec: Where and how.
        *complete: What must be complete before: the exported transform, the quarantine.
    """
    try:
        manifest = manifest_of(shards, layout, outcome, skipped, spec)
        publish(manifest, spec)
        mark_committed(spec.write.staging, manifest["fingerprint"], outcome.reused_images)
        write_whole(storage.join(spec.output, MANIFEST_NAME), to_json(manifest))
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
            | "AllOutcomes" >> beam.CombineGlobally(MergeOutcomesFn())
        )  # Outcome
        return (
            outcome
            | "BeginCommit" >> beam.FlatMap(begin_commit, self._layout, self._spec)  # FinalShard
            | "Spread" >> beam.Reshuffle()
            | "FinishShard"
            >> beam.Map(finish_shard, self._spec.write, self._spec.compression)  # manifest entry
            | "AllShards" >> beam.CombineGlobally(ToListFn())  # list of entries
            | "FinishCommit"
            >> beam.Map(
                finish_commit,
                self._layout,
                pvalue.AsSingleton(outcome | "Totals" >> beam.Map(totals)),
                self._skipped,
                self._spec,
                *self._after,
            )
        )
