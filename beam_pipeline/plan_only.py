"""Plans a build without writing (`--plan_only`), and finds the reasons why it would stop.

A build stops if the output is in the way, if columns do not fit, or if keys are equal. Pictures are
encoded only if the number of shards follows from their size.
"""

from __future__ import annotations

import collections
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam import pvalue

from beam_pipeline.columns.arrow import to_record_batches
from beam_pipeline.columns.transforms import AnalyseColumns
from beam_pipeline.commit.staging import check_output, read_output_state
from beam_pipeline.commit.warnings import counts_and_names, warnings_of
from beam_pipeline.inputs.listing import schemas_of
from beam_pipeline.inputs.selection import share_keys
from beam_pipeline.options import BuildOptions, ColumnSpec
from beam_pipeline.pipeline import columns_of, list_batches, unique_keys, with_pinned_classes
from beam_pipeline.planning.plan import ShardPlan
from beam_pipeline.planning.refs import RefBatch
from beam_pipeline.planning.transforms import survey_and_plan
from beam_pipeline.progress import class_line, reasons
from beam_pipeline.runners.runner import Runner
from imageshards import storage
from imageshards.manifest import STAGING_NAME
from imageshards.progress import text_table
from imageshards.text import for_output


def plan_only(options: BuildOptions, runner: Runner) -> str:
    """Lists and plans on this machine; returns the plan as a text to print.

    Raises:
        UserError: The build would end with this error.
    """
    state = read_output_state(options.output, storage.join(options.output, STAGING_NAME))
    check_output(state, options.overwrite)
    schemas = schemas_of(options.sources, options.plan.class_names)
    options = with_pinned_classes(options, state, schemas)
    columns = columns_of(schemas)
    copied = options.copied.transform if options.copied else ""
    # The constructor checks the columns and the module.
    AnalyseColumns("", columns, transform_module=options.transform_module, copied_from=copied)
    with storage.temporary_folder() as folder:
        pipeline = runner.new_pipeline()
        excluded = share_keys(options.exclude, folder) if options.exclude else None
        listed = list_batches(pipeline, options, schemas, excluded, folder)
        batches = listed.batches
        checked = [
            batches | "CheckColumns" >> beam.FlatMap(_check_columns, columns),
            *unique_keys(batches, options, schemas),
            *listed.checked,
        ]
        # The checks are side inputs of the last step, which therefore runs only after all passed.
        path = os.path.join(folder, "plan")
        survey_and_plan(batches, options.shard_options({})) | "Write" >> beam.Map(
            _write_plan,
            pvalue.AsIter(listed.skipped | "Skipped" >> beam.Flatten()),
            path,
            *map(pvalue.AsIter, checked),
        )
        runner.run(pipeline)
        # A local pipeline returns no elements, so its last step leaves the plan in a file.
        with open(path, "rb") as file:
            plan, skipped = pickle.load(file)
    warnings = [text for schema in schemas if schema for text in schema.warnings]
    return plan_table(plan, skipped, options.plan.splits, warnings)


def _check_columns(batch: RefBatch, columns: Sequence[ColumnSpec]) -> Iterator[Any]:
    if columns:
        # `to_record_batches` is lazy: its errors appear when its batches are read.
        collections.deque(to_record_batches(batch, columns), maxlen=0)
    yield from ()


def _write_plan(
    plan: ShardPlan, skipped: Iterable[Mapping[str, int]], path: str, *checked: Iterable[Any]
) -> None:
    with open(path, "wb") as file:
        pickle.dump((plan, list(skipped)), file)


def plan_table(
    plan: ShardPlan,
    skipped: Iterable[Mapping[str, int]],
    splits: Mapping[str, float],
    warnings: Iterable[str],
) -> str:
    """Returns the text of a plan: splits, classes, files passed over, and warnings."""
    rows = []
    for split, shards in plan.num_shards.items():
        numbers = (shards, plan.images[split], *plan.images_per_shard(split))
        rows.append([split, *(f"{number:,}" for number in numbers)])
    counts = {
        split: {name: plan.counts_by_label.get((split, name), 0) for name in plan.classes}
        for split in plan.num_shards
    }
    header = ["split", "shards", "images", "min/shard", "max/shard"]
    lines = [text_table(header, rows), class_line(counts, plan.label)]
    passed_over, names = counts_and_names(skipped)
    if passed_over:
        lines.append(for_output("files passed over" + reasons(passed_over)))
    warnings = [*warnings, *warnings_of(counts, plan.images, splits, names)]
    lines += [for_output(f"warning: {warning}") for warning in warnings]
    return "\n".join([*lines, "nothing was written"])
