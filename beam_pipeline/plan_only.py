"""`--plan_only`: the plan of a build, and the reasons why the build would stop.

They are an output that is in the way, columns that do not fit, equal keys, and too many files that
are missing, empty or too large. Pictures are encoded only where the number of shards follows from
their size.
"""

from __future__ import annotations

import collections
import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam import pvalue

from beam_pipeline.columns.arrow import to_record_batches
from beam_pipeline.columns.transforms import AnalyseColumns
from beam_pipeline.commit.staging import check_output, read_output_state
from beam_pipeline.commit.summary import check_budget
from beam_pipeline.commit.warnings import counts_and_names, warnings_of
from beam_pipeline.images.read import read_images
from beam_pipeline.inputs.listing import schemas_of
from beam_pipeline.inputs.selection import share_keys
from beam_pipeline.options import BuildOptions, ColumnSpec, ImageOptions
from beam_pipeline.pipeline import columns_of, list_batches, unique_keys, with_pinned_classes
from beam_pipeline.planning.plan import ShardPlan
from beam_pipeline.planning.refs import RefBatch
from beam_pipeline.planning.transforms import survey_and_plan
from beam_pipeline.progress import class_line, reasons
from beam_pipeline.runners.runner import Runner
from imageshards import storage
from imageshards.errors import ImageError, UserError
from imageshards.manifest import STAGING_NAME
from imageshards.progress import text_table
from imageshards.text import for_output


class Reject(NamedTuple):
    """An image that a build would reject, as its listing shows already."""

    reason: str
    uri: str
    message: str


class Planned(NamedTuple):
    """What was found: the plan, what was passed over, rejects and how many of each reason."""

    plan: ShardPlan
    skipped: list[Mapping[str, int]]
    examples: dict[str, Reject]
    rejects: Mapping[str, int]


def plan_only(options: BuildOptions, runner: Runner) -> str:
    """Lists and plans, writes nothing; returns what to print.

    Args:
        options: What a build is asked.
        runner: One of this machine.

    Raises:
        UserError: The build would end with one. If it is for rejects, the plan is printed before.
    """
    state = read_output_state(options.output, storage.join(options.output, STAGING_NAME))
    check_output(state, options.overwrite)
    options = with_pinned_classes(options, state.pinned_classes)
    schemas = schemas_of(options.sources)
    columns = columns_of(schemas)
    copied = options.copied.transform if options.copied else ""
    # Checks them.
    AnalyseColumns("", columns, transform_module=options.transform_module, copied_from=copied)
    with tempfile.TemporaryDirectory() as folder:
        pipeline = runner.new_pipeline()
        excluded = share_keys(options.exclude, folder) if options.exclude else None
        listed = list_batches(pipeline, options, schemas, excluded)
        batches = listed.batches
        rejects = batches | "KnownRejects" >> beam.FlatMap(known_rejects, options.image)
        checked = [
            batches | "CheckColumns" >> beam.FlatMap(_check_columns, columns),
            *unique_keys(batches, options, schemas),
            *listed.checked,
        ]
        path = os.path.join(folder, "plan")
        survey_and_plan(batches, options.plan, options.image, options.urls) | "Write" >> beam.Map(
            write_plan,
            pvalue.AsIter(listed.skipped | "Skipped" >> beam.Flatten()),
            pvalue.AsIter(rejects),
            path,
            *map(pvalue.AsIter, checked),
        )
        runner.run(pipeline)
        with open(path, "rb") as file:
            found: Planned = pickle.load(file)
    warnings = [text for schema in schemas if schema for text in schema.warnings]
    text = plan_table(found, options.plan.splits, warnings)
    try:
        budget = options.max_reject_fraction
        check_budget(found.rejects, found.plan.num_images, budget, "some of them above")
    except UserError:
        print(text, flush=True)
        raise
    return text


def _check_columns(batch: RefBatch, columns: Sequence[ColumnSpec]) -> Iterator[Any]:
    if columns:
        collections.deque(to_record_batches(batch, columns), maxlen=0)
    yield from ()


def known_rejects(batch: RefBatch, options: ImageOptions) -> Iterator[Reject]:
    """Images that the listing already showed to be unusable: missing, empty or too large."""
    files = [ref for ref in batch.refs if not ref.is_record and storage.is_local(ref.uri)]
    suspects = [ref for ref in files if not 0 < ref.size_bytes <= options.max_bytes]
    for ref, data in read_images(suspects, options.max_bytes):
        if isinstance(data, ImageError):
            yield Reject(data.code, ref.uri, data.message)
        elif not data:
            yield Reject("empty", ref.uri, "The file has no bytes.")


def write_plan(
    plan: ShardPlan,
    skipped: Iterable[Mapping[str, int]],
    rejects: Iterable[Reject],
    path: str,
    *checked: Iterable[Any],
) -> None:
    """Writes what was found; of the rejects of a reason the first one."""
    counts = collections.Counter[str]()
    examples: dict[str, Reject] = {}
    for reject in rejects:
        counts[reject.reason] += 1
        examples[reject.reason] = min(reject, examples.get(reject.reason, reject))
    examples = dict(sorted(examples.items()))
    with open(path, "wb") as file:
        pickle.dump(Planned(plan, list(skipped), examples, counts), file)


def plan_table(found: Planned, splits: Mapping[str, float], warnings: Iterable[str]) -> str:
    """The shards of each split, the classes, what was passed over, and what is odd."""
    plan = found.plan
    rows = []
    for split, shards in plan.num_shards.items():
        fewest, most = plan.images_per_shard(split)
        images = sum(count for (name, _), count in plan.counts.items() if name == split)
        rows.append([split, *(f"{number:,}" for number in (shards, images, fewest, most))])
    counts = {
        split: {name: plan.counts.get((split, i), 0) for i, name in enumerate(plan.classes)}
        for split in plan.num_shards
    }
    header = ["split", "shards", "images", "min/shard", "max/shard"]
    lines = [text_table(header, rows), class_line(counts)]
    skipped, names = counts_and_names(found.skipped)
    if skipped:
        lines.append(for_output("files passed over" + reasons(skipped)))
    if found.rejects:
        known = ", ".join(
            f"{reason} {found.rejects[reason]:,} such as {uri!r} ({message})"
            for reason, uri, message in found.examples.values()
        )
        lines.append(for_output(f"rejected already when listed: {known}"))
    told = [*warnings, *warnings_of(counts, splits, names)]
    lines += [for_output(f"warning: {warning}") for warning in told]
    return "\n".join([*lines, "nothing was written"])
