"""Assigns images to splits, ranks and shards, by arithmetic on keys and counts.

This module reads no file and imports neither Beam nor TensorFlow. The images of a split are ranked
by class and by a salted hash of their keys. The shard of an image is its rank modulo the number of
shards. So the shards of a split differ by at most one record, and by at most one record of each
class. Images with several labels, or without a label, are ranked by the hash alone. A second hash
orders the records in a shard.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from beam_pipeline.option_texts import invalid
from beam_pipeline.plan_options import PlanOptions, is_split_name
from beam_pipeline.planning.refs import SPLIT, ClassOrder, KeyHasher
from imageshards.bounds import MAX_CLASSES, MAX_SHARDS
from imageshards.errors import Arg, UserError, install_advice
from imageshards.manifest import NONE, ONE, SEVERAL
from imageshards.manifest.file import find_split
from imageshards.text import counted

# A file in the staging folder with the numbers of shards, which a resumed build uses again.
PLAN_NAME = "plan.json"

# A class is ranked in several buckets if it has more images than this and than a shard.
MIN_BUCKET_SIZE = 10_000
# Rough size of a record without its encoded picture: tf.train.Example and TFRecord framing.
RECORD_OVERHEAD_BYTES = 400

# Without --num_shards, a split gets at least MIN_SHARDS shards, so that a reader can interleave 16
# files and processes write in parallel. A small split gets fewer, to fill each shard.
MIN_SHARDS = 16
MIN_RECORDS_PER_SHARD = 32

SplitClass = tuple[str, int]
# Images with several labels, or none, are ranked as if their split had a single class of this id.
WHOLE_SPLIT = 0


def cumulated(splits: Mapping[str, float]) -> list[float]:
    """Returns for each split the fraction of the images in it and in the splits before it."""
    return list(itertools.accumulate(splits.values()))


class SplitAssigner:
    """Hash function from a key or group to a split. Added images never move an old image."""

    def __init__(self, splits: Mapping[str, float], salt: str):
        self._hash = KeyHasher(salt, SPLIT)
        self._names = list(splits)
        self._bounds = cumulated(splits)

    def __call__(self, key_or_group: str) -> str:
        point = int.from_bytes(self._hash(key_or_group)[:8], "big") / 2.0**64
        index = bisect.bisect_right(self._bounds, point)
        # The sum of the fractions may be slightly below 1, and the point above that sum.
        return self._names[min(index, len(self._names) - 1)]


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """Assignment of all images to shards; its size is splits times classes."""

    classes: tuple[str, ...]  # class names by id
    # Images that are ranked together, with `WHOLE_SPLIT` where they have several labels or none.
    counts: Mapping[SplitClass, int]
    num_shards: Mapping[str, int]  # split → shards
    first_ranks: Mapping[SplitClass, int]  # rank of the first image within the split
    label: str = ONE  # how many labels images have: `ONE`, `NONE` or `SEVERAL`
    # (split, label) → images that have the label
    counts_by_label: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)

    @property
    def num_images(self) -> int:
        return sum(self.counts.values())

    @functools.cached_property
    def images(self) -> collections.Counter[str]:
        images = collections.Counter[str]()
        for (split, _), count in self.counts.items():
            images[split] += count
        return images

    def images_per_shard(self, split: str) -> tuple[int, int]:
        """Returns how many images the smallest and the largest shard of a split have."""
        images, shards = self.images[split], self.num_shards[split]
        return images // shards, -(-images // shards)

    @functools.cached_property
    def class_ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.classes)}

    def num_buckets(self, split: str, class_id: int) -> int:
        """Returns in how many buckets of hashes a class is ranked."""
        # No group is larger than a unit of work, and however many images there are, there are at
        # most as many buckets as shards and classes.
        size = max(MIN_BUCKET_SIZE, self.images_per_shard(split)[1])
        return -(-self.counts[split, class_id] // size)


def bucket_ranks(sizes: Mapping[tuple[str, Any, int], int]) -> dict[tuple[str, Any, int], int]:
    """Returns (split, class, bucket) → rank of the bucket's first image within the class."""
    ranks: dict[tuple[str, Any, int], int] = {}
    totals = collections.Counter[tuple[str, Any]]()
    for key in sorted(sizes):
        ranks[key] = totals[key[:2]]
        totals[key[:2]] += sizes[key]
    return ranks


