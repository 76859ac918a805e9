"""Defines `CommitShards`, the transform that makes a dataset of finished shards."""

from __future__ import annotations

import apache_beam as beam
from apache_beam import pvalue

from beam_pipeline.beam_files import StoreConfig
from beam_pipeline.commit.dataset import (
    CommitSpec,
    WriteSummary,
    add_up,
    begin_commit,
    finish_commit,
    without_shards,
)
from beam_pipeline.commit.finalize import finalize_shard
from beam_pipeline.shards.result import read_result
from beam_pipeline.shards.transforms import SideBySide


def summary_of(path: str, spec: CommitSpec) -> WriteSummary:
    """Returns the totals of a shard by its final path, as `WriteBalancedTFRecord` returned it."""
    result = read_result(spec.places.name_of(path), spec.places)
    return WriteSummary(
        shards=[result.without_details()],
        stats={result.split: result.stats},
        reused_images=0 if result.run_id == spec.write.run_id else result.num_images,
    )


class CommitShards(beam.PTransform):
    """Paths of all shards → the fingerprint of the committed dataset, one element.

    Evens shards out, links shards and rejects in their final places, and writes the files for TFDS,
    the report and, last, the manifest. Beam may run each step again, after a failure or a success:
    until the manifest is written, no step changes a file that another step reads.

    Example:

        import apache_beam as beam
        import beam_pipeline as bp

        options = bp.ShardOptions(image=bp.ImageOptions(height_px=128, width_px=128))
        write = bp.WriteBalancedTFRecord(
            "shards/", options, file_name_suffix=".tfrecord", staging="shards/.staging"
        )
        with beam.Pipeline("FnApiRunner") as pipeline:
            listed = pipeline | bp.ListImages(bp.InputOptions("photos"))
            batches = listed.batches | bp.AssignSplits(options)
            columns = batches | bp.AnalyseColumns("shards/.staging/transform", options=options)
            planned = columns.batches | bp.PlanShards(options, features=columns.features)
            files = planned.units | write
            spec = bp.CommitSpec(write.places, write.options)
            files | bp.CommitShards(spec, planned.plan, (listed.skipped,))

    Args:
        spec: Settings of the commit.
        plan: A collection of one `ShardPlan`.
        skipped: Collections of dicts whose values are added up: reason → files that are left out.
        after: Collections that must be complete before the commit begins.
    """

    def __init__(
        self,
        spec: CommitSpec,
        plan: beam.PCollection,
        skipped: tuple[beam.PCollection, ...] = (),
        after: tuple[beam.PCollection, ...] = (),
    ):
        super().__init__()
        self._spec = spec
        self._plan = plan
        self._skipped = skipped
        self._after = after

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        spec, stores = self._spec, StoreConfig.of_pipeline(paths)
        skipped = self._skipped | "Skipped" >> beam.Flatten(pipeline=paths.pipeline)
        # `skipped` comes along, as Beam's check of types refuses a step with an empty `*complete`.
        complete = [pvalue.AsIter(each) for each in (skipped, *self._after)]
        summary = (
            paths
            | "Summarise" >> SideBySide("commit", summary_of, spec)  # WriteSummary
            | "SumSummaries" >> beam.CombineGlobally(add_up).without_defaults()
        )  # WriteSummary
        shards = (
            summary
            | "BeginCommit"
            >> beam.FlatMap(
                stores.step(begin_commit, "commit"), pvalue.AsSingleton(self._plan), spec, *complete
            )  # FinalizeTask
            # Without a shuffle Beam would fuse the steps, and one worker would do all tasks.
            | "SpreadTasks" >> beam.Reshuffle()
            | "FinalizeShard" >> SideBySide("commit", finalize_shard, spec.places)
        )  # FinalShard
        # Each side input is one element, or small entries, as it is sent to the worker as a whole.
        return self._plan | "FinishCommit" >> beam.Map(
            stores.step(finish_commit, "commit"),
            pvalue.AsIter(shards),
            pvalue.AsSingleton(summary | "Totals" >> beam.Map(without_shards)),
            pvalue.AsIter(skipped),
            spec,
        )
