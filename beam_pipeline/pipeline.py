"""The job, as a table of contents: list, split, analyse, plan, write, commit."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.options.pipeline_options import StandardOptions

from beam_pipeline import listing, local_pool, manifest_input, plan, storage
from beam_pipeline.columns import AnalyseColumns
from beam_pipeline.commit import CommitShards, CommitSpec
from beam_pipeline.errors import UserError
from beam_pipeline.flag_values import runner_name
from beam_pipeline.listing import ListImages
from beam_pipeline.manifest import STAGING_NAME
from beam_pipeline.options import BuildOptions, ImageOptions
from beam_pipeline.planning import (
    PlannedShards,
    PlanShards,
    SampleImages,
    assign_splits,
    encoded_sizes,
)
from beam_pipeline.preflight_worker import versions
from beam_pipeline.publish import QUARANTINE, TRANSFORM
from beam_pipeline.quarantine import WriteQuarantine
from beam_pipeline.refs import RefBatch
from beam_pipeline.runners import Runner
from beam_pipeline.shards import WriteSpec
from beam_pipeline.staging_folder import OutputState, look
from beam_pipeline.transform_temp import TFT_TEMP, transform_folder
from beam_pipeline.unique_keys import RefuseDuplicateKeys
from beam_pipeline.write import WriteBalancedTFRecord

_SUFFIXES = {"none": ".tfrecord", "gzip": ".tfrecord.gz"}
_COMPRESSIONS = {"none": CompressionTypes.UNCOMPRESSED, "gzip": CompressionTypes.GZIP}


def run_here(pipeline: beam.Pipeline) -> bool:
    """Runs a pipeline on a local runner, which does it all before it returns."""
    pipeline.run().wait_until_finish()
    return True


def build(
    options: BuildOptions,
    runner: Runner,
    state: OutputState,
    run: Callable[[beam.Pipeline], bool] = run_here,
) -> bool:
    """Builds the data set `options.output` and commits it.

    Args:
        options: What is asked.
        runner: Where.
        state: What was in the output when the job began.
        run: Runs the pipeline to its end; says whether it did.

    Returns:
        What `run` returned.

    Raises:
        UserError: Something the caller can mend.
    """
    staging = state.staging
    options = with_pinned_classes(options, state.pinned_classes)
    schema = schema_of(options)
    with transform_folder(options, schema, runner.local, staging) as temporary:
        pipeline = beam.Pipeline(runner.runner, options=runner.options)
        checked = () if runner.local else first_check(pipeline, options, runner, staging)
        construct(pipeline, options, schema, staging, state.finished_folder, temporary, checked)
        return run(pipeline)


def first_check(
    pipeline: beam.Pipeline, options: BuildOptions, runner: Runner, staging: str
) -> tuple[beam.PCollection, ...]:
    """A worker's look around as a step of the job, where a job of its own would take minutes."""
    from beam_pipeline import preflight, preflight_worker

    if runner_name(runner.options.view_as(StandardOptions).runner) != "dataflow":
        return ()  # a small job has done it
    probe = preflight.make_probe(options.source.input, options.output, staging)
    preflight.ask(probe)
    return (pipeline | "CheckWorker" >> preflight_worker.CheckWorker(probe),)


def construct(
    pipeline: beam.Pipeline,
    options: BuildOptions,
    schema: manifest_input.ManifestSchema | None,
    staging: str,
    finished: str = "",
    transform_temp: str = "",
    checked: tuple[beam.PCollection, ...] = (),
) -> None:
    """Puts the whole job into a pipeline.

    Args:
        pipeline: Where to.
        options: What is asked.
        schema: Of a manifest input.
        staging: Folder of the unfinished data set.
        finished: Folder for finished shards until the commit; default: `staging`.
        transform_temp: Folder for tensorflow-transform's files; default: below `staging`.
        checked: Collections that must be complete before anything is committed.
    """
    listed = pipeline | "List" >> ListImages(options.source, schema)  # RefBatch, {reason: files}
    batches = listed.batches | "Split" >> beam.Map(assign_splits, options.plan)
    columns = batches | "Analyse" >> AnalyseColumns(
        schema.columns if schema else (),
        options.plan.class_names,
        options.plan.pinned_classes,
        options.transform_module,
        transform_temp or storage.join(staging, TFT_TEMP),
        storage.join(staging, TRANSFORM),
    )  # RefBatch with features, and the folder of the exported transform
    planned = columns.batches | "Plan" >> PlanShards(options.plan, options.image)  # ShardUnit
    after = (columns.written, *unique_keys(batches, schema), *checked)
    write = WriteBalancedTFRecord(
        options.output.rstrip("/") + "/",
        file_name_suffix=_SUFFIXES[options.compression],
        compression_type=_COMPRESSIONS[options.compression],
        staging=staging,
        finished=finished,
        image=options.image,
        versions=tuple(byte_versions().items()),
        after=after,
    )
    results = planned.units | "Write" >> write  # ShardResult
    max_bytes = options.image.max_bytes if options.quarantine_bytes else 0
    quarantined = (
        results
        | "Rejects" >> beam.FlatMap(lambda result: result.rejects)
        | "Quarantine" >> WriteQuarantine(storage.join(staging, QUARANTINE, "rejects"), max_bytes)
    )  # file names
    results | "Commit" >> CommitShards(
        commit_spec(options, write.spec), planned.layout, listed.skipped, quarantined, after
    )


