"""Which split, which rank, which shard: pure arithmetic on keys and counts.

Nothing here reads a file, and neither Beam nor TensorFlow is imported. Images of a split are
ranked by (class, salted hash of the key), and shard = rank mod number of shards: so every shard
holds the same number of records ±1, and of each class ±1. Images with several labels, or none, are
ranked by the hash alone. Inside a shard records are ordered by another hash.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence

from beam_pipeline.options import MAX_SHARDS, PlanOptions, is_split_name
from beam_pipeline.planning.classes import ClassOrder
from beam_pipeline.planning.refs import SPLIT, KeyHasher
from imageshards.errors import Arg, UserError, install_advice
from imageshards.manifest import NONE, ONE, SEVERAL
from imageshards.text import counted

# A class with more images than this, and than a shard has, is ranked in several buckets.
MIN_BUCKET_SIZE = 10_000
# tf.train.Example and TFRecord framing around the encoded picture, roughly.
RECORD_OVERHEAD_BYTES = 400

# Shards of a split unless --num_shards says otherwise: enough that a reader can interleave 16
# files and that processes write side by side, as long as each still holds this many records.
MIN_SHARDS = 16
MIN_RECORDS_PER_SHARD = 32

SplitClass = tuple[str, int]
# Where images have several labels, or none, all of a split are ranked as if they were of one class.
WHOLE_SPLIT = 0


class SplitAssigner:
    """Draws a split by the hash of a key or group: more images never move an old one."""

    def __init__(self, splits: Mapping[str, float], salt: str):
        self._hash = KeyHasher(salt, SPLIT)
        self._names = list(splits)
        self._bounds: list[float] = []
        total = 0.0
        for fraction in splits.values():
            total += fraction
            self._bounds.append(total)

    def __call__(self, key_or_group: str) -> str:
        point = int.from_bytes(self._hash(key_or_group)[:8], "big") / 2.0**64
        index = bisect.bisect_right(self._bounds, point)  # of the first bound above the point
        return self._names[min(index, len(self._names) - 1)]


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """Which image goes to which shard, for all images: its size is splits x classes.

    Attributes:
        classes: Class names by id.
        counts: (split, class id) → images that are ranked together; of images with several labels,
            or none, the id is `WHOLE_SPLIT`.
        num_shards: Split → shards.
        first_ranks: (split, class id) → rank, within the split, of its first image.
        label: How many labels images have: `ONE`, `NONE` or `SEVERAL`.
        counts_by_label: (split, label) → images that have it.
    """

    classes: tuple[str, ...]
    counts: Mapping[SplitClass, int]
    num_shards: Mapping[str, int]
    first_ranks: Mapping[SplitClass, int]
    label: str = ONE
    counts_by_label: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)

    @property
    def num_images(self) -> int:
        """Images of all splits."""
        return sum(self.counts.values())

    @functools.cached_property
    def images(self) -> collections.Counter[str]:
        """Split → images."""
        images = collections.Counter[str]()
        for (split, _), count in self.counts.items():
            images[split] += count
        return images

    def images_per_shard(self, split: str) -> tuple[int, int]:
        """Images of the smallest and of the largest shard of a split."""
        images, shards = self.images[split], self.num_shards[split]
        return images // shards, -(-images // shards)

    @functools.cached_property
    def class_ids(self) -> dict[str, int]:
        """Class name → id."""
        return {name: i for i, name in enumerate(self.classes)}

    @functools.cached_property
    def bucket_sizes(self) -> dict[str, int]:
        """Split → references that are ranked together, at most: about those of one shard.

        So nothing that is grouped is larger than a unit of work, and there are never more
        buckets than shards and classes, however many images they hold.
        """
        return {
            split: max(MIN_BUCKET_SIZE, self.images_per_shard(split)[1])
            for split in self.num_shards
        }

    def num_buckets(self, split: str, class_id: int) -> int:
        """In how many buckets of hashes a class is ranked."""
        return -(-self.counts[split, class_id] // self.bucket_sizes[split])


def bucket_of(order_hash: bytes, num_buckets: int) -> int:
    """Bucket of a hash: ranges, so that buckets in order are hashes in order."""
    return int.from_bytes(order_hash[:4], "big") * num_buckets >> 32


def bucket_ranks(sizes: Mapping[tuple[str, int, int], int]) -> dict[tuple[str, int, int], int]:
    """(split, class id, bucket) → rank, within the class, of the bucket's first image."""
    ranks: dict[tuple[str, int, int], int] = {}
    totals = collections.Counter[tuple[str, int]]()
    for key in sorted(sizes):
        ranks[key] = totals[key[:2]]
        totals[key[:2]] += sizes[key]
    return ranks


