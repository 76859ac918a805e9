"""The job, as a table of contents: list, split, analyse, plan, write, commit."""

from __future__ import annotations

import dataclasses
from typing import Any

import apache_beam as beam

from beam_pipeline.columns.transforms import TFT_TEMP, AnalyseColumns, transform_temp_folder
from beam_pipeline.commit.dataset import CommitSpec
from beam_pipeline.commit.staging import OutputState
from beam_pipeline.commit.transforms import CommitShards
from beam_pipeline.inputs.duplicate_keys import RefuseDuplicateKeys
from beam_pipeline.inputs.labels import GIVEN_SPLIT
from beam_pipeline.inputs.listing import has_several_archives, schemas_of, spooled_files
from beam_pipeline.inputs.selection import (
    KeysFile,
    Selected,
    SelectImages,
    check_globs,
    share_keys,
)
from beam_pipeline.inputs.spool import SPOOL_NAME, announce
from beam_pipeline.inputs.tables.schema import TableSchema
from beam_pipeline.inputs.transforms import ListImages
from beam_pipeline.options import BuildOptions, ColumnSpec, InputOptions, ShardOptions
from beam_pipeline.planning.saved import PLAN_NAME
from beam_pipeline.planning.transforms import AssignSplits, PlanShards
from beam_pipeline.runners.runner import Runner
from beam_pipeline.shards.transforms import WriteBalancedTFRecord
from beam_pipeline.shards.versions import byte_versions
from imageshards import storage
from imageshards.manifest import ONE, TRANSFORM_NAME
from imageshards.text import composed

Schemas = tuple[TableSchema | None, ...]


def build(options: BuildOptions, runner: Runner, state: OutputState, job: str) -> bool:
    """Builds the dataset `options.output` and commits it; returns whether it ran, not a dry run.

    Args:
        state: What was in the output when the job began.
        job: Id of the job, of `prepare_staging`.

    Raises:
        UserError: Something the caller can fix.
    """
    staging = state.staging
    schemas = schemas_of(options.sources, options.plan.class_names)
    options = with_pinned_classes(options, (*state.pinned_classes, *named_classes(schemas)))
    columns = columns_of(schemas)
    with transform_temp_folder(options, columns, runner.local, staging) as temporary:
        pipeline = runner.new_pipeline(bool(columns or options.transform_module or options.copied))
        excluded = share_keys(options.exclude, staging) if options.exclude else None
        announce(spooled_files(options.sources, schemas), storage.join(staging, SPOOL_NAME))
        construct(
            pipeline, options, schemas, staging, state.finished_folder, temporary, excluded, job
        )
        return runner.run(pipeline)


def construct(
    pipeline: beam.Pipeline,
    options: BuildOptions,
    schemas: Schemas,
    staging: str,
    finished: str = "",
    transform_temp: str = "",
    excluded: KeysFile | None = None,
    job: str = "",
) -> None:
    """Puts the whole job into a pipeline.

    Args:
        schemas: Of the inputs that are image tables, None for others.
        staging: Folder of the unfinished dataset.
        finished: Folder for finished shards until the commit; default: `staging`.
        transform_temp: Folder for tensorflow-transform's files; default: below `staging`.
        excluded: Keys of images that are left out.
        job: As for `build`.
    """
    shards = options.shard_options(byte_versions(options.image.icc))
    spool = storage.join(staging, SPOOL_NAME)
    listed = list_batches(pipeline, options, schemas, excluded, spool)  # RefBatch with splits
    columns = listed.batches | "Analyse" >> AnalyseColumns(
        storage.join(staging, TRANSFORM_NAME),
        columns_of(schemas),
        shards,
        label=options.source.label,
        transform_module=options.transform_module,
        temp_dir=transform_temp or storage.join(staging, TFT_TEMP),
        copied_from=options.copied.transform if options.copied else "",
    )  # RefBatch with features, and what these are
    saved = storage.join(staging, PLAN_NAME)
    plan = PlanShards(shards, saved=saved, features=columns.features)
    planned = columns.batches | "Plan" >> plan  # ShardUnit
    write = WriteBalancedTFRecord(
        options.output.rstrip("/") + "/",
        shards,
        file_name_suffix=".tfrecord",
        staging=staging,
        finished=finished,
        job=job,
    )
    files = planned.units | "Write" >> write  # final paths of the shards
    files | "Commit" >> CommitShards(
        commit_spec(options, write, schemas),
        planned.plan,
        listed.skipped,
        (*unique_keys(listed.batches, options, schemas), *listed.checked),
    )


