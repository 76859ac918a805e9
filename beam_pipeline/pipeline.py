"""The job, as a table of contents: list, split, analyse, plan, write, commit."""

from __future__ import annotations

import dataclasses

import apache_beam as beam

from beam_pipeline.columns import TFT_TEMP, AnalyseColumns, transform_temp_folder
from beam_pipeline.commit import CommitShards, CommitSpec, OutputState
from beam_pipeline.inputs import ListImages, ManifestSchema, RefuseDuplicateKeys, schema_of
from beam_pipeline.options import BuildOptions
from beam_pipeline.planning import AssignSplits, PlanShards
from beam_pipeline.runners import Runner
from beam_pipeline.shards import BalancedSink, WriteBalancedTFRecord
from beam_pipeline.shards.versions import byte_versions
from imageshards import storage
from imageshards.manifest import TRANSFORM_NAME

_SUFFIXES = {"none": ".tfrecord", "gzip": ".tfrecord.gz"}


def build(options: BuildOptions, runner: Runner, state: OutputState) -> bool:
    """Builds the data set `options.output` and commits it.

    Args:
        options: What is asked.
        runner: Where.
        state: What was in the output when the job began.

    Returns:
        Whether it ran; a dry run does not.

    Raises:
        UserError: Something the caller can fix.
    """
    staging = state.staging
    options = with_pinned_classes(options, state.pinned_classes)
    schema = schema_of(options.source)
    columns = schema.columns if schema else ()
    with transform_temp_folder(options, columns, runner.local, staging) as temporary:
        pipeline = runner.new_pipeline()
        checked = runner.first_check(pipeline)
        construct(pipeline, options, schema, staging, state.finished_folder, temporary, checked)
        return runner.run(pipeline)


def construct(
    pipeline: beam.Pipeline,
    options: BuildOptions,
    schema: ManifestSchema | None,
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
    batches = listed.batches | "Split" >> AssignSplits(options.plan)
    columns = batches | "Analyse" >> AnalyseColumns(
        storage.join(staging, TRANSFORM_NAME),
        schema.columns if schema else (),
        class_names=options.plan.class_names,
        pinned_classes=options.plan.pinned_classes,
        first_label=options.plan.first_label,
        transform_module=options.transform_module,
        temp_dir=transform_temp or storage.join(staging, TFT_TEMP),
    )  # RefBatch with features, and the folder of the exported transform
    planned = columns.batches | "Plan" >> PlanShards(
        options.plan, options.image, options.urls
    )  # ShardUnit
    write = WriteBalancedTFRecord(
        options.output.rstrip("/") + "/",
        file_name_suffix=_SUFFIXES[options.compression],
        staging=staging,
        finished=finished,
        image=options.image,
        urls=options.urls,
        versions=tuple(byte_versions().items()),
    )
    paths = planned.units | "Write" >> write  # final paths of the shards
    paths | "Commit" >> CommitShards(
        commit_spec(options, write.sink, schema.warnings if schema else ()),
        planned.plan,
        listed.skipped,
        (columns.written, *unique_keys(batches, schema), *checked),
    )


def unique_keys(
    batches: beam.PCollection, schema: ManifestSchema | None
) -> tuple[beam.PCollection, ...]:
    """A check that no key occurs twice; paths of a folder are unique by themselves."""
    if schema is None:
        return ()
    return (batches | "UniqueKeys" >> RefuseDuplicateKeys(),)


def with_pinned_classes(options: BuildOptions, pinned: tuple[str, ...]) -> BuildOptions:
    """When a data set is replaced its classes keep their ids."""
    if options.plan.class_names is not None:
        return options
    return dataclasses.replace(
        options, plan=dataclasses.replace(options.plan, pinned_classes=pinned)
    )


def commit_spec(
    options: BuildOptions, sink: BalancedSink, warnings: tuple[str, ...] = ()
) -> CommitSpec:
    """What the commit needs of the options, and what a person is to hear in the end."""
    image = dataclasses.asdict(options.image)
    height, width = image.pop("height_px"), image.pop("width_px")
    return CommitSpec(
        sink=sink,
        max_reject_fraction=options.max_reject_fraction,
        max_quarantine_bytes=options.image.max_bytes if options.quarantine_bytes else 0,
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
        first_label=options.plan.first_label,
        warnings=warnings,
    )
