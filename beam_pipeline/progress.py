"""Reports the progress of a build, and sums up the finished dataset."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from imageshards.index import IS_ORIGINAL
from imageshards.manifest import NONE, OBJECT_PREFIX, ONE, RECORD_NAMES, SEVERAL, Manifest
from imageshards.manifest.file import keeps_jpegs
from imageshards.progress import activity_line, rate_line
from imageshards.reporting.sections import class_counts, split_table
from imageshards.text import counted, for_output, shortened, wrapped

if TYPE_CHECKING:
    from beam_pipeline.images.process_pool import LocalPool

# If there are more classes, the summary names only the largest and the smallest.
_MAX_SHOWN_CLASSES = 20
# A plan counts the different texts of a column up to this number.
MOST_VALUES = 1000
_TYPES = {"int64": "int", "float32": "float", "string": "text"}


def pool_line(pool: LocalPool) -> Callable[[], str]:
    """Returns a function that says how far the processes of this machine are.

    `1,200/1,399 images  380 images/s  9.1 MB/s  0 rejects  ETA 00:01`; before and after the images
    are written, the line names the step.
    """
    begun: float | None = None

    def line() -> str:
        nonlocal begun
        images, size_bytes, rejects, before = pool.progress()
        if not pool.total or images >= pool.total:
            return activity_line()
        details = [counted(rejects, "reject")]
        seconds = 0.0
        if images > before:
            # The rate counts from the first image, so that the start of processes is left out.
            now = time.monotonic()
            begun = begun or now
            seconds = now - begun
        if seconds > 0:
            details.insert(0, f"{size_bytes / 1e6 / seconds:.1f} MB/s")
        return rate_line(images, pool.total, "images", seconds, before, *details)

    return line


@dataclasses.dataclass(frozen=True, repr=False)
class BuildSummary:
    """Summary of a build: `ims.build` returns the summary, and `imageshards build` prints its text.

    Attributes:
        output: Folder of the dataset, on this machine or in a store.
        text: Tables and sentences, as the command prints them.
        manifest: The manifest of the dataset; None if the build wrote nothing (`plan_only`).
    """

    output: str
    text: str
    manifest: Manifest | None

    @property
    def splits(self) -> dict[str, int]:
        """Name of each split → its number of records."""
        splits = self.manifest.splits if self.manifest else {}
        return {name: split.num_records for name, split in splits.items()}

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of the labels."""
        return tuple(self.manifest.classes if self.manifest else ())

    @property
    def rejects(self) -> dict[str, int]:
        """Reason → number of images that were rejected for this reason."""
        return dict(self.manifest.rejects if self.manifest else {})

    def __repr__(self) -> str:
        return self.text


def final_table(manifest: Manifest, seconds: float, reused: int) -> str:
    lines = [split_table(manifest), class_line(class_counts(manifest), manifest.label)]
    extra = [(n, f.dtype, f.shape) for n, f in manifest.features.items() if n not in RECORD_NAMES]
    lines += column_lines(extra, manifest.source.missing)
    listed = manifest.listed
    rejects, skipped = manifest.rejects, manifest.skipped
    rejected = f"{sum(rejects.values()):,} rejected" + reasons(rejects)
    lines.append(for_output(f"{counted(listed, 'image')} listed, {rejected}"))
    if keeps_jpegs(manifest):
        kept = manifest.source.notes.get(IS_ORIGINAL, 0)
        encoded = manifest.num_records - kept
        lines.append(f"{kept:,} pictures copied byte for byte, {encoded:,} encoded")
    if skipped:
        files = counted(sum(skipped.values()), "file")
        lines.append(for_output(f"{files} skipped{reasons(skipped)}"))
    if reused:
        lines.append(f"{reused:,} images were finished by an earlier run")
    # Images of an earlier run cost no time now, so they must not raise the rate.
    rate = f", {(listed - reused) / seconds:,.0f} images/s" if listed > reused else ""
    lines.append(f"{seconds:.1f} s{rate}, start-up included")
    lines += [for_output(f"warning: {warning}") for warning in manifest.warnings]
    return "\n".join(lines)


def class_line(counts: Mapping[str, Mapping[str, int]], label: str = ONE) -> str:
    """Returns the classes with their numbers of images, or only the extremes of many classes."""
    if label == NONE:
        return "images without labels"
    classes = collections.Counter[str]()
    for of_split in counts.values():
        classes.update(of_split)
    several = ", several an image" if label == SEVERAL else ""
    text = f"{counted(len(classes), 'class')}{several}: "
    if len(classes) <= _MAX_SHOWN_CLASSES:
        named = [f"{shortened(name, 40)} {count:,}" for name, count in classes.items()]
        return wrapped(text + ", ".join(named))
    if min(classes.values()) == max(classes.values()):
        return f"{text}{min(classes.values()):,} in each"
    (largest, most), *_, (smallest, fewest) = classes.most_common()
    return wrapped(f"{text}largest {largest} {most:,}, smallest {smallest} {fewest:,}")


def column_lines(
    columns: Sequence[tuple[str, str, tuple[int, ...] | None]],
    missing: Mapping[str, int],
    values: Mapping[str, int] | None = None,
) -> list[str]:
    """Returns a line with the extra columns and their types: `columns: price float, 3 missing`.

    `columns` are (name, type, shape), `values` is column → different texts. Boxes are one word.
    """
    named = []
    for name, kind, shape in columns:
        if name.startswith(OBJECT_PREFIX):
            continue
        size = "" if shape == () else f"[{shape[0] if shape else ''}]"
        text = f"{shortened(name, 40)} {_TYPES.get(kind, kind)}{size}"
        if count := missing.get(name):
            text += f", {count:,} missing"
        if count := (values or {}).get(name):
            text += f", {counted(count, 'value')}" if count < MOST_VALUES else ", many values"
        named.append(text)
    if any(name.startswith(OBJECT_PREFIX) for name, *_ in columns):
        named.append("boxes")
    more = [f"{len(named) - _MAX_SHOWN_CLASSES:,} more"] if len(named) > _MAX_SHOWN_CLASSES else []
    shown = "; ".join(named[:_MAX_SHOWN_CLASSES] + more)
    return [wrapped(f"columns: {shown}")] if named else []


def reasons(counts: Mapping[str, int]) -> str:
    """Returns counts as ` (hidden 2, empty 1)`; an empty text without any."""
    named = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
    return f" ({named})" if named else ""
