"""`--plan_only`: what a build would make, from its plan and a sample of its images."""

from __future__ import annotations

import json
import os
import tempfile
import time
from typing import Any

import apache_beam as beam
from apache_beam import pvalue

from beam_pipeline.commit.staging import read_output_state
from beam_pipeline.inputs import ListImages, schema_of
from beam_pipeline.options import BuildOptions, ImageOptions
from beam_pipeline.pipeline import with_pinned_classes
from beam_pipeline.planning.plan import ShardPlan
from beam_pipeline.planning.refs import RefBatch
from beam_pipeline.planning.transforms import (
    AssignSplits,
    PlannedShards,
    PlanShards,
    SampleImages,
    encoded_sizes,
)
from beam_pipeline.runners import Runner
from beam_pipeline.shards import process_pool
from imageshards import storage
from imageshards.manifest import STAGING_NAME


def plan_only(options: BuildOptions, runner: Runner) -> dict[str, Any]:
    """Lists and plans, encodes a sample, writes nothing; returns what `plan_table` shows.

    Raises:
        UserError: Something the caller can fix.
    """
    if options.plan.class_names is None:
        state = read_output_state(options.output, storage.join(options.output, STAGING_NAME))
        if state.damage and not options.overwrite:
            raise state.damage
        options = with_pinned_classes(options, state.pinned_classes)
    schema = schema_of(options.source)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        pipeline = runner.new_pipeline()
        listed = pipeline | "List" >> ListImages(options.source, schema)
        batches = listed.batches | "Split" >> AssignSplits(options.plan)
        sample = batches | "Sample" >> SampleImages(options.plan.salt)
        planned = batches | "Plan" >> PlanShards(options.plan, options.image, sample)
        _summarise(planned, sample, listed.skipped, options, path)
        runner.run(pipeline)
        with open(path, encoding="utf-8") as file:
            summary: dict[str, Any] = json.load(file)
    workers = process_pool.available_cores()
    images = sum(split["images"] for split in summary["splits"].values())
    seconds = images * summary["msec_per_image"] / 1000 / workers
    return summary | {"workers": workers, "seconds": seconds}


def _summarise(
    planned: PlannedShards,
    sample: beam.PCollection,
    skipped: beam.PCollection,
    options: BuildOptions,
    path: str,
) -> None:
    sizes = (
        planned.units
        | "ShardSizes" >> beam.Map(lambda unit: [(unit.split, len(unit.refs))])
        | "AllSizes"
        >> beam.CombineGlobally(lambda found: [pair for pairs in found for pair in pairs])
    )  # [(split, images)]
    found = sample | "Estimate" >> beam.Map(estimate, options.image)
    sizes | "WritePlan" >> beam.Map(
        write_plan,
        pvalue.AsSingleton(planned.plan),
        pvalue.AsSingleton(found),
        pvalue.AsSingleton(skipped),
        path,
    )


def estimate(sample: RefBatch, options: ImageOptions) -> dict[str, Any]:
    """Time, bytes and rejects of a sample of images, from encoding it."""
    begun = time.process_time()
    sizes = encoded_sizes(sample, options)
    count = len(sample.refs)
    return {
        "sample": count,
        "sample_rejects": count - len(sizes),
        "msec_per_image": (time.process_time() - begun) * 1000 / max(1, count),
        "bytes_per_record": sum(sizes) / max(1, len(sizes)),
    }


def write_plan(
    sizes: list[tuple[str, int]],
    plan: ShardPlan,
    sample: dict[str, Any],
    skipped: dict[str, int],
    path: str,
) -> None:
    """Writes the plan's summary as JSON."""
    splits: dict[str, Any] = {}
    for split in sorted(plan.num_shards):
        counts = [count for name, count in sizes if name == split]
        splits[split] = {
            "shards": len(counts),
            "images": sum(counts),
            "min": min(counts),
            "max": max(counts),
            "bytes": sum(counts) * sample["bytes_per_record"],
        }
    classes = dict.fromkeys(plan.classes, 0)
    for (_, class_id), count in plan.counts.items():
        classes[plan.classes[class_id]] += count
    summary = {"splits": splits, "classes": classes, "skipped": skipped, **sample}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(summary, file)
