"""Wires the job of a build from its transforms: list, split, analyse, plan, write, commit.

`plan_only` wires a part of the job that writes nothing, and finds the reasons why a build would
stop: the output is in the way, columns do not fit, or keys are equal. Pictures are encoded only if
the number of shards follows from their size.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam import pvalue

from beam_pipeline.columns.arrow import to_record_batches
from beam_pipeline.columns.transforms import AnalyseColumns, transform_temp_folder
from beam_pipeline.commit.dataset import CommitSpec
from beam_pipeline.commit.staging import OutputState, check_output, read_output_state
from beam_pipeline.commit.transforms import CommitShards
from beam_pipeline.commit.warnings import counts_and_names, warnings_of
from beam_pipeline.inputs import selection
from beam_pipeline.inputs.layout import expand_braces, layout_of
from beam_pipeline.inputs.listing import schemas_of
from beam_pipeline.inputs.spool import SPOOL_NAME
from beam_pipeline.inputs.tables.roles import TableSchema
from beam_pipeline.inputs.transforms import ListImages
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import (
    ANNOTATIONS,
    COCO,
    DATASET,
    FILE_FLAGS,
    TABLE,
    TABLE_FLAGS,
    BuildOptions,
    ColumnSpec,
    InputOptions,
    ShardOptions,
    UrlOptions,
)
from beam_pipeline.planning.plan import PLAN_NAME, ShardPlan
from beam_pipeline.planning.refs import RefBatch
from beam_pipeline.planning.strata import SampleImages
from beam_pipeline.planning.transforms import AssignSplits, PlanShards, survey_and_plan
from beam_pipeline.progress import MOST_VALUES, class_line, column_lines, reasons
from beam_pipeline.runners.runner import Runner
from beam_pipeline.shards.record import byte_versions
from beam_pipeline.shards.transforms import WriteBalancedTFRecord
from imageshards import storage
from imageshards.commands.options import options_of
from imageshards.errors import Arg
from imageshards.manifest import BOX_FEATURES, ONE, STAGING_NAME, TRANSFORM_NAME
from imageshards.progress import text_table
from imageshards.text import composed, for_output

Schemas = tuple[TableSchema | None, ...]


def build(options: BuildOptions, runner: Runner, state: OutputState, job: str) -> None:
    """Builds the dataset `options.output` and commits it.

    `state` is the output when the job began. `job` is the id that `prepare_staging` returned.
    """
    staging = state.staging
    schemas = checked_schemas(options)
    options = with_pinned_classes(options, state, schemas)
    columns = columns_of(schemas)
    with transform_temp_folder(options, columns, runner.local, staging) as temporary:
        options = dataclasses.replace(options, transform_temp_dir=temporary or None)
        pipeline = runner.new_pipeline()
        excluded = selection.share_keys(options.exclude, staging) if options.exclude else None
        construct(pipeline, options, schemas, staging, excluded, job)
        runner.run(pipeline)


def construct(
    pipeline: beam.Pipeline,
    options: BuildOptions,
    schemas: Schemas,
    staging: str,
    excluded: selection.KeysFile | None = None,
    job: str = "",
) -> None:
    """Adds the whole job to a pipeline; `schemas` has the columns of each input, or None."""
    shards = options.shard_options(byte_versions(options.image.icc))
    spool = storage.join(staging, SPOOL_NAME)
    listed = list_batches(pipeline, options, schemas, excluded, spool)  # RefBatch with splits
    columns = listed.batches | "Analyse" >> AnalyseColumns(
        storage.join(staging, TRANSFORM_NAME),
        columns_of(schemas),
        shards,
        label=options.source.label,
        transform_module=options.transform_module,
        temp_dir=options.transform_temp_dir or "",
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
        job=job,
    )
    files = planned.units | "Write" >> write  # final paths of the shards
    files | "Commit" >> CommitShards(
        commit_spec(options, write, schemas),
        planned.plan,
        listed.skipped,
        listed.checked,
    )


def list_batches(
    pipeline: beam.Pipeline,
    options: BuildOptions,
    schemas: Schemas,
    excluded: selection.KeysFile | None,
    spool: str,
) -> selection.Selected:
    """Lists the images of all inputs, without excluded ones, and gives each its class and split."""
    first, *more = zip(options.sources, schemas, strict=True)
    draws, names = not options.given.isdisjoint({"splits", "stratify"}), options.plan.class_names
    listing = ListImages(*first, more, spool, draws, names)
    listed = pipeline | "List" >> listing  # RefBatch, {reason: files}
    select = selection.SelectImages(excluded, options.class_map, options.drop_class)
    selected = listed.batches | "Select" >> select
    unique = selected.batches | "UniqueKeys" >> selection.RefuseDuplicateKeys()
    checked = (unique, *selected.checked)
    if globs := sorted({glob for source in options.sources for glob in source.exclude_glob}):
        passed_over = listed.skipped | "PassedOver" >> beam.FlatMap(list)
        check = selection.Check(selection.check_globs, globs)
        checked += (passed_over | "CheckGlobs" >> check,)
    batches, skipped = selected.batches, (listed.skipped, *selected.skipped)
    if options.sample is not None or options.limit is not None:
        sample = SampleImages(options.sample, options.limit, options.plan.salt)
        batches, left_out = batches | "Sample" >> sample
        skipped += (left_out,)
    batches = batches | "Split" >> AssignSplits(ShardOptions(plan=options.plan))
    return selection.Selected(batches, skipped, checked)


def checked_schemas(options: BuildOptions) -> Schemas:
    """Returns the columns of the inputs; raises `UserError` for an option that changes nothing."""
    schemas = schemas_of(options.sources, options.plan.class_names)
    image, columns = options.image, {column.name for column in columns_of(schemas)}
    idle: dict[str, str] = {}
    if image.resize_mode == "none":
        why = Arg("resize_mode", "none")
        idle |= dict.fromkeys(("image_size", "filter", "only_shrink"), why)
    if image.channels == 1:
        idle["subsampling"] = Arg("colorspace", image.colorspace)
    if "*" in options.plan.num_shards:
        idle["shard_mb"] = Arg("num_shards", options.plan.num_shards["*"])
    if options.source.label != ONE:
        idle["allow_one_class"] = Arg("label", options.source.label)
    if not columns.intersection(BOX_FEATURES):
        idle["bbox_frame"] = "inputs that are no table with boxes"
    if not columns and options.transform_module is None:
        idle["transform_temp_dir"] = "inputs without extra columns"
    layouts = {*map(layout_of, options.sources)}
    if not any(schemas):
        idle |= dict.fromkeys(TABLE_FLAGS, "inputs without columns")
    if TABLE not in layouts or all(schema is None or schema.has_pictures for schema in schemas):
        paths = (*options_of(UrlOptions), "allow_any_path")
        idle |= dict.fromkeys(paths, "inputs without a table of paths or addresses")
        if layouts.isdisjoint(ANNOTATIONS):
            idle["image_root"] = "inputs without a table of paths, and without annotations"
    if TABLE not in layouts:
        idle |= dict.fromkeys(("image_column", "image_path"), "inputs that are no table")
    if layouts <= {DATASET, *ANNOTATIONS}:
        of_rows = {*TABLE_FLAGS, "label_separator"} - {"key_column", "columns"}
        idle |= dict.fromkeys(of_rows, "inputs whose format says it")
    if layouts <= {TABLE, DATASET, COCO}:
        names = (*FILE_FLAGS, "label_regex")
        idle |= dict.fromkeys(names, "inputs that are no folder, glob or archive")
    if layouts <= {TABLE, DATASET, *ANNOTATIONS}:
        idle["labels"] = "inputs whose rows or files have labels"
    if not any(expand_braces(each.input)[0].lower().endswith(".zip") for each in options.sources):
        idle["zip_encoding"] = "inputs that are no .zip archive"
    if layouts == {DATASET}:
        names = ("max_pixels", "max_bytes", "label_separator")
        idle |= dict.fromkeys(names, "inputs whose records are copied")
    flags = {"max_pixels": "max_image_mpx", "max_bytes": "max_image_mb"}
    for name in sorted(options.given & idle.keys()):
        received = "a value that has no effect with " + idle[name]
        raise invalid(flags.get(name, name), received, remedy="leave it out")
    return schemas


def columns_of(schemas: Schemas) -> tuple[ColumnSpec, ...]:
    return next((schema.columns for schema in schemas if schema), ())


def with_pinned_classes(
    options: BuildOptions, state: OutputState, schemas: Schemas
) -> BuildOptions:
    """Returns the options with an order of classes, unless `--class_names` gives the order."""
    if options.plan.class_names is not None:
        return options
    # Classes of a replaced dataset keep their ids. Classes that image tables define follow, and
    # then classes of the datasets among the inputs.
    of_tables = [name for schema in schemas if schema for name in schema.class_names]
    names = map(composed, [*state.pinned_classes, *of_tables, *options.plan.pinned_classes])
    left = (name for name in names if name not in options.drop_class)
    classes = tuple(dict.fromkeys(options.class_map.get(name, name) for name in left))
    return dataclasses.replace(
        options, plan=dataclasses.replace(options.plan, pinned_classes=classes)
    )


def commit_spec(
    options: BuildOptions, write: WriteBalancedTFRecord, schemas: Schemas
) -> CommitSpec:
    columns = columns_of(schemas)
    as_given = options.transform_module is None and all(c.scale == "none" for c in columns)
    # Manifests record these options only where they are given.
    names = options.given & {"sample", "limit", "drop_class"}
    chosen = {name: getattr(options, name) for name in sorted(names)}
    plan = dataclasses.asdict(options.plan)
    if not options.plan.stratify:
        del plan["stratify"]
    return CommitSpec(
        places=write.places,
        write=write.options,
        max_reject_fraction=options.max_reject_fraction,
        report=options.report,
        options={
            "input": listing_options(options.source),
            "more_inputs": list(map(listing_options, options.more_sources)),
            "plan": plan,
            "exclude": options.exclude[0] if len(options.exclude) == 1 else options.exclude or None,
            "class_map": dict(options.class_map),
            "transform_module": options.transform_module,
            "columns_as_given": options.copied.as_given if options.copied else as_given,
            "max_reject_fraction": options.max_reject_fraction,
            "quarantine_bytes": options.quarantine_bytes,
        }
        | chosen,
        versions=byte_versions(options.image.icc) | {"apache-beam": beam.__version__},
        inputs=tuple((each.input, getattr(each, "fingerprint", None)) for each in options.sources),
        warnings=tuple(text for schema in schemas if schema for text in schema.warnings),
        asks_splits="splits" in options.given,
    )


def listing_options(source: InputOptions) -> dict[str, Any]:
    listing = {each.name: getattr(source, each.name) for each in dataclasses.fields(InputOptions)}
    listing |= getattr(source, "groups", {})
    if source.columns is not None:
        listing["columns"] = [dataclasses.asdict(column) for column in source.columns]
    # Manifests record these options only where they are given.
    for name in ("image_path", "image_root", "labels", "drop_column"):
        if not listing[name]:
            del listing[name]
    if source.label == ONE:
        del listing["label"], listing["label_separator"]
    return listing


def plan_only(options: BuildOptions, runner: Runner) -> str:
    """Lists and plans on this machine; returns the plan as a text, or raises the build's error."""
    state = read_output_state(options.output, storage.join(options.output, STAGING_NAME))
    check_output(state, options.overwrite)
    schemas = checked_schemas(options)
    options = with_pinned_classes(options, state, schemas)
    columns = columns_of(schemas)
    copied = options.copied.transform if options.copied else ""
    # The constructor checks the columns and the module.
    AnalyseColumns("", columns, transform_module=options.transform_module, copied_from=copied)
    with tempfile.TemporaryDirectory() as folder:
        pipeline = runner.new_pipeline()
        excluded = selection.share_keys(options.exclude, folder) if options.exclude else None
        listed = list_batches(pipeline, options, schemas, excluded, folder)
        batches = listed.batches
        cells = batches | "CheckColumns" >> beam.FlatMap(_check_columns, columns)
        # The checks are side inputs of the last step, which therefore runs only after all passed.
        path = os.path.join(folder, "plan")
        survey_and_plan(batches, options.shard_options({})) | "Write" >> beam.Map(
            _write_plan,
            pvalue.AsIter(listed.skipped | "Skipped" >> beam.Flatten()),
            path,
            *map(pvalue.AsIter, (cells, *listed.checked)),
        )
        runner.run(pipeline)
        # A local pipeline returns no elements, so its last step leaves the plan in a file.
        with open(path, "rb") as file:
            plan, skipped, counts = pickle.load(file)
    warnings = [text for schema in schemas if schema for text in schema.warnings]
    extra = column_lines([(c.name, c.kind, c.shape) for c in columns], *counts)
    return plan_table(plan, skipped, options, warnings, extra)