def unique_keys(
    batches: beam.PCollection, schema: manifest_input.ManifestSchema | None
) -> tuple[beam.PCollection, ...]:
    """A check that no key occurs twice; paths of a folder are unique by themselves."""
    if schema is None:
        return ()
    return (batches | "UniqueKeys" >> RefuseDuplicateKeys(),)


def schema_of(options: BuildOptions) -> manifest_input.ManifestSchema | None:
    """The columns of a manifest input; None for other inputs.

    Raises:
        UserError: A column flag makes no sense for this input.
    """
    if listing.layout_of(options.source) == "manifest":
        return manifest_input.read_schema(options.source)
    for flag in (
        "image_column",
        "label_column",
        "key_column",
        "split_column",
        "group_column",
        "columns",
    ):
        if getattr(options.source, flag) is not None:
            raise UserError(
                f"--{flag} was given, but --input {options.source.input!r} is no manifest; "
                "expected a .csv, .jsonl or .parquet file."
            )
    return None


def with_pinned_classes(options: BuildOptions, pinned: tuple[str, ...]) -> BuildOptions:
    """When a data set is replaced its classes keep their ids."""
    if options.plan.class_names is not None:
        return options
    return dataclasses.replace(
        options, plan=dataclasses.replace(options.plan, pinned_classes=pinned)
    )


def byte_versions() -> dict[str, str]:
    """Versions of what decides the bytes of a shard."""
    found = versions()
    return {n: found[n] for n in ("imageshards", "pillow", "libjpeg", "tensorflow-transform")}


def commit_spec(options: BuildOptions, write: WriteSpec) -> CommitSpec:
    """What the commit needs of the options."""
    image = dataclasses.asdict(options.image)
    height, width = image.pop("height_px"), image.pop("width_px")
    return CommitSpec(
        output=options.output,
        write=write,
        max_reject_fraction=options.max_reject_fraction,
        report=options.report,
        options={
            "input": dataclasses.asdict(options.source),
            "plan": dataclasses.asdict(options.plan),
            "transform_module": options.transform_module,
            "max_reject_fraction": options.max_reject_fraction,
        },
        image={
            "size": height if height == width else [height, width],
            "mode": image.pop("resize_mode"),
            **image,
            "channels": options.image.channels,
        },
        versions=byte_versions() | {"apache-beam": beam.__version__},
        shard_by=options.plan.shard_by,
        compression=options.compression,
    )


def plan_only(options: BuildOptions, runner: Runner) -> dict[str, Any]:
    """Lists and plans, encodes a sample, writes nothing; returns what `plan_table` shows.

    Raises:
        UserError: Something the caller can mend.
    """
    state = look(options.output, storage.join(options.output, STAGING_NAME))
    options = with_pinned_classes(options, state.pinned_classes)
    schema = schema_of(options)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        pipeline = beam.Pipeline(runner.runner, options=runner.options)
        listed = pipeline | "List" >> ListImages(options.source, schema)
        batches = listed.batches | "Split" >> beam.Map(assign_splits, options.plan)
        sample = batches | "Sample" >> SampleImages(options.plan.salt)
        planned = batches | "Plan" >> PlanShards(options.plan, options.image, sample)
        _summarise(planned, sample, listed.skipped, options, path)
        pipeline.run().wait_until_finish()
        with open(path, encoding="utf-8") as file:
            summary: dict[str, Any] = json.load(file)
    workers = local_pool.available_cores()
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
        pvalue.AsSingleton(planned.layout),
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
    layout: plan.Layout,
    sample: dict[str, Any],
    skipped: dict[str, int],
    path: str,
) -> None:
    """Writes the plan's summary as JSON."""
    splits: dict[str, Any] = {}
    for split in sorted(layout.num_shards):
        counts = [count for name, count in sizes if name == split]
        splits[split] = {
            "shards": len(counts),
            "images": sum(counts),
            "min": min(counts),
            "max": max(counts),
            "bytes": sum(counts) * sample["bytes_per_record"],
        }
    classes = dict.fromkeys(layout.classes, 0)
    for (_, class_id), count in layout.counts.items():
        classes[layout.classes[class_id]] += count
    summary = {"splits": splits, "classes": classes, "skipped": skipped, **sample}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(summary, file)