def make_plan(
    counts_by_label: Mapping[tuple[str, str], int],
    options: PlanOptions,
    mean_record_bytes: float,
    kinds: Mapping[tuple[str, str], int],
) -> ShardPlan:
    """Decides the class ids, the number of shards of each split, and the rank of each class.

    `counts_by_label` is (split, label) → images that have the label. `kinds` is (split,
    `label_kind`) → images. Raises `UserError` if there is no
    image, only one class, an unknown split in --num_shards, or a split with fewer images than
    shards.
    """
    labels = {name for _, name in counts_by_label}
    label = _check_labels(labels, {kind for _, kind in kinds}, options)
    pinned = () if label == NONE else options.pinned_classes
    classes = ClassOrder(options.class_names, pinned).names(labels)
    ids = {name: i for i, name in enumerate(classes)}
    if label == ONE:
        counts = {(s, ids[name]): n for (s, name), n in counts_by_label.items() if n}
    else:
        counts = {(s, WHOLE_SPLIT): n for (s, _), n in kinds.items()}
    splits = sorted({split for split, _ in counts})
    given = _shards_given(splits, options.num_shards)
    images = collections.Counter[str]()
    first_ranks: dict[SplitClass, int] = {}
    for (split, class_id), count in sorted(counts.items()):
        first_ranks[split, class_id] = images[split]
        images[split] += count
    num_shards = {s: _shards_for(s, images[s], given, options, mean_record_bytes) for s in splits}
    return ShardPlan(tuple(classes), counts, num_shards, first_ranks, label, dict(counts_by_label))


def _check_labels(labels: Collection[str], kinds: Collection[str], options: PlanOptions) -> str:
    """Checks that images have classes to learn; returns how many labels each image has."""
    if not kinds:
        names = "files below it whose names end as " + Arg("extensions")
        raise invalid(
            "input",
            "no image",
            names + " says (.jpg, .png and others), or rows of a table with a class but -1",
            f"convert raw pictures first; for HEIC, {install_advice('heif')}",
        )
    if len(kinds) > 1:
        raise UserError(
            f"images with {' and '.join(sorted(kinds))} of labels reached PlanShards",
            expected="the same of all",
            remedy="give each ImageRef a text, each a tuple of texts, or each None",
        )
    (label,) = kinds
    if label == SEVERAL and not labels:
        raise invalid(
            "label",
            "several, but no image of " + Arg("input") + " has a label",
            "lists of labels",
            "name their column by " + Arg("label_column") + ", or say " + Arg("label", NONE),
        )
    if len(labels) > MAX_CLASSES:
        received = f"images of {len(labels):,} classes, such as {min(labels)!r}"
        raise invalid("input", received, f"at most {MAX_CLASSES:,}", "check the labels")
    if label == ONE and len(labels) == 1 and not options.allow_one_class:
        received = f"one class only, {min(labels)!r}"
        expected = "at least two (ROOT/<class>/*.jpg, or a " + Arg("label_regex")
        expected += " that captures the class)"
        remedy = "pass " + Arg("allow_one_class", True) + " if one class is meant"
        raise invalid("input", received, expected, remedy)
    return label


def _shards_given(splits: Sequence[str], num_shards: Mapping[str, int]) -> dict[str, int]:
    """Returns the shards of splits by their own names, of which --num_shards may say another."""
    for split in splits:
        if not is_split_name(split):
            expected = "letters, digits and underscores, as the name becomes part of file names"
            raise invalid("input", f"images of the split {split!r}", expected, "rename it")
    # `*` sets the number of all splits that --num_shards does not name.
    found: dict[str, int] = {}
    for name in sorted(num_shards):
        split = name if name == "*" else find_split(name, splits, "num_shards")
        if split in found:
            raise invalid("num_shards", f"{name!r} and another name of {split!r}", "one of them")
        found[split] = num_shards[name]
    return found


def _shards_for(
    split: str, images: int, given: Mapping[str, int], options: PlanOptions,
    mean_record_bytes: float,
) -> int:  # fmt: skip
    wanted = given.get(split, given.get("*"))
    if wanted is None:
        # A split of fewer images than MIN_RECORDS_PER_SHARD still gets one shard.
        least = min(MIN_SHARDS, images // MIN_RECORDS_PER_SHARD)
        by_size = round(images * mean_record_bytes / (options.shard_mb * 1e6))
        wanted = min(images, max(1, by_size, least))
    if wanted > images:
        received = f"{wanted} for split {split!r}, which has {counted(images, 'image')}"
        remedy = "ask for fewer shards or change " + Arg("splits")
        raise invalid("num_shards", received, "at most one shard per image", remedy)
    # Only --shard_mb can ask for more than that: --num_shards was checked when it was parsed.
    if wanted > MAX_SHARDS:
        raise invalid(
            "shard_mb",
            f"{options.shard_mb:g}, which makes {counted(wanted, 'shard')} of split {split!r}",
            f"at most {MAX_SHARDS}",
            "ask for larger shards",
        )
    return wanted