# Column → rows without a number, and different texts up to `MOST_VALUES`.
_Cells = dict[str, tuple[int, set[str]]]


def _check_columns(batch: RefBatch, columns: Sequence[ColumnSpec]) -> Iterator[_Cells]:
    if not columns:
        return
    # `to_record_batches` is lazy: its errors appear when its batches are read.
    collections.deque(to_record_batches(batch, columns), maxlen=0)
    found: _Cells = {}
    for column in (each for each in columns if each.shape == ()):
        cells = [(ref.columns or {}).get(column.name) for ref in batch.refs]
        texts = {cell for cell in cells if isinstance(cell, str)}
        missing = sum(cell != cell for cell in cells)
        found[column.name] = missing, set(itertools.islice(sorted(texts), MOST_VALUES))
    yield found


def _cells_of(checked: Iterable[_Cells]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns column → missing numbers, and column → different texts, of all batches."""
    missing, texts = collections.Counter[str](), collections.defaultdict[str, set[str]](set)
    for name, (count, some) in (cells for batch in checked for cells in batch.items()):
        missing[name] += count
        texts[name] |= some if len(texts[name]) < MOST_VALUES else set()
    return dict(missing), {name: len(found) for name, found in texts.items()}


def _write_plan(
    plan: ShardPlan,
    skipped: Iterable[Mapping[str, int]],
    path: str,
    cells: Iterable[_Cells],
    *checked: Iterable[Any],
) -> None:
    with open(path, "wb") as file:
        pickle.dump((plan, list(skipped), _cells_of(cells)), file)


def plan_table(
    plan: ShardPlan,
    skipped: Iterable[Mapping[str, int]],
    options: BuildOptions,
    warnings: Iterable[str],
    columns: Sequence[str] = (),
) -> str:
    """Returns the text of a plan: splits, classes, columns, files passed over, and warnings."""
    rows = []
    for split, shards in plan.num_shards.items():
        numbers = (shards, plan.images[split], *plan.images_per_shard(split))
        rows.append([split, *(f"{number:,}" for number in numbers)])
    counts = {
        split: {name: plan.counts_by_label.get((split, name), 0) for name in plan.classes}
        for split in plan.num_shards
    }
    header = ["split", "shards", "images", "min/shard", "max/shard"]
    lines = [text_table(header, rows), class_line(counts, plan.label), *columns]
    passed_over, names = counts_and_names(skipped)
    if passed_over:
        lines.append(for_output("files skipped" + reasons(passed_over)))
    splits, is_asked = options.plan.splits, "splits" in options.given
    warnings = [*warnings, *warnings_of(counts, plan.images, splits, names, is_asked)]
    lines += [for_output(f"warning: {warning}") for warning in warnings]
    return "\n".join([*lines, "nothing was written"])
