"""`--plan_only`: a rehearsal of a build, from its plan and a sample of its images.

It writes nothing, and ends as the build would as far as that can be known: with the reasons why
images would be rejected, with equal keys, with an output that is in the way.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam import pvalue

from beam_pipeline.columns import AnalyseColumns
from beam_pipeline.columns.arrow import ToRecordBatch
from beam_pipeline.commit.staging import check_output, read_output_state
from beam_pipeline.commit.warnings import counts_and_names, warnings_of
from beam_pipeline.images import process_pool
from beam_pipeline.inputs import FindDuplicateKeys, KeysFile, schemas_of, share_keys
from beam_pipeline.inputs.duplicate_keys import how_to_make_unique
from beam_pipeline.inputs.manifest import rows_with_keys
from beam_pipeline.options import BuildOptions, ColumnSpec, ImageOptions, InputOptions, UrlOptions
from beam_pipeline.pipeline import (
    Schemas,
    columns_of,
    has_unique_keys,
    list_images,
    select_images,
    with_pinned_classes,
)
from beam_pipeline.planning.plan import ShardPlan
from beam_pipeline.planning.refs import ImageRef, RefBatch
from beam_pipeline.planning.sample import encode_sample
from beam_pipeline.planning.transforms import (
    AssignSplits,
    PlanShards,
    Survey,
    SurveyImages,
)
from beam_pipeline.progress import plan_table
from beam_pipeline.runners import Runner
from imageshards import storage
from imageshards.errors import ImageError, OutputError, UserError
from imageshards.manifest import STAGING_NAME
from imageshards.text import counted

# Equal keys that are shown.
_MAX_KEYS = 1000
# The build is said to fail if chance alone would give the sample's rejects this rarely.
_MAX_CHANCE = 0.01

# Reason → images, and one of them: {"images": …, "uri": …, "message": …}.
Rejects = dict[str, dict[str, Any]]


def plan_only(options: BuildOptions, runner: Runner, begun: float) -> str:
    """Lists and plans, encodes a sample, writes nothing; returns what to print.

    Args:
        options: What a build is asked.
        runner: One of this machine.
        begun: When the command began, by `time.monotonic`.

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
    workers = process_pool.available_cores()
    images = sum(split["images"] for split in summary["splits"].values())
    encoding = images * summary["msec_per_image"] / 1000 / workers
    start = time.monotonic() - begun - summary["sample_seconds"]
    skipped, names = counts_and_names(summary["skipped"])
    warnings = warnings_of(summary["counts"], options.plan.splits, names)
    summary |= {
        "workers": workers,
        "start_seconds": start,
        "seconds": start + encoding,
        "skipped": skipped,
        "warnings": [*(text for s in schemas if s for text in s.warnings), *warnings],
    }
    text = plan_table(summary)
    problems = [*_equal_keys(summary["equal_keys"], options.sources, schemas)]
    problems += _too_many_rejects(summary, images, options.max_reject_fraction)
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
    survey = batches | "Survey" >> SurveyImages(options.plan.salt)
    planned = batches | "Plan" >> PlanShards(options.plan, options.image, options.urls, survey)
    sizes = planned.units | "ShardSizes" >> beam.Map(lambda unit: (unit.split, len(unit.refs)))
    unusable = batches | "KnownRejects" >> beam.Map(known_rejects, options.image)
    equal_keys: Any = ()
    if columns := columns_of(schemas):
        batches | "CheckColumns" >> beam.FlatMap(_check_columns, columns)
    if not has_unique_keys(schemas):
        equal_keys = pvalue.AsIter(batches | "EqualKeys" >> FindDuplicateKeys(_MAX_KEYS))
    estimated = survey | "Estimate" >> beam.Map(estimate, options.image, options.urls)
    planned.plan | "WritePlan" >> beam.Map(
        write_plan,
        pvalue.AsIter(sizes),
        pvalue.AsSingleton(estimated),
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
    suspects = [ref for ref in batch.refs if _is_suspect(ref, options)]
    encoded = encode_sample(RefBatch(suspects), options, UrlOptions())
    return _rejects_of(zip(suspects, encoded.found, strict=True))


def _is_suspect(ref: ImageRef, options: ImageOptions) -> bool:
    return not 0 < ref.size_bytes <= options.max_bytes and storage.is_local(ref.uri)


def _rejects_of(encoded: Iterable[tuple[ImageRef, int | ImageError]]) -> Rejects:
    return sum_rejects(
        {found.code: {"images": 1, "uri": ref.uri, "message": found.message}}
        for ref, found in encoded
        if isinstance(found, ImageError)
    )


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


def estimate(survey: Survey, options: ImageOptions, urls: UrlOptions) -> dict[str, Any]:
    """Time, bytes and rejects of a sample of images, from encoding those that are there."""
    begun = time.monotonic()
    refs = [ref for ref in survey.sample.refs if not _is_suspect(ref, options)]
    encoded = encode_sample(RefBatch(refs), options, urls)
    sizes = [found for found in encoded.found if not isinstance(found, ImageError)]
    return {
        "sample": len(refs),
        "sample_rejects": _rejects_of(zip(refs, encoded.found, strict=True)),
        "sample_seconds": time.monotonic() - begun,
        "msec_per_image": encoded.cpu_sec * 1000 / max(1, len(refs)),
        "bytes_per_record": sum(sizes) / max(1, len(sizes)),
    }


def write_plan(
    plan: ShardPlan,
    sizes: Iterable[tuple[str, int]],
    sample: Mapping[str, Any],
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
            "bytes": sum(of_split) * sample["bytes_per_record"],
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
        **sample,
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(summary, file)


def _equal_keys(
    keys: Mapping[str, list[str]], sources: Sequence[InputOptions], schemas: Schemas
) -> Iterator[str]:
    if not keys:
        return
    number = counted(len(keys), "key") if len(keys) < _MAX_KEYS else f"{_MAX_KEYS:,} or more keys"
    lines = [
        f"--input has {number} more than once; expected unique keys: "
        f"{how_to_make_unique(len(sources))}:"
    ]
    found = keys
    if len(sources) == 1 and schemas[0]:
        found = rows_with_keys(sources[0], schemas[0], keys)
    for key, rows in found.items():
        lines.append(f"  {key!r}: {', '.join(rows)}")
    yield "\n".join(lines)


def _too_many_rejects(
    summary: Mapping[str, Any], images: int, max_fraction: float
) -> Iterator[str]:
    """The sentence of a build that would end with more rejects than it may have."""
    known = sum(found["images"] for found in summary["rejects"].values())
    of_sample = sum(found["images"] for found in summary["sample_rejects"].values())
    others, sample = images - known, summary["sample"]
    allowed = math.floor(max_fraction * images + 1e-9)
    # Only a sample was encoded: refuse if its rejects are too many to be chance.
    is_certain = known > allowed or (sample >= others and known + of_sample > allowed)
    left = (allowed - known) / max(1, others)
    if not is_certain and (not of_sample or _chance(of_sample, sample, left) > _MAX_CHANCE):
        return
    number = known + (of_sample if sample >= others else round(others * of_sample / max(1, sample)))
    every = sum_rejects([summary["rejects"], summary["sample_rejects"]])
    example = next(iter(every.values()))
    yield (
        f"--max_reject_fraction {max_fraction:g} allows {allowed:,} of "
        f"{counted(images, 'image')} to be "
        f"rejected, but about {number:,} would be ({', '.join(every)}), for example "
        f"{example['uri']!r} ({example['message']}); fix or remove them or raise the fraction."
    )


def _chance(found: int, sample: int, fraction: float) -> float:
    """How likely at least so many of a sample are rejected if this fraction of all is."""
    below = (
        math.comb(sample, k) * fraction**k * (1 - fraction) ** (sample - k) for k in range(found)
    )
    return 1 - sum(below)