def make_plan(
    counts_by_label: Mapping[tuple[str, str], int],
    options: PlanOptions,
    mean_record_bytes: float,
    kinds: Mapping[tuple[str, str], int] | None = None,
) -> ShardPlan:
    """Decides class ids, shards per split, and the shards of each class.

    Args:
        counts_by_label: (split, label) → images that have it.
        mean_record_bytes: Mean size of a record, for the target size of shards.
        kinds: (split, `label_kind`) → images; None where each has one label.

    Raises:
        UserError: No image, one class only, an unknown split in --num_shards, or fewer images
            than shards.
    """
    if kinds is None:
        kinds = {(split, ONE): n for (split, _), n in counts_by_label.items()}
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
    _check_splits(splits, options.num_shards)
    images = collections.Counter[str]()
    first_ranks: dict[SplitClass, int] = {}
    for (split, class_id), count in sorted(counts.items()):
        first_ranks[split, class_id] = images[split]
        images[split] += count
    num_shards = {s: _shards_for(s, images[s], options, mean_record_bytes) for s in splits}
    return ShardPlan(tuple(classes), counts, num_shards, first_ranks, label, dict(counts_by_label))


def _check_labels(labels: Collection[str], kinds: Collection[str], options: PlanOptions) -> str:
    """How many labels each image has, as `label_kind` tells it; checks that a plan can be made."""
    if not kinds:
        raise UserError(
            argument="input",
            received="no image",
            expected="files below it whose names end as "
            + Arg("extensions")
            + " says (.jpg, .png and others)",
            remedy=f"convert raw pictures first; for HEIC, {install_advice('heif')}",
        )
    if len(kinds) > 1:
        raise UserError(
            f"images with {' and '.join(sorted(kinds))} of labels reached PlanShards",
            expected="the same of all",
            remedy="give each ImageRef a text, each a tuple of texts, or each None",
        )
    (label,) = kinds
    if label == SEVERAL and not labels:
        raise UserError(
            argument="label",
            received="several, but no image of " + Arg("input") + " has a label",
            expected="lists of labels",
            remedy="name their column by " + Arg("label_column") + ", or say " + Arg("label", NONE),
        )
    if label == ONE and len(labels) == 1 and not options.allow_one_class:
        raise UserError(
            argument="input",
            received=f"one class only, {min(labels)!r}",
            expected="at least two (ROOT/<class>/*.jpg, or a "
            + Arg("label_regex")
            + " that captures the class)",
            remedy="pass " + Arg("allow_one_class", True) + " if one class is meant",
        )
    return label


def _check_splits(splits: Sequence[str], num_shards: Mapping[str, int]) -> None:
    for split in splits:
        if not is_split_name(split):
            raise UserError(
                argument="input",
                received=f"images of the split {split!r}",
                expected="letters, digits and underscores, as the name becomes part of file names",
                remedy="rename it",
            )
    for split in sorted(set(num_shards) - {*splits, "*"}):
        raise UserError(
            argument="num_shards",
            received=f"the split {split!r}",
            expected=f"a split of this input, one of {', '.join(splits)}",
        )


def _shards_for(split: str, images: int, options: PlanOptions, mean_record_bytes: float) -> int:
    wanted = options.num_shards.get(split, options.num_shards.get("*"))
    if wanted is None:
        least = min(MIN_SHARDS, images // MIN_RECORDS_PER_SHARD)
        by_size = round(images * mean_record_bytes / (options.shard_mb * 1e6))
        wanted = min(images, max(1, by_size, least))
    if wanted > images:
        raise UserError(
            argument="num_shards",
            received=f"{wanted} for split {split!r}, which has {counted(images, 'image')}",
            expected="at most one shard per image",
            remedy="ask for fewer shards or change " + Arg("splits"),
        )
    if wanted > MAX_SHARDS:
        raise UserError(
            argument="shard_mb",
            received=f"{options.shard_mb:g}, which makes {counted(wanted, 'shard')} of split "
            f"{split!r}",
            expected=f"at most {MAX_SHARDS}",
            remedy="ask for larger shards",
        )
    return wanted
