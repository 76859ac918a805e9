"""Progress of a build, and tables of what was built or would be."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from imageshards.progress import activity_line, rate_line, text_table
from imageshards.report.sections import class_counts, split_table
from imageshards.text import counted, for_output, shortened, wrapped

if TYPE_CHECKING:
    from beam_pipeline.images.process_pool import LocalPool

# What a terminal shows until there are shards to count.
PLANNING = "listing and planning ..."
_MAX_SHOWN_DAMAGED = 3
# Of more classes only the largest and the smallest are named.
_MAX_SHOWN_CLASSES = 20


class PoolProgress:
    """Progress of the processes of this machine."""

    def __init__(self, pool: LocalPool):
        self._pool = pool
        self._begun: float | None = None

    def line(self) -> str:
        """The progress line: of the images while they are written, of the step before or after."""
        images, size_bytes, rejects, before = self._pool.progress()
        if not self._pool.total or images >= self._pool.total:
            return activity_line()
        now = time.monotonic()
        if self._begun is None and images > before:
            self._begun = now
        seconds = now - (self._begun or now)
        return progress_line(images, self._pool.total, size_bytes, rejects, before, seconds)


def progress_line(
    images: int, total: int, size_bytes: int, rejects: int, before: int, seconds: float
) -> str:
    """`1,200/1,399 images  380 images/s  9.1 MB/s  0 rejects  ETA 00:01`.

    Args:
        images: Images done, those of earlier runs included.
        total: Images to do.
        size_bytes: Bytes of originals read.
        rejects: Images rejected.
        before: Images done by earlier runs.
        seconds: Since the first image.
    """
    details = [counted(rejects, "reject")]
    if seconds > 0 and images > before:
        details.insert(0, f"{size_bytes / 1e6 / seconds:.1f} MB/s")
    return rate_line(images, total, "images", seconds, before, *details)


def final_table(manifest: Mapping[str, Any], seconds: float, reused: int) -> str:
    """What was built: splits, shards, balance, bytes, classes, rejects, speed; and warnings."""
    lines = [split_table(manifest), class_line(_sum_classes(class_counts(manifest)))]
    listed = manifest["listed"]
    rejects = manifest["rejects"]
    rejected = f"{sum(rejects.values()):,} rejected" + _reasons(rejects)
    lines.append(for_output(f"{counted(listed, 'image')} listed, {rejected}"))
    if passed_over := manifest.get("skipped"):
        total = sum(passed_over.values())
        skipped = f"{counted(total, 'file')} passed over" + _reasons(passed_over)
        lines.append(for_output(skipped))
    lines += map(for_output, _damaged(manifest.get("damaged", {})))
    if reused:
        lines.append(f"{reused:,} images were finished by an earlier run")
    rate = f", {(listed - reused) / seconds:,.0f} images/s" if listed > reused else ""
    lines.append(f"{seconds:.1f} s{rate} with start-up")
    lines += warning_lines(manifest.get("warnings", ()))
    return "\n".join(lines)


def _damaged(found: Mapping[str, Any]) -> Iterator[str]:
    """The sentence about originals that libjpeg warns about."""
    if not found.get("num_images"):
        return
    shown = [f"{key!r} ({warning})" for key, warning in found["keys"].items()][:_MAX_SHOWN_DAMAGED]
    more = found["num_images"] - len(shown)
    yield (
        f"{found['num_images']:,} of {counted(found['num_checked'], 'JPEG')} damaged, but decoded: "
        f"{', '.join(shown)}{f' and {more:,} more' if more else ''}; --reject_damaged leaves them "
        "out"
    )


def _sum_classes(counts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Class → images of all splits, from split → class → images."""
    classes = collections.Counter[str]()
    for of_class in counts.values():
        classes.update(of_class)
    return dict(classes)


def class_line(classes: Mapping[str, int]) -> str:
    """The classes and their images; of many classes the largest and the smallest."""
    text = f"{counted(len(classes), 'class')}: "
    if len(classes) <= _MAX_SHOWN_CLASSES:
        named = [f"{shortened(name, 40)} {count:,}" for name, count in classes.items()]
        return wrapped(text + ", ".join(named))
    if min(classes.values()) == max(classes.values()):
        return f"{text}{min(classes.values()):,} in each"
    largest = max(classes, key=lambda name: classes[name])
    smallest = min(classes, key=lambda name: classes[name])
    return wrapped(
        f"{text}largest {largest} {classes[largest]:,}, smallest {smallest} {classes[smallest]:,}"
    )


def warning_lines(warnings: Iterable[str]) -> list[str]:
    """Warnings as lines of their own."""
    return [for_output(f"warning: {warning}") for warning in warnings]


def _reasons(counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    return " (" + ", ".join(f"{reason} {count:,}" for reason, count in counts.items()) + ")"


def plan_table(summary: Mapping[str, Any]) -> str:
    """What --plan_only found."""
    rows = [
        [split, *(f"{found[key]:,}" for key in ("shards", "images", "min", "max"))]
        for split, found in summary["splits"].items()
    ]
    header = ["split", "shards", "images", "min/shard", "max/shard"]
    lines = [text_table(header, rows), class_line(_sum_classes(summary["counts"]))]
    if summary["skipped"]:
        lines.append(for_output("files passed over" + _reasons(summary["skipped"])))
    if summary["rejects"]:
        known = ", ".join(
            f"{reason} {found['images']:,} such as {found['uri']!r} ({found['message']})"
            for reason, found in summary["rejects"].items()
        )
        lines.append(for_output(f"rejected already when listed: {known}"))
    lines += warning_lines(summary["warnings"])
    lines.append("nothing was written")
    return "\n".join(lines)
