"""Ranks images by hashes within their classes: for exact samples, and splits with equal shares.

A stratum is the images of one class whose split the input gives, or does not give. An image with
several labels, or a group of images, belongs to the stratum of its rarest label.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.transforms.window import GlobalWindows

from beam_pipeline.beam_files import StoreConfig
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import PlanOptions
from beam_pipeline.planning.plan import MIN_BUCKET_SIZE, bucket_ranks, cumulated
from beam_pipeline.planning.refs import RANK, SAMPLE, SPLIT, ImageRef, KeyHasher, RefBatch, names_of

# A worker holds this many references, about 80 MB, before it sends its batches.
MAX_HELD_REFS = 200_000
# Reason of images that --sample or --limit leaves out.
NOT_SAMPLED = "not_sampled"

Stratum = tuple[str, str]  # split that the input gave, or ""; class, or "" without a label
Bucket = tuple[str, Any, int]
Side = Any  # one of Beam's side inputs
_BUCKET = tuple[str, str, int]


class BatchByKeyFn(beam.DoFn):
    """Function that batches the (key, reference) pairs of `keyed(element, *sides)` by key."""

    # Without batches, a thousand classes in a thousand shards would be a million elements of one
    # reference. The same holds for a thousand rows of a shuffled table.

    def __init__(self, keyed: Callable[..., Iterable[tuple[Any, ImageRef]]]):
        self._keyed = keyed

    def start_bundle(self) -> None:
        self._batches: dict[Any, list[ImageRef]] = collections.defaultdict(list)
        self._held = 0

    def process(self, element: Any, *sides: Any) -> Iterator[tuple[Any, RefBatch]]:
        for key, ref in self._keyed(element, *sides):
            self._batches[key].append(ref)
            self._held += 1
        if self._held >= MAX_HELD_REFS:
            yield from self._flush()

    def finish_bundle(self) -> Iterator[Any]:
        # Beam demands a window of elements that are emitted at the end of a bundle.
        yield from map(GlobalWindows.windowed_value, self._flush())

    def _flush(self) -> Iterator[tuple[Any, RefBatch]]:
        batches = self._batches
        self.start_bundle()
        yield from ((key, RefBatch(refs)) for key, refs in batches.items())


def unit_of(ref: ImageRef) -> str:
    """Returns the name that draws the split of an image: its group or its key."""
    return ref.group or ref.key


def sort_by_hash(
    batches: Iterable[RefBatch], salt: str, purpose: bytes = RANK, by_group: bool = False
) -> list[ImageRef]:
    hasher = KeyHasher(salt, purpose)

    def place(ref: ImageRef) -> tuple[bytes, str, str]:
        name = unit_of(ref) if by_group else ref.key
        return hasher(name), name, ref.key

    return sorted((ref for batch in batches for ref in batch.refs), key=place)


def rank_by_hash(
    batches: beam.PCollection[RefBatch],
    keyed: beam.PTransform,
    key_type: Any,
    salt: str,
    purpose: bytes = RANK,
    by_group: bool = False,
) -> tuple[beam.PCollection, beam.PCollection]:
    """Returns (bucket, `RefBatch` in the order of hashes), and {bucket: rank of its first image}.

    `keyed` is a `ParDo` of `BatchByKeyFn` that gives each image its bucket. The last item of a
    bucket is the number of a range of hashes. Ranks begin at 0 in each set of such ranges.
    """
    buckets = (
        batches
        | "KeyByBucket" >> keyed.with_output_types(tuple[key_type, RefBatch])
        | "GroupBuckets" >> beam.GroupByKey()
        | "SortBuckets"
        >> beam.MapTuple(
            lambda key, found: (key, RefBatch(sort_by_hash(found, salt, purpose, by_group)))
        ).with_output_types(tuple[key_type, RefBatch])
    )
    ranks = (
        buckets
        | "BucketSizes" >> beam.MapTuple(lambda key, batch: (key, len(batch)))
        | "SumSizes" >> beam.CombineGlobally(beam.combiners.ToDictCombineFn()).without_defaults()
        | "BucketRanks" >> beam.Map(bucket_ranks)
    )
    return buckets, ranks


def bucket_of(hashed: bytes, buckets: int) -> int:
    """Returns the number of a hash's range; the order of ranges is the order of the hashes."""
    return int.from_bytes(hashed[:4], "big") * buckets >> 32 if buckets > 1 else 0


