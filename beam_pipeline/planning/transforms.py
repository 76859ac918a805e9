"""The plan, wired for Beam: from batches of references to one unit of work per shard.

Only references cross a shuffle, in lists. Nothing that is grouped is larger than a shard's
references (or 10,000), and the largest side input has a number for every shard and class,
however many images there are: docs/scale.md.
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam import pvalue

from beam_pipeline.images.encode import encode_image
from beam_pipeline.images.read import read_images
from beam_pipeline.options import ImageOptions, PlanOptions
from beam_pipeline.planning import plan
from beam_pipeline.planning.batching import GatherFn, SumCountsFn
from beam_pipeline.planning.refs import ImageRef, RefBatch, with_split
from beam_pipeline.planning.shard_unit import ShardUnit
from imageshards.errors import ImageError

# Enough for a mean within a few percent; encoding them takes well under a second.
SAMPLE_SIZE = 64

Bucket = tuple[str, int, int]
ShardKey = tuple[str, int]


def assign_splits(batch: RefBatch, options: PlanOptions) -> RefBatch:
    """Gives every reference without a split the one its group or key draws."""
    draw = plan.SplitAssigner(options.splits, options.salt)
    return RefBatch([r if r.split else with_split(r, draw(r.group or r.key)) for r in batch.refs])


def count_labels(batch: RefBatch) -> dict[tuple[str, str], int]:
    """(split, label) → images of one batch."""
    return collections.Counter((str(r.split), r.label) for r in batch.refs)


def merge_counts(counts: Iterable[dict[Any, int]]) -> dict[Any, int]:
    """Sum of dicts of counts."""
    total: collections.Counter[Any] = collections.Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def key_by_bucket(
    batch: RefBatch, layout: plan.Layout, salt: str
) -> Iterator[tuple[Bucket, ImageRef]]:
    """Keys references by (split, class id, bucket of the order hash)."""
    hasher = plan.KeyHasher(salt)
    known: dict[tuple[str, str], tuple[int, int]] = {}  # class id, buckets
    for ref in batch.refs:
        split, label = str(ref.split), ref.label
        found = known.get((split, label))
        if found is None:
            class_id = layout.class_ids[label]
            found = known[split, label] = class_id, layout.num_buckets(split, class_id)
        class_id, wanted = found
        bucket = plan.bucket_of(hasher(ref.key), wanted) if wanted > 1 else 0
        yield (split, class_id, bucket), ref


def sort_by_hash(
    batches: Iterable[RefBatch], salt: str, purpose: bytes = plan.DEAL
) -> list[ImageRef]:
    """References of some batches in the order of a hash, whatever order they came in."""
    hasher = plan.KeyHasher(salt, purpose)
    return sorted(
        (ref for batch in batches for ref in batch.refs), key=lambda r: (hasher(r.key), r.key)
    )


def deal(
    bucket: tuple[Bucket, RefBatch], layout: plan.Layout, ranks: dict[Bucket, int]
) -> Iterator[tuple[ShardKey, ImageRef]]:
    """Deals a sorted bucket to shards."""
    key, batch = bucket
    split, class_id, _ = key
    slot = layout.slots[split, class_id]
    for rank, ref in enumerate(batch.refs, start=ranks[key]):
        yield (split, slot.shard_of(rank)), ref


def make_unit(
    shard: tuple[ShardKey, Iterable[RefBatch]], layout: plan.Layout, options: PlanOptions
) -> ShardUnit:
    """The finished unit of work of one shard."""
    (split, index), batches = shard
    refs = sort_by_hash(batches, options.salt, plan.PLACE)
    labels = {ref.label for ref in refs}
    ids = {name: layout.class_ids[name] for name in sorted(labels)}
    group = next(iter(labels)) if options.shard_by == "class" else ""
    beam.metrics.Metrics.counter("plan", "images").inc(len(refs))
    return ShardUnit(split, index, layout.num_shards[split], group, ids, refs)


def sample_of(batches: Iterable[RefBatch], salt: str) -> RefBatch:
    """The `SAMPLE_SIZE` references with the smallest hashes: random, yet always the same."""
    hasher = plan.KeyHasher(salt)
    return RefBatch(
        heapq.nsmallest(
            SAMPLE_SIZE,
            (ref for batch in batches for ref in batch.refs),
            key=lambda r: (hasher(r.key), r.key),
        )
    )


def encoded_sizes(sample: RefBatch, options: ImageOptions) -> list[int]:
    """Bytes of a record, framing included, for every image of a sample that becomes one."""
    sizes = []
    for _, data in read_images(sample.refs, options.max_bytes):
        if isinstance(data, ImageError):
            continue
        try:
            size_bytes = len(encode_image(data, options).data)
        except ImageError:
            continue
        sizes.append(size_bytes + plan.RECORD_OVERHEAD_BYTES)
    return sizes


def mean_record_bytes(
    sample: RefBatch,
    counts: dict[tuple[str, str], int],
    plan_options: PlanOptions,
    options: ImageOptions,
) -> float:
    """Mean bytes of a record from encoding a sample; 0 if every split has its --num_shards."""
    if all(split in plan_options.num_shards for split, _ in counts):
        return 0.0
    sizes = encoded_sizes(sample, options) or [plan.RECORD_OVERHEAD_BYTES]
    return sum(sizes) / len(sizes)


class PlannedShards(NamedTuple):
    """What `PlanShards` returns.

    Attributes:
        units: `ShardUnit`s.
        layout: One `Layout`.
    """

    units: beam.PCollection
    layout: beam.PCollection


class SampleImages(beam.PTransform):
    """RefBatches → one RefBatch: the sample that sizes and times are estimated from."""

    def __init__(self, salt: str):
        super().__init__()
        self._salt = salt

    def expand(self, batches: beam.PCollection) -> beam.PCollection:
        salt = self._salt
        return (
            batches
            | "OfBatch" >> beam.Map(lambda batch: sample_of([batch], salt))
            | "OfAll" >> beam.CombineGlobally(lambda found: sample_of(found, salt))
        )


class PlanShards(beam.PTransform):
    """References with splits → one `ShardUnit` per shard.

    Args:
        options: Splits, shards and classes.
        image: How pictures are encoded.
        sample: A sample of the references, if one was drawn already.
    """

    def __init__(
        self,
        options: PlanOptions,
        image: ImageOptions,
        sample: beam.PCollection | None = None,
    ):
        super().__init__()
        self._options = options
        self._image = image
        self._sample = sample

    def expand(self, batches: beam.PCollection) -> PlannedShards:
        options, salt = self._options, self._options.salt
        counts = (
            batches
            | "CountLabels" >> beam.Map(count_labels)
            | "SumCounts" >> beam.CombineGlobally(SumCountsFn())
        )  # {(split, label): images}
        layout = counts | "MakeLayout" >> beam.Map(
            plan.make_layout, options, mean_record_bytes=self._mean_record_bytes(batches, counts)
        )  # Layout
        plan_side = pvalue.AsSingleton(layout)
        buckets = (
            batches
            | "KeyByBucket"
            >> beam.ParDo(GatherFn(key_by_bucket), plan_side, salt).with_output_types(
                tuple[tuple[str, int, int], RefBatch]
            )
            | "GroupBuckets" >> beam.GroupByKey()
            | "SortBuckets"
            >> beam.MapTuple(
                lambda key, found: (key, RefBatch(sort_by_hash(found, salt)))
            ).with_output_types(tuple[tuple[str, int, int], RefBatch])
        )  # (bucket, its refs in hash order)
        ranks = (
            buckets
            | "BucketSizes" >> beam.MapTuple(lambda key, batch: {key: len(batch)})
            | "SumSizes" >> beam.CombineGlobally(SumCountsFn())
            | "BucketRanks" >> beam.Map(plan.bucket_ranks)
        )  # {bucket: rank of its first image}
        units = (
            buckets
            | "Deal"
            >> beam.ParDo(GatherFn(deal), plan_side, pvalue.AsSingleton(ranks)).with_output_types(
                tuple[tuple[str, int], RefBatch]
            )
            | "GroupShards" >> beam.GroupByKey()
            | "MakeUnits" >> beam.Map(make_unit, plan_side, options)
            # Grouping may have left many of them to one worker.
            | "SpreadUnits" >> beam.Reshuffle()
        )  # ShardUnit
        return PlannedShards(units, layout)

    def _mean_record_bytes(
        self, batches: beam.PCollection, counts: beam.PCollection
    ) -> float | pvalue.AsSingleton:
        if "*" in self._options.num_shards:
            return 0.0
        sample = self._sample
        if sample is None:
            sample = batches | "Sample" >> SampleImages(self._options.salt)
        return pvalue.AsSingleton(
            sample
            | "EncodeSample"
            >> beam.Map(mean_record_bytes, pvalue.AsSingleton(counts), self._options, self._image)
        )
