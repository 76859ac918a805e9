"""`--plan_only`: the plan of a build, and the reasons why the build would stop.

It decodes no picture to find them: an output that is in the way, columns that do not fit, equal
keys, and too many files that are missing, empty or too large.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam import pvalue

from beam_pipeline.columns.arrow import ToRecordBatch
from beam_pipeline.columns.transforms import AnalyseColumns
from beam_pipeline.commit.quarantine import allowed_rejects
from beam_pipeline.commit.staging import check_output, read_output_state
from beam_pipeline.commit.warnings import counts_and_names, warnings_of
from beam_pipeline.images import read_images
from beam_pipeline.inputs.duplicate_keys import FindDuplicateKeys, how_to_make_unique
from beam_pipeline.inputs.listing import schemas_of
from beam_pipeline.inputs.selection import KeysFile, share_keys
from beam_pipeline.options import BuildOptions, ColumnSpec, ImageOptions
from beam_pipeline.pipeline import (
    Schemas,
    columns_of,
    has_unique_keys,
    list_images,
    select_images,
    with_pinned_classes,
)
from beam_pipeline.planning.plan import ShardPlan
from beam_pipeline.planning.refs import LOST_RECORD, ImageRef, RefBatch
from beam_pipeline.planning.transforms import AssignSplits, PlanShards
from beam_pipeline.progress import plan_table
from beam_pipeline.runners.runner import Runner
from imageshards import storage
from imageshards.errors import ImageError, OutputError, UserError
from imageshards.manifest import STAGING_NAME
from imageshards.text import counted

# Equal keys that are shown.
_MAX_KEYS = 1000

# Reason → images, and one of them: {"images": …, "uri": …, "message": …}.
Rejects = dict[str, dict[str, Any]]


def plan_only(options: BuildOptions, runner: Runner) -> str:
    """Lists and plans, writes nothing; returns what to print.

    Args:
        options: What a build is asked.
        runner: One of this machine.

    Raises:
        UserError: The build would end with one. What was planned is printed before.
    """
    state = read_output_state(options.output, storage.join(options.output, STAGING_NAME))
    check_output(state, options.overwrite)
    _check_writable(options.output)
    options = with_pinned_classes(options, state.pinned_classes)
    schemas = schemas_of(options.sources)
    # Checks them.
    AnalyseColumns("", columns_of(schemas), transform_module=options.transform_module)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        pipeline = runner.new_pipeline()
        excluded = share_keys(options.exclude, folder) if options.exclude else None
        _construct(pipeline, options, schemas, path, excluded)
        runner.run(pipeline)
        with open(path, encoding="utf-8") as file:
            summary: dict[str, Any] = json.load(file)
    skipped, names = counts_and_names(summary["skipped"])
    warnings = warnings_of(summary["counts"], options.plan.splits, names)
    summary |= {
        "skipped": skipped,
        "warnings": [*(text for s in schemas if s for text in s.warnings), *warnings],
    }
    text = plan_table(summary)
    problems = [*_equal_keys(summary["equal_keys"], len(options.sources))]
    problems += _too_many_rejects(summary, options.max_reject_fraction)
    if problems:
        print(text, flush=True)
        raise UserError("\n".join(problems))
    return text


def _check_writable(output: str) -> None:
    if not storage.is_local(output):
        return
    here = output
    while not os.path.lexists(here):
        here = os.path.dirname(here)
    if not os.path.isdir(here) or not os.access(here, os.W_OK | os.X_OK):
        what = "permission denied" if os.path.isdir(here) else "not a folder"
        raise OutputError(
            f"--output {output!r} cannot be written ({here!r}: {what}); choose another folder or "
            "fix its permissions."
        )


def _construct(
    pipeline: beam.Pipeline,
    options: BuildOptions,
    schemas: Schemas,
    path: str,
    excluded: KeysFile | None,
) -> None:
    listed = pipeline | "List" >> list_images(options, schemas)
    selected = select_images(listed.batches, options, excluded)
    batches = selected.batches | "Split" >> AssignSplits(options.plan)
    planned = batches | "Plan" >> PlanShards(options.plan, options.image, options.urls)
    sizes = planned.units | "ShardSizes" >> beam.Map(lambda unit: (unit.split, len(unit.refs)))
    unusable = batches | "KnownRejects" >> beam.Map(known_rejects, options.image)
    equal_keys: Any = ()
    if columns := columns_of(schemas):
        batches | "CheckColumns" >> beam.FlatMap(_check_columns, columns)
    if not has_unique_keys(schemas):
        equal_keys = pvalue.AsIter(batches | "EqualKeys" >> FindDuplicateKeys(_MAX_KEYS))
    planned.plan | "WritePlan" >> beam.Map(
        write_plan,
        pvalue.AsIter(sizes),
        pvalue.AsIter((listed.skipped, *selected.skipped) | "Skipped" >> beam.Flatten()),
        pvalue.AsIter(unusable),
        equal_keys,
        path,
    )


def _check_columns(batch: RefBatch, columns: Sequence[ColumnSpec]) -> Iterator[Any]:
    for _ in ToRecordBatch(columns)(batch):
        pass
    yield from ()


def known_rejects(batch: RefBatch, options: ImageOptions) -> Rejects:
    """Images that the listing already showed to be unusable: missing, empty or too large."""
    lost = [ref for ref in batch.refs if ref.offset_bytes == LOST_RECORD]
    found = [_reject(ref, "damaged_record", "the shard holds no such record") for ref in lost]
    suspects = [ref for ref in batch.refs if _is_suspect(ref, options)]
    for ref, data in read_images(suspects, options.max_bytes):
        if isinstance(data, ImageError):
            found.append(_reject(ref, data.code, data.message))
        elif not data:
            found.append(_reject(ref, "empty", "The file has no bytes."))
    return sum_rejects(found)


def _is_suspect(ref: ImageRef, options: ImageOptions) -> bool:
    is_file = storage.is_local(ref.uri) and not ref.is_record
    return is_file and not 0 < ref.size_bytes <= options.max_bytes


def _reject(ref: ImageRef, reason: str, message: str) -> Rejects:
    return {reason: {"images": 1, "uri": ref.uri, "message": message}}


def sum_rejects(found: Iterable[Rejects]) -> Rejects:
    """Rejects together; the example is that of the first path."""
    total: Rejects = {}
    for rejects in found:
        for reason, of_reason in rejects.items():
            known = total.setdefault(reason, {**of_reason, "images": 0})
            images = known["images"] + of_reason["images"]
            first = min(known, of_reason, key=lambda each: (each["uri"], each["message"]))
            total[reason] = {**first, "images": images}
    return total


def write_plan(
    plan: ShardPlan,
    sizes: Iterable[tuple[str, int]],
    skipped: Iterable[Mapping[str, int]],
    rejects: Iterable[Rejects],
    equal_keys: Iterable[tuple[str, list[str]]],
    path: str,
) -> None:
    """Writes the plan's summary as JSON."""
    found = list(sizes)
    splits: dict[str, Any] = {}
    counts: dict[str, dict[str, int]] = {}
    for split in sorted(plan.num_shards):
        of_split = [count for name, count in found if name == split]
        splits[split] = {
            "shards": len(of_split),
            "images": sum(of_split),
            "min": min(of_split),
            "max": max(of_split),
        }
        counts[split] = {
            name: plan.counts.get((split, class_id), 0)
            for class_id, name in enumerate(plan.classes)
        }
    summary = {
        "splits": splits,
        "counts": counts,
        "skipped": list(skipped),
        "rejects": sum_rejects(rejects),
        "equal_keys": dict(sorted(equal_keys)),
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(summary, file)


def _equal_keys(keys: Mapping[str, list[str]], inputs: int) -> Iterator[str]:
    if not keys:
        return
    number = counted(len(keys), "key") if len(keys) < _MAX_KEYS else f"{_MAX_KEYS:,} or more keys"
    lines = [
        f"--input has {number} more than once; expected unique keys: {how_to_make_unique(inputs)}:"
    ]
    lines += (f"  {key!r}: {', '.join(images)}" for key, images in keys.items())
    yield "\n".join(lines)


def _too_many_rejects(summary: Mapping[str, Any], max_fraction: float) -> Iterator[str]:
    """The sentence of a build that would end with more rejects than it may have."""
    rejects = summary["rejects"]
    number = sum(found["images"] for found in rejects.values())
    images = sum(split["images"] for split in summary["splits"].values())
    allowed = allowed_rejects(images, max_fraction)
    if number <= allowed:
        return
    example = next(iter(rejects.values()))
    yield (
        f"--max_reject_fraction {max_fraction:g} allows {allowed:,} of "
        f"{counted(images, 'image')} to be rejected, but {number:,} would be "
        f"({', '.join(rejects)}), for example {example['uri']!r} ({example['message']}); fix or "
        "remove them or raise the fraction."
    )