def units_of(batch: RefBatch, by_group: bool) -> Iterator[Sequence[ImageRef]]:
    """Yields the images that stay together: each alone, or a batch with the images of a group."""
    if by_group and batch.refs and batch.refs[0].group:
        yield batch.refs
    else:
        yield from ([ref] for ref in batch.refs)


def stratum_of(unit: Sequence[ImageRef], labels: Mapping[str, int]) -> Stratum:
    """Returns the stratum of a unit; `labels` is label → images that have the label."""
    names = {name for ref in unit for name in names_of(ref.label)}
    return unit[0].split or "", min(names, key=lambda name: (labels[name], name), default="")


def count_strata(
    batch: RefBatch, labels: Mapping[str, int], by_group: bool
) -> collections.Counter[Stratum]:
    sizes = collections.Counter[Stratum]()
    for unit in units_of(batch, by_group):
        sizes[stratum_of(unit, labels)] += len(unit)
    return sizes


def key_by_stratum(
    batch: RefBatch,
    labels: Mapping[str, int],
    sizes: Mapping[Stratum, int],
    salt: str,
    purpose: bytes,
    by_group: bool,
) -> Iterator[tuple[Bucket, ImageRef]]:
    """Yields references, keyed by (given split, class, bucket of the hash)."""
    hasher = KeyHasher(salt, purpose)
    for unit in units_of(batch, by_group):
        stratum = stratum_of(unit, labels)
        hashed = hasher(unit_of(unit[0]) if by_group else unit[0].key)
        bucket = bucket_of(hashed, -(-sizes[stratum] // MIN_BUCKET_SIZE))
        yield from (((*stratum, bucket), ref) for ref in unit)


def quotas(
    sizes: Mapping[Stratum, int], sample: float | None, limit: int | None
) -> dict[Stratum, int]:
    """Returns how many images of each stratum stay: its share to one image, and the sum exactly."""
    total = sum(sizes.values())
    wanted = total if sample is None else max(1, round(sample * total))
    wanted = min(wanted, total if limit is None else limit)
    kept = {stratum: size * wanted // total for stratum, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda stratum: (-(sizes[stratum] * wanted % total), stratum))
    for stratum in by_remainder[: wanted - sum(kept.values())]:
        kept[stratum] += 1
    return kept


def keep_quota(
    bucket: tuple[Bucket, RefBatch],
    kept: Mapping[Stratum, int],
    ranks: Mapping[Bucket, int],
) -> Iterator[Any]:
    """Yields a batch of the images within the quota, and the number of the others as `skipped`."""
    (split, name, number), batch = bucket
    count = max(0, kept[split, name] - ranks[split, name, number])
    if refs := batch.refs[:count]:
        yield RefBatch(refs)
    if left_out := len(batch) - len(refs):
        yield pvalue.TaggedOutput("skipped", {NOT_SAMPLED: left_out})


def cut_stratum(
    bucket: tuple[Bucket, RefBatch],
    sizes: Mapping[Stratum, int],
    ranks: Mapping[Bucket, int],
    options: PlanOptions,
) -> RefBatch:
    """Returns a sorted bucket of a stratum with the splits of its images.

    Of n images, a split with the fraction f gets n·f, rounded up or down. A group goes where the
    cut through its images falls.
    """
    (split, name, number), batch = bucket
    ends = [fraction * sizes[split, name] for fraction in cumulated(options.splits)]
    # Another point for each class: 0.5 for all would put the only image of every class into the
    # same split.
    hashed = KeyHasher(options.salt, SPLIT)(f"class {name}")
    within = 1 - int.from_bytes(hashed[:6], "big") / 2.0**48
    found, rank = [], ranks[split, name, number]
    names = list(options.splits)
    for _, unit in itertools.groupby(batch.refs, unit_of):
        refs = list(unit)
        point = rank + within * len(refs)
        drawn = next((n for n, end in zip(names, ends, strict=True) if point <= end), names[-1])
        found += [ref._replace(split=drawn) for ref in refs]
        rank += len(refs)
    return RefBatch(found)


def check_drawn(sizes: collections.Counter[Stratum]) -> collections.Counter[Stratum]:
    """Raises `UserError` if no split is drawn, so --stratify changes nothing."""
    if not sizes:
        received = "images that all have a split, so none is drawn"
        raise invalid("stratify", received, "images without a split", "leave it out")
    return sizes


def _sum(counters: Iterable[Mapping[Any, int]]) -> collections.Counter[Any]:
    total = collections.Counter[Any]()
    for counter in counters:
        total.update(counter)
    return total


class _Strata:
    """Sizes of the strata of some batches, and the images of each in the order of their hashes."""

    def __init__(
        self, batches: beam.PCollection[RefBatch], salt: str, purpose: bytes, by_group: bool = False
    ):
        step = StoreConfig.of_pipeline(batches).step
        labels = batches | "CountLabels" >> beam.Map(
            lambda batch: collections.Counter(n for r in batch.refs for n in names_of(r.label))
        )
        labels_side = pvalue.AsSingleton(labels | "SumLabels" >> beam.CombineGlobally(_sum))
        self.sizes = (
            batches
            | "CountStrata" >> beam.Map(count_strata, labels_side, by_group)
            | "SumStrata" >> beam.CombineGlobally(_sum)
        )
        if by_group:
            self.sizes |= "CheckDrawn" >> beam.Map(step(check_drawn))
        sides = labels_side, pvalue.AsSingleton(self.sizes), salt, purpose, by_group
        keyed = beam.ParDo(BatchByKeyFn(key_by_stratum), *sides)
        self.buckets, ranks = rank_by_hash(batches, keyed, _BUCKET, salt, purpose, by_group)
        self.ranks = pvalue.AsSingleton(ranks, default_value={})


class SampleImages(beam.PTransform):
    """Transform that keeps a sample of some `RefBatch`es, drawn by a salted hash of the keys.

        kept = listed.batches | SampleImages(sample=0.1)
        kept.batches | AssignSplits(options)

    Each class, in each split that the input gives, keeps its share to one image.

    Args:
        sample: Fraction of the images that stays; None for all.
        limit: The most images that stay; None for any number.
        salt: Text that enters the hashes.
    """

    def __init__(
        self, sample: float | None = None, limit: int | None = None, salt: str = PlanOptions().salt
    ):
        super().__init__()
        self._wanted, self._salt = (sample, limit), salt

    def expand(self, batches: beam.PCollection[RefBatch]) -> Any:
        strata = _Strata(batches, self._salt, SAMPLE)
        kept = strata.sizes | "Quotas" >> beam.Map(quotas, *self._wanted)
        keep = beam.ParDo(keep_quota, pvalue.AsSingleton(kept), strata.ranks)
        return strata.buckets | "Keep" >> keep.with_outputs("skipped", main="batches")


class StratifySplits(beam.PTransform):
    """Transform that gives each image without a split one, with equal shares of classes."""

    def __init__(self, options: PlanOptions):
        super().__init__()
        self._options = options

    def expand(self, batches: beam.PCollection[RefBatch]) -> beam.PCollection[RefBatch]:
        given = batches | "Given" >> beam.FlatMap(_with, lambda ref: ref.split)
        single = batches | "Single" >> beam.FlatMap(_with, lambda ref: not (ref.split or ref.group))
        groups = (
            batches
            | "KeyByGroup" >> beam.FlatMap(_by_group).with_output_types(tuple[str, RefBatch])
            | "GroupImages" >> beam.GroupByKey()
            | "OneBatch"
            >> beam.MapTuple(lambda _, found: RefBatch([ref for b in found for ref in b.refs]))
        )  # RefBatch, one for each group
        drawn = (single, groups) | "Drawn" >> beam.Flatten()
        strata = _Strata(drawn, self._options.salt, SPLIT, by_group=True)
        cut = strata.buckets | "Cut" >> beam.Map(
            cut_stratum, pvalue.AsSingleton(strata.sizes), strata.ranks, self._options
        )
        return (given, cut) | "All" >> beam.Flatten()


def _with(batch: RefBatch, takes: Callable[[ImageRef], object]) -> Iterator[RefBatch]:
    if refs := [*filter(takes, batch.refs)]:
        yield RefBatch(refs)


def _by_group(batch: RefBatch) -> Iterator[tuple[str, RefBatch]]:
    found = collections.defaultdict(list)
    for ref in batch.refs:
        if ref.group and not ref.split:
            found[ref.group].append(ref)
    yield from ((group, RefBatch(refs)) for group, refs in found.items())
