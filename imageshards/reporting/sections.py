"""Computes the figures in the sections of the report from the manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from imageshards.index import IS_ORIGINAL
from imageshards.manifest import NONE, ONE, SEVERAL, Manifest, Split
from imageshards.page import Meter, Rows, number, share, size
from imageshards.progress import text_table

# With more classes the page shows only the largest and smallest; a list that the reader can open
# has the first `MAX_LISTED` classes.
MAX_CLASS_ROWS = 40
ENDS = 12
MAX_LISTED = 2000

CLASSES = {NONE: "images have no label", SEVERAL: "an image may have several"}
# Note about a decoded image → its description.
NOTES = {
    "exif_rotated": "turned upright as their EXIF orientation says",
    "not_jpeg": "of another format than JPEG, re-encoded",
    "cmyk": "CMYK, converted",
    "grey": "grey-scale",
    "palette": "with a palette, expanded",
    "alpha": "transparent, laid over the background",
    "sixteen_bit": "16 bits per channel, reduced to 8",
    "animated": "animated, first frame taken",
    "icc_converted": "of another colour space, converted to sRGB by their ICC profile",
    "icc_srgb": "with an ICC profile of sRGB",
    "icc_broken": "with an ICC profile that cannot be used, taken as sRGB",
    "icc_profile_dropped": "with an ICC colour profile, dropped",
    "progressive": "progressive JPEG",
    "enlarged": "smaller than the wanted size, enlarged",
    "boxes_dropped": "with boxes outside of the picture or without an area, dropped",
    "damaged": "JPEG without an end marker, no pixel missing",
    IS_ORIGINAL: "JPEG that needed no change, copied byte for byte",
}


def tiles(manifest: Manifest) -> list[tuple[str, str, str]]:
    """Returns the most important figures: (name, value, remark)."""
    records, shards = manifest.num_records, [shard for _, shard in manifest.shards()]
    size_bytes = sum(shard.num_bytes for shard in shards)
    rejected = sum(manifest.rejects.values())
    # Only a build with one label per image deals the classes evenly to the shards.
    is_even = manifest.label == ONE and manifest.adopted is None
    return [
        ("Images", number(records), f"of {number(manifest.listed)} listed"),
        ("Classes", number(len(manifest.classes)), CLASSES.get(manifest.label, "")),
        ("Splits", number(len(manifest.splits)), ", ".join(manifest.splits)),
        ("Shards", number(len(shards)), "same class mix in each" * is_even),
        ("Size", size(size_bytes), f"{size(size_bytes / records)} each" if records else ""),
        ("Rejected", number(rejected), share(rejected, manifest.listed)),
    ]


def splits(manifest: Manifest) -> Rows:
    """Returns rows of a split, its records, shards, extremes of records per shard, and sizes."""
    rows = []
    for name, split in manifest.splits.items():
        shards, records, least, most, size_bytes = _numbers_of(split)
        sizes = size(size_bytes), size(size_bytes / max(shards, 1))
        rows.append((name, *map(number, (records, shards, least, most)), *sizes))
    return rows


def split_table(manifest: Manifest) -> str:
    """Returns a table of the splits and their shards, for a terminal."""
    rows = []
    for name, split in manifest.splits.items():
        *numbers, size_bytes = _numbers_of(split)
        rows.append([name, *(f"{n:,}" for n in numbers), f"{size_bytes / 1e6:,.1f}"])
    return text_table(["split", "shards", "records", "min/shard", "max/shard", "MB"], rows)


def is_even(manifest: Manifest) -> bool:
    """Returns whether the shards of each split differ by at most one record."""
    numbers = map(_numbers_of, manifest.splits.values())
    return all(most - least <= 1 for _, _, least, most, _ in numbers)


def _numbers_of(split: Split) -> tuple[int, int, int, int, int]:
    """Returns shards, records, the fewest and the most records of a shard, and bytes."""
    counts = [shard.num_records for shard in split.shards] or [0]
    size_bytes = sum(shard.num_bytes for shard in split.shards)
    return len(split.shards), split.num_records, min(counts), max(counts), size_bytes


def classes(manifest: Manifest) -> dict[str, Any] | None:
    """Returns the records of each class, or the ends of a long list; None without classes."""
    counts = class_counts(manifest)
    sums = {name: sum(split.get(name, 0) for split in counts.values()) for name in manifest.classes}
    if not sums:
        return None
    found: dict[str, Any] = {
        "total": len(sums),
        "splits": list(counts),
        "largest": max(sums.values()),
        "smallest": min(sums.values()),
        "several": manifest.label == SEVERAL,
        "listed": [],
    }
    if len(sums) <= MAX_CLASS_ROWS:
        return found | {"tables": {"In label order.": _class_rows(list(sums), counts)}}
    # Python's sort is stable, so classes with equally many records keep their label order.
    ordered = sorted(sums, key=lambda name: -sums[name])
    return found | {
        "tables": {
            f"The {ENDS} largest classes.": _class_rows(ordered[:ENDS], counts),
            f"The {ENDS} smallest classes.": _class_rows(ordered[-ENDS:], counts),
        },
        "listed": [
            (name, *(number(of_class[name]) for of_class in counts.values()))
            for name in list(sums)[:MAX_LISTED]
        ],
    }


def class_counts(manifest: Manifest) -> dict[str, dict[str, int]]:
    """Returns split → class → records, with the classes in label order."""
    counts = {}
    for name, split in manifest.splits.items():
        counts[name] = dict.fromkeys(manifest.classes, 0)
        for shard in split.shards:
            for label, count in shard.classes.items():
                # A damaged manifest may count a class that it does not list.
                counts[name][label] = counts[name].get(label, 0) + count
    return counts


def _class_rows(names: Sequence[str], counts: Mapping[str, Mapping[str, int]]) -> Rows:
    # The longest bar of a split is that of its largest class.
    tops = {split: max(of_class.values(), default=0) for split, of_class in counts.items()}

    def meter(split: str, name: str) -> Meter:
        count = counts[split].get(name, 0)
        return Meter(count / tops[split] if tops[split] else 0.0, number(count))

    return [(name, *(meter(split, name) for split in counts)) for name in names]


def source(manifest: Manifest) -> dict[str, Any]:
    """Returns the formats, changes and missing values of the originals, and the skipped files."""
    records, found = manifest.num_records, manifest.source
    notes = {NOTES.get(c, c.replace("_", " ")): n for c, n in found.notes.items()}
    return {
        "formats": _with_shares(found.formats, records),
        "notes": _with_shares(notes, records),
        "missing": _with_shares(found.missing, records),
        "skipped": [
            (reason.replace("_", " "), number(count))
            for reason, count in manifest.skipped.items()
            if count
        ],
        "inputs": [
            (part.path, number(part.num_records), part.fingerprint or "not a dataset")
            for part in manifest.inputs
        ],
    }


def _with_shares(counts: Mapping[str, int], whole: int) -> Rows:
    return [(name, number(count), share(count, whole)) for name, count in counts.items()]


def values_as_text(values: Mapping[str, Any]) -> Rows:
    """Returns rows of names and values, as JSON or, for a string, without quotes."""
    return [
        (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in values.items()
    ]
