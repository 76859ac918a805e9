"""What stands beside the shards: manifest, TFDS metadata, transform, quarantine, report."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

from beam_pipeline.columns import transforms as columns
from beam_pipeline.columns.label_export import await_export
from beam_pipeline.commit import quarantine, tfds_metadata
from beam_pipeline.planning import plan
from beam_pipeline.shards.record import BYTES_EDGES, SIZE_EDGES_PX, merge_stats
from imageshards import storage
from imageshards.errors import UserError
from imageshards.manifest import FORMAT_VERSION, RECORD_FEATURES, write_whole
from imageshards.storage import run_concurrently

if TYPE_CHECKING:
    from beam_pipeline.commit.outcome import Outcome
    from beam_pipeline.commit.transforms import CommitSpec

TRANSFORM = "transform"
QUARANTINE = "quarantine"
REPORT = "report"


def manifest_of(
    shards: list[dict[str, Any]],
    layout: plan.Layout,
    outcome: Outcome,
    skipped: dict[str, int],
    spec: CommitSpec,
) -> dict[str, Any]:
    """The manifest of a data set whose shards are in place.

    Raises:
        UserError: The exported label vocabulary is not that of the plan.
    """
    transform = storage.join(spec.write.staging, TRANSFORM)
    classes = list(layout.classes)
    await_export()
    exported, features = run_concurrently(
        lambda: columns.exported_classes(transform), lambda: columns.exported_features(transform)
    )
    if exported != classes:
        raise UserError(
            f"--input gave the classes {classes[:5]} when it was planned and {exported[:5]} when "
            "its columns were analysed: it changed while it was read; give the same command again."
        )
    splits: dict[str, Any] = {}
    for split in sorted(layout.num_shards):
        of_split = [dict(shard) for shard in shards if shard["split"] == split]
        of_split.sort(key=lambda shard: shard["file"])
        for shard in of_split:
            del shard["split"]
        splits[split] = {
            "num_records": sum(shard["num_records"] for shard in of_split),
            "shards": of_split,
        }
    stats_by_split = outcome.stats
    stats = merge_stats(stats_by_split.values())
    train = [name for name in stats_by_split if name in ("train", "training")]
    pixels = merge_stats(stats_by_split[name] for name in train) if train else stats
    mean, std = pixels.mean_and_std()
    manifest: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "splits": splits,
        "classes": classes,
        "shard_by": spec.shard_by,
        "compression": spec.compression,
        "features": {**RECORD_FEATURES, **features},
        "image": {**spec.image, "mean": mean, "std": std},
        "listed": layout.num_images,
        "rejects": quarantine.reasons(outcome.rejects),
        "skipped": dict(sorted(skipped.items())),
        "source": {"formats": _by_count(stats.formats), "notes": _by_count(stats.notes)},
        "histograms": {
            "source_width_px": {"edges": SIZE_EDGES_PX, "counts": stats.source_width_px},
            "source_height_px": {"edges": SIZE_EDGES_PX, "counts": stats.source_height_px},
            "record_bytes": {"edges": BYTES_EDGES, "counts": stats.record_bytes},
        },
    }
    of_bytes = {**manifest, "versions": spec.versions}
    text = json.dumps(of_bytes, sort_keys=True).encode()
    manifest["fingerprint"] = hashlib.sha256(text).hexdigest()
    return manifest | {"options": spec.options, "versions": spec.versions}


def _by_count(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def publish(manifest: dict[str, Any], spec: CommitSpec) -> None:
    """Puts everything but the manifest beside the shards, in place of what was there.

    A step that was interrupted may be done again.
    """
    staging, output = spec.write.staging, spec.output
    files = tfds_metadata.tfds_files(manifest, "image_shards")
    run_concurrently(
        lambda: _replace_folder(storage.join(staging, TRANSFORM), storage.join(output, TRANSFORM)),
        lambda: _publish_quarantine(staging, output, bool(manifest["rejects"])),
        lambda: _remove_folder(storage.join(output, REPORT)),
        *(functools.partial(write_whole, storage.join(output, n), t) for n, t in files.items()),
    )
    if spec.report:
        from beam_pipeline.report.page import write_report

        write_report(output, manifest)


def _publish_quarantine(staging: str, output: str, wanted: bool) -> None:
    if wanted:
        staged = storage.join(staging, QUARANTINE)
        listed = storage.join(staging, quarantine.LIST_NAME)
        storage.copy(listed, storage.join(staged, quarantine.LIST_NAME))
        _replace_folder(staged, storage.join(output, QUARANTINE))
    else:
        _remove_folder(storage.join(output, QUARANTINE))


def _replace_folder(source: str, target: str) -> None:
    """Puts a staged folder into its final place; on a store it stays staged as well."""
    if storage.is_local(source):
        if os.path.isdir(source):
            _remove_folder(target)
            os.replace(source, target)
        return
    _remove_folder(target)
    storage.copy_folder(source, target)


def _remove_folder(folder: str) -> None:
    if storage.is_local(folder):
        shutil.rmtree(folder, ignore_errors=True)  # a link to one, for example, stays
    else:
        storage.delete_folder(folder)
