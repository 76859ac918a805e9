"""Commits a dataset: checks the shards, writes the files beside them, and the manifest last."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from beam_pipeline.columns.export import exported_classes, exported_features
from beam_pipeline.commit.descriptions import croissant_text, tfds_files
from beam_pipeline.commit.finalize import FinalizeTask, FinalShard, plan_finalize
from beam_pipeline.commit.staging import mark_committed, set_aside
from beam_pipeline.commit.warnings import BETWEEN_SPLITS, counts_and_names, of_notes, warnings_of
from beam_pipeline.metrics import count
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import ShardOptions
from beam_pipeline.planning.plan import ShardPlan
from beam_pipeline.planning.refs import HOW_PATHS_ARE_READ, why_missing
from beam_pipeline.shards.places import ShardPlaces
from beam_pipeline.shards.result import (
    ShardResult,
    ShardStats,
    merge_stats,
    most_first,
    output_error,
    read_result,
)
from imageshards import storage
from imageshards.deduplication.search import count_copies
from imageshards.errors import UserError
from imageshards.manifest import (
    COMPANION_NAMES,
    CROISSANT_NAME,
    DATASET_FOLDERS,
    INDEX_NAME,
    NONE,
    ONE,
    QUARANTINE_NAME,
    REJECTS_NAME,
    SHARD_NAME,
    TRAIN_NAMES,
    TRANSFORM_NAME,
    FeatureSpec,
    File,
    Input,
    Manifest,
    Shard,
    Source,
    Split,
    record_features,
)
from imageshards.manifest.file import FORMAT_VERSION, Reject, fingerprint_of, publish_manifest
from imageshards.progress import note_activity
from imageshards.reporting.sections import class_counts
from imageshards.storage import map_concurrently, run_concurrently
from imageshards.text import counted, printable, printable_in
from imageshards.typed import decode


@dataclasses.dataclass
class WriteSummary:
    shards: list[ShardResult] = dataclasses.field(default_factory=list)  # without details
    stats: dict[str, ShardStats] = dataclasses.field(default_factory=dict)  # by split
    reused_images: int = 0  # images in shards that an earlier run had finished

    @property
    def rejects(self) -> dict[str, int]:
        """Reason → rejected images, the most frequent reason first."""
        return merge_stats(self.stats.values()).of("rejects")


def add_up(summaries: Iterable[WriteSummary]) -> WriteSummary:
    total = WriteSummary()
    for summary in summaries:
        total.shards += summary.shards
        for split, stats in summary.stats.items():
            total.stats[split] = merge_stats([total.stats.get(split, ShardStats()), stats])
        total.reused_images += summary.reused_images
    return total


def without_shards(summary: WriteSummary) -> WriteSummary:
    """Returns the totals alone, whose size does not depend on the number of shards."""
    return dataclasses.replace(summary, shards=[])


def write_list(rejects: Iterable[Reject], folder: str) -> str:
    """Writes one line of JSON for each reject into a file in `folder`; returns the path."""
    path = storage.join(folder, REJECTS_NAME)
    with storage.open_write(path) as lines:
        for reject in rejects:
            fields = msgspec.structs.asdict(reject)
            lines.write((json.dumps(fields, ensure_ascii=False) + "\n").encode())
    return path


def check_budget(counts: Mapping[str, int], listed: int, max_fraction: float, where: str) -> None:
    """Raises `UserError`, with an example from the list `where`, if too many were rejected."""
    allowed = math.floor(max_fraction * listed + 1e-9)  # 0.29 * 100 is a little below 29
    if max_fraction and listed > 1:
        allowed = max(1, allowed)  # 1 % of 50 images would allow none
    rejected = sum(counts.values())
    if rejected <= allowed:
        return
    table = ", ".join(f"{reason} {count}" for reason, count in most_first(counts).items())
    remedy = "fix or remove them or raise the fraction"
    usual = next(iter(most_first(counts)))
    with storage.open_read(where) as lines:
        rejects = (decode(line, Reject) for line in lines)
        example = next(reject for reject in rejects if reject.reason == usual)
    shown = f"{example.key!r} ({example.message.rstrip('.')})"
    if usual == "not_found":  # the paths of a table may have been read in the wrong way
        shown, remedy = why_missing(example.uri), f"{remedy}; {HOW_PATHS_ARE_READ}"
    raise invalid(
        "max_reject_fraction",
        f"{max_fraction:g}, which allows {allowed} of {counted(listed, 'image')} to be "
        f"rejected, but {rejected} were ({table}), such as {shown}",
        remedy=f"see {where}, {remedy}, then give the same command again: finished shards are kept "
        "and nothing was committed",
    )


@dataclasses.dataclass(frozen=True)
class CommitSpec:
    """Settings of the commit of a dataset.

    Attributes:
        places: Paths of the shards.
        write: Options by which the shards were planned and written.
        max_reject_fraction: Largest fraction of images that may be rejected.
        report: Whether the commit writes `report/`.
        options, versions: Entries of the manifest.
        inputs: (path, fingerprint of a dataset or None) of each input.
        warnings: Sentences for the manifest that were known before the images were listed.
        asks_splits: Whether the user gave the splits of `write.plan`, which may then deserve a
            warning if the input gives other ones.
    """

    places: ShardPlaces
    write: ShardOptions
    max_reject_fraction: float = 0.01
    report: bool = True
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    inputs: tuple[tuple[str, str | None], ...] = ()
    warnings: tuple[str, ...] = ()
    asks_splits: bool = True


def begin_commit(
    summary: WriteSummary, plan: ShardPlan, spec: CommitSpec, *complete: Any
) -> list[FinalizeTask]:
    """Checks that no image was lost, plans the moves of records, and sets the old dataset aside.

    Beam may run this step again, even after shards have moved to their final places. `complete` are
    side inputs that must be complete before, for example the exported transform. Raises `UserError`
    if more images were rejected than allowed, and `RuntimeError` if the runner lost work.
    """
    spec.places.check_job()
    note_activity("committing", 0, "shard")
    if lacking := next((shard.name for shard in summary.shards if not shard.index), ""):
        raise UserError(
            f"CommitShards received the shard {lacking!r} without an index; expected "
            "PlanShards(options, features=columns.features), with those of AnalyseColumns."
        )
    shards, rejects, listed = summary.shards, summary.rejects, plan.num_images
    rejected = sum(rejects.values())
    accepted = sum(shard.num_records for shard in shards)
    planned = sum(plan.num_shards.values())
    if accepted + rejected != listed or len(shards) != planned:
        raise RuntimeError(
            f"{accepted} records and {rejected} rejects in {len(shards)} shards do not add "
            f"up to {listed} images in {planned} shards: the runner lost work; nothing was "
            "committed"
        )
    try:
        # The list of rejects is written before the budget is checked: the error names the file.
        names = sorted(shard.name for shard in shards if shard.num_rejects)
        results = map_concurrently(lambda name: read_result(name, spec.places), names)
        found = (reject for result in results for reject in result.rejects)
        where = write_list(found, spec.places.staging)
        check_budget(rejects, listed, spec.max_reject_fraction, where)
        tasks = plan_finalize(shards)
        # Until here the old dataset is untouched, so that a failed check costs nothing.
        set_aside(spec.places.output, spec.places.staging)
    except OSError as e:
        raise output_error(spec.places.output, e) from e
    return tasks


def finish_commit(
    plan: ShardPlan,
    entries: Iterable[FinalShard],
    summary: WriteSummary,
    skipped: Iterable[dict[str, int]],
    spec: CommitSpec,
) -> str:
    """Writes the files beside the shards, then the manifest; returns the dataset's fingerprint.

    Beam may run this step again, or twice at the same time. The manifest is written last, so that a
    reader who finds a manifest finds the whole dataset, with its report. `entries` are results of
    `finalize_shard`, `skipped` as `Listed.skipped`. Raises `RuntimeError` if records were lost or
    doubled since the shards were written.
    """
    spec.places.check_job()
    shards = list(entries)
    check_totals(shards, summary, plan.label)
    sizes_bytes = [final.shard.num_bytes for final in shards]
    count("commit", items=sum(final.shard.num_records for final in shards), bytes=sum(sizes_bytes))
    try:
        manifest = manifest_of(shards, plan, summary, skipped, spec)
        copies, between_splits = count_copies(spec.places.output, manifest)
        manifest = msgspec.structs.replace(
            manifest,
            copies={"copies": copies, BETWEEN_SPLITS: between_splits},
            warnings=[*manifest.warnings, *of_notes({BETWEEN_SPLITS: between_splits})],
        )
        manifest = write_companions(manifest, shards, spec)
        if spec.report:
            note_activity("drawing the report")
            from imageshards.reporting.page import try_report

            try_report(spec.places.output, manifest)
        spec.places.check_job()
        # A later run finds the manifest and this mark, and knows that the dataset is its own work.
        mark_committed(spec.places.staging, manifest.fingerprint, summary.reused_images)
        publish_manifest(spec.places.output, manifest)
    except OSError as e:
        raise output_error(spec.places.output, e) from e
    return manifest.fingerprint


def check_totals(shards: Iterable[FinalShard], summary: WriteSummary, label: str = ONE) -> None:
    """Raises `RuntimeError` if records of a split or class were lost or doubled by moves."""
    records, classes = collections.Counter[str](), collections.Counter[str]()
    for split, shard, _ in shards:
        records[split] += shard.num_records
        classes.update(shard.classes)
    written = {split: stats.total("formats") for split, stats in summary.stats.items()}
    # Only with one label an image do the counts of classes add up to the records.
    is_lost = label == ONE and classes.total() != records.total()
    if is_lost or records != collections.Counter(written):
        raise RuntimeError(
            f"the shards to be committed hold {dict(records)} records, {classes.total()} of their "
            f"classes, but {written} were written; nothing was committed"
        )


def manifest_of(
    shards: list[FinalShard],
    plan: ShardPlan,
    summary: WriteSummary,
    skipped: Iterable[dict[str, int]],
    spec: CommitSpec,
) -> Manifest:
    """Returns the manifest of a dataset whose shards are in place, without its `files`."""
    features = _analysed_features(plan, storage.join(spec.places.staging, TRANSFORM_NAME))
    passed_over, names = counts_and_names(skipped)
    splits = _splits_of(shards, plan)
    stats = merge_stats(summary.stats.values())
    # A list with a single NaN is counted as well, but only a scalar can be missing.
    missing = {
        name: count
        for name, count in stats.of("missing").items()
        if name in features and features[name].shape == ()
    }
    # A model may be normalised only by pixels of its training split.
    train = [stats for split, stats in summary.stats.items() if split in TRAIN_NAMES]
    mean, std = merge_stats(train or [stats]).mean_and_std()
    image = spec.write.image.to_manifest()
    records = stats.of("sources")
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        splits=splits,
        classes=list(plan.classes),
        features={**record_features(plan.label), **features},
        image=msgspec.structs.replace(image, mean=tuple(mean), std=tuple(std)),
        listed=plan.num_images,
        rejects=summary.rejects,
        skipped=passed_over,
        source=Source(stats.of("formats"), stats.of("notes"), missing),
        fingerprint="",
        inputs=[
            Input(printable_in(path), fingerprint, records.get(str(number), 0))
            for number, (path, fingerprint) in enumerate(spec.inputs)
        ],
        options=printable_in(spec.options),
        versions=printable_in(spec.versions),
    )
    counts = {name: split.num_records for name, split in splits.items()}
    splits_asked = tuple(spec.write.plan.splits)
    warnings = warnings_of(class_counts(manifest), counts, splits_asked, names, spec.asks_splits)
    warnings += of_notes(stats.of("notes"))
    return msgspec.structs.replace(
        manifest,
        fingerprint=fingerprint_of(manifest),
        warnings=printable_in([*spec.warnings, *warnings]),
    )


def _analysed_features(plan: ShardPlan, transform: str) -> dict[str, FeatureSpec]:
    """Returns the features of an exported transform; refuses one with other classes."""
    classes = list(plan.classes)
    exported = [] if plan.label == NONE else exported_classes(transform)
    if exported != classes:
        raise invalid(
            "input",
            f"the classes {classes[:5]} when it was planned and {exported[:5]} when its columns "
            "were analysed, so it changed while it was read",
            remedy="give the same command again",
        )
    return exported_features(transform)


def _splits_of(shards: Iterable[FinalShard], plan: ShardPlan) -> dict[str, Split]:
    found: dict[str, list[Shard]] = {name: [] for name in sorted(plan.num_shards)}
    for final in sorted(shards, key=lambda final: final.shard.file):
        found[final.split].append(final.shard)
    return {name: Split(sum(s.num_records for s in some), some) for name, some in found.items()}


def write_companions(
    manifest: Manifest, shards: Iterable[FinalShard], spec: CommitSpec
) -> Manifest:
    """Writes the files beside the shards, removes old ones; returns the manifest with `files`."""
    output, staging = spec.places.output, spec.places.staging
    files = tfds_files(manifest)
    files[CROISSANT_NAME] = croissant_text(manifest, printable(storage.name_of(output)))
    rejected = {name: entry for one in shards for name, entry in one.rejected.items()}
    transform = (storage.join(folder, TRANSFORM_NAME) for folder in (staging, output))
    linked = [f"{TRANSFORM_NAME}/{name}" for name in storage.link_folder(*transform)]
    if rejected:
        linked.append(f"{QUARANTINE_NAME}/{REJECTS_NAME}")
        storage.link(storage.join(staging, REJECTS_NAME), storage.join(output, linked[-1]))
    # Rejected originals may be large; their hashes are known from the time of writing.
    read = map_concurrently(lambda name: storage.sha256_of(storage.join(output, name)), linked)
    recorded = rejected | {n: File(*sums) for n, sums in zip(linked, read, strict=True)}
    for name, text in files.items():
        data = text.encode()
        recorded[name] = File(len(data), hashlib.sha256(data).hexdigest())
    beside = [*rejected, *linked]
    kept = {name for _, shard in manifest.shards() for name in (shard.file, shard.index.file)}
    # With a store each of these is a request, so they are sent at the same time.
    run_concurrently(
        lambda: _remove_others(output, kept.union(beside, files)),
        *(functools.partial(storage.write, storage.join(output, n), t) for n, t in files.items()),
    )
    if storage.is_local(output):
        # The files of the index are synced; the folder with their names is not.
        folder = storage.join(output, INDEX_NAME)
        folders = [output, *([folder] if os.path.isdir(folder) else [])]
        storage.sync(*(storage.join(output, name) for name in beside), *folders)
    return msgspec.structs.replace(manifest, files=dict(sorted(recorded.items())))


def _remove_others(output: str, kept: set[str]) -> None:
    """Deletes everything else that an earlier dataset may have consisted of."""
    left = []
    for entry in storage.list_folder(output):
        if entry.is_folder and entry.name in DATASET_FOLDERS:
            # Another attempt at this step may have written the manifest by now, so a folder in use
            # must never be gone as a whole.
            if any(name.startswith(f"{entry.name}/") for name in kept):
                left += [file.path for file in storage.files_below(entry.path)]
            else:
                # A link to a folder cannot be deleted, and stays.
                with contextlib.suppress(OSError):
                    storage.delete_folder(entry.path)
        elif SHARD_NAME.fullmatch(entry.name) or entry.name in COMPANION_NAMES:
            left.append(entry.path)
    paths = {storage.join(output, name) for name in kept}
    storage.delete(path for path in left if path not in paths)