def list_batches(
    pipeline: beam.Pipeline,
    options: BuildOptions,
    schemas: Schemas,
    excluded: KeysFile | None,
    spool: str,
) -> Selected:
    """The images of all inputs that a build takes, with the classes and splits they are of now."""
    first, *more = zip(options.sources, schemas, strict=True)
    listed = pipeline | "List" >> ListImages(*first, more, spool)  # RefBatch, {reason: files}
    selected = Selected(listed.batches, (), ())
    if excluded is not None or options.class_map:
        selected = listed.batches | "Select" >> SelectImages(excluded, options.class_map)
    checked = selected.checked
    if globs := sorted({glob for source in options.sources for glob in source.exclude_glob}):
        checked += (
            listed.skipped
            | "PassedOver" >> beam.FlatMap(list)
            | "AllPassedOver" >> beam.CombineGlobally(beam.combiners.ToSetCombineFn())
            | "CheckGlobs" >> beam.Map(check_globs, globs),
        )
    skipped = listed.skipped
    if "splits" not in options.given:
        skipped = skipped | "Unasked" >> beam.Map(without_given_splits)
    batches = selected.batches | "Split" >> AssignSplits(ShardOptions(plan=options.plan))
    return Selected(batches, (skipped, *selected.skipped), checked)


def without_given_splits(skipped: dict[str, int]) -> dict[str, int]:
    """What was passed over, without the splits of the input: they matter beside --splits alone."""
    return {key: count for key, count in skipped.items() if not key.startswith(f"{GIVEN_SPLIT}: ")}


def named_classes(schemas: Schemas) -> list[str]:
    """The class names that inputs bring, in the order of their numbers."""
    return [name for schema in schemas if schema for name in schema.class_names]


def columns_of(schemas: Schemas) -> tuple[ColumnSpec, ...]:
    """The extra columns, which all inputs have alike."""
    return next((schema.columns for schema in schemas if schema), ())


def unique_keys(
    batches: beam.PCollection, options: BuildOptions, schemas: Schemas
) -> tuple[beam.PCollection, ...]:
    """A check that no key occurs twice; paths below one folder are unique by themselves."""
    if schemas == (None,) and not has_several_archives(options.source):
        return ()
    return (batches | "UniqueKeys" >> RefuseDuplicateKeys(),)


def with_pinned_classes(options: BuildOptions, pinned: tuple[str, ...]) -> BuildOptions:
    """When a dataset is replaced its classes keep their ids; those of datasets follow."""
    if options.plan.class_names is not None:
        return options
    names = map(composed, [*pinned, *options.plan.pinned_classes])
    classes = tuple(dict.fromkeys(options.class_map.get(name, name) for name in names))
    return dataclasses.replace(
        options, plan=dataclasses.replace(options.plan, pinned_classes=classes)
    )


def commit_spec(
    options: BuildOptions, write: WriteBalancedTFRecord, schemas: Schemas
) -> CommitSpec:
    """What the commit needs of the options, and what a person is to hear in the end."""
    columns = columns_of(schemas)
    as_given = options.transform_module is None and all(c.scale == "none" for c in columns)
    return CommitSpec(
        places=write.places,
        write=write.options,
        max_reject_fraction=options.max_reject_fraction,
        report=options.report,
        options={
            "input": _listing_options(options.source),
            "more_inputs": list(map(_listing_options, options.more_sources)),
            "plan": dataclasses.asdict(options.plan),
            "exclude": options.exclude,
            "class_map": dict(options.class_map),
            "transform_module": options.transform_module,
            "columns_as_given": options.copied.as_given if options.copied else as_given,
            "max_reject_fraction": options.max_reject_fraction,
            "quarantine_bytes": options.quarantine_bytes,
        },
        versions=byte_versions(options.image.icc) | {"apache-beam": beam.__version__},
        inputs=tuple((each.input, getattr(each, "fingerprint", None)) for each in options.sources),
        warnings=tuple(text for schema in schemas if schema for text in schema.warnings),
    )


def _listing_options(source: InputOptions) -> dict[str, Any]:
    """What lists an input, as the manifest tells it."""
    said = {field.name: getattr(source, field.name) for field in dataclasses.fields(InputOptions)}
    if source.columns is not None:
        said["columns"] = [dataclasses.asdict(column) for column in source.columns]
    # What images with one label have always been told of.
    untold = ("label", "label_separator") if source.label == ONE else ()
    return {name: value for name, value in said.items() if name not in untold}
