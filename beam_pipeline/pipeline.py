"""Wires the job of a build from its transforms: list, split, analyse, plan, write, commit."""

from __future__ import annotations

import dataclasses
from typing import Any

import apache_beam as beam

from beam_pipeline.beam_files import StoreConfig
from beam_pipeline.columns.transforms import TFT_TEMP, AnalyseColumns, transform_temp_folder
from beam_pipeline.commit.dataset import CommitSpec
from beam_pipeline.commit.staging import OutputState
from beam_pipeline.commit.transforms import CommitShards
from beam_pipeline.inputs.duplicate_keys import RefuseDuplicateKeys
from beam_pipeline.inputs.labels import GIVEN_SPLIT
from beam_pipeline.inputs.listing import has_several_archives, schemas_of, spooled_files
from beam_pipeline.inputs.selection import KeysFile, Selected, SelectImages, check_globs, share_keys
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
    """Builds the dataset `options.output` and commits it; returns False for a dry run.

    Args:
        state: Contents of the output when the job began.
        job: Id of the job, as `prepare_staging` returned it.

    Raises:
        UserError: The build failed for a reason that the caller can remove.
    """
    staging = state.staging
    schemas = schemas_of(options.sources, options.plan.class_names)
    options = with_pinned_classes(options, state, schemas)
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
    """Adds the whole job to a pipeline.

    Args:
        schemas: For each input its schema if the input is an image table, else None.
        staging: Folder of the unfinished dataset.
        finished: Folder for finished shards until the commit; default: `staging`.
        transform_temp: Folder for tensorflow-transform's files; default: below `staging`.
        excluded: Keys of the images that the build leaves out.
        job: Id of the job, as for `build`.
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
    )  # RefBatch with features; one {feature: FeatureSpec}
    saved = storage.join(staging, PLAN_NAME)
    plan = PlanShards(shards, saved=saved, features=columns.features)
    planned = columns.batches | "Plan" >> plan  # ShardUnit; one ShardPlan
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
    """Lists the images of all inputs, without excluded ones, and gives each its class and split."""
    first, *more = zip(options.sources, schemas, strict=True)
    listed = pipeline | "List" >> ListImages(*first, more, spool)  # RefBatch, {reason: files}
    selected = Selected(listed.batches, (), ())
    if excluded is not None or options.class_map:
        selected = listed.batches | "Select" >> SelectImages(excluded, options.class_map)
    checked = selected.checked
    if globs := sorted({glob for source in options.sources for glob in source.exclude_glob}):
        check = StoreConfig.of_pipeline(listed.batches).step(check_globs)
        checked += (
            listed.skipped
            | "PassedOver" >> beam.FlatMap(list)
            | "AllPassedOver" >> beam.CombineGlobally(beam.combiners.ToSetCombineFn())
            | "CheckGlobs" >> beam.Map(check, globs),
        )
    skipped = listed.skipped
    if "splits" not in options.given:
        # A split of the input deserves a warning only if the user asked for splits, too.
        skipped = skipped | "Unasked" >> beam.Map(
            lambda counts: {k: n for k, n in counts.items() if not k.startswith(f"{GIVEN_SPLIT}: ")}
        )
    batches = selected.batches | "Split" >> AssignSplits(ShardOptions(plan=options.plan))
    return Selected(batches, (skipped, *selected.skipped), checked)


def columns_of(schemas: Schemas) -> tuple[ColumnSpec, ...]:
    """Returns the extra columns, which are the same for all inputs."""
    return next((schema.columns for schema in schemas if schema), ())


def unique_keys(
    batches: beam.PCollection, options: BuildOptions, schemas: Schemas
) -> tuple[beam.PCollection, ...]:
    """Returns a check that no key occurs twice, or nothing if keys cannot be equal."""
    # The keys of a single folder or archive are paths in it, which are unique.
    if schemas == (None,) and not has_several_archives(options.source):
        return ()
    return (batches | "UniqueKeys" >> RefuseDuplicateKeys(),)


def with_pinned_classes(
    options: BuildOptions, state: OutputState, schemas: Schemas
) -> BuildOptions:
    """Returns the options with an order of classes, unless `--class_names` gives the order.

    Classes of a replaced dataset keep their ids. Classes that image tables define follow, and then
    classes of the datasets among the inputs.
    """
    if options.plan.class_names is not None:
        return options
    of_tables = [name for schema in schemas if schema for name in schema.class_names]
    names = map(composed, [*state.pinned_classes, *of_tables, *options.plan.pinned_classes])
    classes = tuple(dict.fromkeys(options.class_map.get(name, name) for name in names))
    return dataclasses.replace(
        options, plan=dataclasses.replace(options.plan, pinned_classes=classes)
    )


def commit_spec(
    options: BuildOptions, write: WriteBalancedTFRecord, schemas: Schemas
) -> CommitSpec:
    """Returns the settings of the commit, with the options that the manifest records."""
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
    """Returns the options of an input as the manifest records them."""
    listing = {each.name: getattr(source, each.name) for each in dataclasses.fields(InputOptions)}
    if source.columns is not None:
        listing["columns"] = [dataclasses.asdict(column) for column in source.columns]
    # Manifests of images with one label have never recorded these options.
    if source.label == ONE:
        del listing["label"], listing["label_separator"]
    return listing
