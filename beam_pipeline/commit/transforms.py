"""`CommitShards`: from finished shards to a dataset."""

from __future__ import annotations

import apache_beam as beam
from apache_beam import pvalue

from beam_pipeline.beam_files import StoreConfig
from beam_pipeline.commit.dataset import CommitSpec, begin_commit, finish_commit
from beam_pipeline.commit.finalize import finalize_shard
from beam_pipeline.commit.summary import WriteSummary, add_up, without_shards
from beam_pipeline.shards.finished import read_result
from beam_pipeline.shards.transforms import SideBySide


def summary_of(path: str, spec: CommitSpec) -> WriteSummary:
    """What a shard came to, by the final path that `WriteBalancedTFRecord` gave out."""
    result = read_result(spec.places.name_of(path), spec.places)
    return WriteSummary(
        shards=[result.without_details()],
        stats={result.split: result.stats},
        reused_images=0 if result.run_id == spec.write.run_id else result.num_images,
    )


class CommitShards(beam.PTransform):
    """Paths of all shards → the fingerprint of the committed dataset, one element.

    Evens shards out, makes them and what they rejected visible, and writes TFDS's files, the report
    and, last, the manifest. Beam may run each step again, after it failed or succeeded: nothing
    that a step reads is changed before the manifest is there.

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
        spec: Where and how.
        plan: What was planned, one `ShardPlan`.
        skipped: Collections of dicts to be added up: reason → files that are left out.
        after: Collections that must be complete before anything is committed.
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
        # At least one: Beam's check of types refuses to call a step with none of its `*complete`.
        complete = [pvalue.AsIter(each) for each in (skipped, *self._after)]
        summary = (
            paths
            | "Summarise" >> SideBySide(summary_of, spec)  # WriteSummary
            | "SumSummaries" >> beam.CombineGlobally(add_up).without_defaults()
        )  # WriteSummary
        shards = (
            summary
            | "BeginCommit"
            >> beam.FlatMap(
                stores.step(begin_commit), pvalue.AsSingleton(self._plan), spec, *complete
            )  # FinalizeTask
            | "SpreadTasks" >> beam.Reshuffle()
            | "FinalizeShard" >> SideBySide(finalize_shard, spec.places)
        )  # manifest entry
        return self._plan | "FinishCommit" >> beam.Map(
            stores.step(finish_commit),
            pvalue.AsIter(shards),
            pvalue.AsSingleton(summary | "Totals" >> beam.Map(without_shards)),
            pvalue.AsIter(skipped),
            spec,
            *complete,
        )
