"""Wires the plan for Beam: batches of references become one unit of work per shard.

Only lists of references cross a shuffle. No group is larger than the references of a shard (or
10,000). The largest side input has a number for every shard and class: docs/explanation/scale.md.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam import pvalue

from beam_pipeline.beam_files import StoreConfig
from beam_pipeline.images.process_pool import encoded_sizes
from beam_pipeline.metrics import count
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import ImageOptions, PlanOptions, ShardOptions, UrlOptions
from beam_pipeline.planning.plan import (
    RECORD_OVERHEAD_BYTES,
    WHOLE_SPLIT,
    ShardPlan,
    SplitAssigner,
    make_plan,
)
from beam_pipeline.planning.refs import (
    HOW_PATHS_ARE_READ,
    MISSING,
    ORDER,
    ImageRef,
    KeyHasher,
    RefBatch,
    ShardUnit,
    distinct_labels,
    label_kind,
    names_of,
    why_missing,
)
from beam_pipeline.planning.strata import (
    BatchByKeyFn,
    StratifySplits,
    bucket_of,
    rank_by_hash,
    sort_by_hash,
    unit_of,
)
from imageshards import storage
from imageshards.bounds import MAX_SHARDS
from imageshards.errors import UserError
from imageshards.manifest import ONE, FeatureSpec
from imageshards.progress import note_activity
from imageshards.text import counted
from imageshards.tfrecord import FRAME_BYTES
from imageshards.typed import decode


class _SavedPlan(msgspec.Struct, frozen=True):
    survey: str
    num_shards: dict[str, Annotated[int, msgspec.Meta(ge=1, le=MAX_SHARDS)]]


# Enough for a mean within a few percent. Encoding so many images takes well under a second.
SAMPLE_SIZE = 64

Bucket = tuple[str, int, int]
ShardKey = tuple[str, int]


def assign_splits(batch: RefBatch, options: PlanOptions) -> RefBatch:
    draw = SplitAssigner(options.splits, options.salt)
    return RefBatch([r if r.split else r._replace(split=draw(unit_of(r))) for r in batch.refs])


def count_labels(
    batch: RefBatch, class_names: Sequence[str] | None
) -> collections.Counter[tuple[str, str]]:
    """Returns (split, label) → images of one batch that have the label, after checks of both."""
    distinct_labels(batch, class_names)
    for ref in batch.refs:
        if ref.split is None:
            raise UserError(
                f"the image {ref.key!r} reached PlanShards without a split",
                expected="AssignSplits before it",
            )
    return collections.Counter(
        (str(r.split), name) for r in batch.refs for name in {*names_of(r.label)}
    )


def key_by_bucket(batch: RefBatch, plan: ShardPlan, salt: str) -> Iterator[tuple[Bucket, ImageRef]]:
    """Yields references, keyed by (split, class id, bucket of the order hash)."""
    hasher = KeyHasher(salt)
    known: dict[tuple[str, str], tuple[int, int]] = {}  # (split, label) → class id, buckets
    for ref in batch.refs:
        split, label = str(ref.split), ref.label if isinstance(ref.label, str) else ""
        found = known.get((split, label))
        if found is None:
            class_id = plan.class_ids[label] if plan.label == ONE else WHOLE_SPLIT
            found = known[split, label] = class_id, plan.num_buckets(split, class_id)
        class_id, wanted = found
        yield (split, class_id, bucket_of(hasher(ref.key), wanted)), ref


def assign_to_shards(
    bucket: tuple[Bucket, RefBatch], plan: ShardPlan, ranks: dict[Bucket, int]
) -> Iterator[tuple[ShardKey, ImageRef]]:
    """Yields the references of a sorted bucket, keyed by their shard."""
    key, batch = bucket
    split, class_id, _ = key
    first = plan.first_ranks[split, class_id] + ranks[key]
    for rank, ref in enumerate(batch.refs, start=first):
        yield (split, rank % plan.num_shards[split]), ref


def make_unit(
    shard: tuple[ShardKey, Iterable[RefBatch]],
    plan: ShardPlan,
    options: PlanOptions,
    features: dict[str, FeatureSpec] | None = None,
) -> ShardUnit:
    (split, index), batches = shard
    refs = sort_by_hash(batches, options.salt, ORDER)
    labels = {name for ref in refs for name in names_of(ref.label)}
    ids = {name: plan.class_ids[name] for name in sorted(labels)}
    count("plan", items=len(refs))
    return ShardUnit(split, index, plan.num_shards[split], ids, refs, features)


def sample_of(batches: Iterable[RefBatch], salt: str) -> RefBatch:
    """Returns the `SAMPLE_SIZE` references with the smallest hashes, a stable random sample."""
    return RefBatch(sort_by_hash(batches, salt)[:SAMPLE_SIZE])


class Survey(NamedTuple):
    """Counts that a plan needs to know about some images."""

    counts: collections.Counter[tuple[str, str]]  # (split, label) → images that have the label
    kinds: collections.Counter[tuple[str, str]]  # (split, `label_kind`) → images
    sample: RefBatch  # some of the images; empty if the plan needs no sample
    num_missing: int = 0  # images that were missing when they were listed
    missing: str = ""  # path of the first of them


def check_some_exist(survey: Survey) -> None:
    """Raises `UserError` if all images are missing, before a build begins its work."""
    if survey.num_missing and survey.num_missing == survey.kinds.total():
        received = f"{counted(survey.num_missing, 'image')}, and none of them was found, such as "
        received += why_missing(survey.missing)
        raise invalid("input", received, remedy=HOW_PATHS_ARE_READ)


def merge_surveys(surveys: Iterable[Survey], salt: str) -> Survey:
    found = list(surveys)
    counts, kinds = collections.Counter[tuple[str, str]](), collections.Counter[tuple[str, str]]()
    for survey in found:
        counts.update(survey.counts)
        kinds.update(survey.kinds)
    sample = sample_of([survey.sample for survey in found], salt)
    first = min((survey.missing for survey in found if survey.missing), default="")
    return Survey(counts, kinds, sample, sum(survey.num_missing for survey in found), first)


def mean_record_bytes(
    survey: Survey, plan_options: PlanOptions, options: ImageOptions, urls: UrlOptions
) -> float:
    """Returns the mean bytes of the records of a sample; 0 if every split has its --num_shards."""
    given = plan_options.num_shards
    if "*" in given or all(split in given for split, _ in survey.kinds):
        return 0.0
    files = [ref for ref in survey.sample.refs if not ref.is_record]
    # Records are copied, so their size is known. Files have to be encoded for it.
    sizes = [FRAME_BYTES + ref.size_bytes for ref in survey.sample.refs if ref.is_record]
    if files:
        encoded = encoded_sizes(RefBatch(files), options, urls)
        sizes += [RECORD_OVERHEAD_BYTES + size for size in encoded]
    return sum(sizes) / len(sizes) if sizes else float(RECORD_OVERHEAD_BYTES)


def plan_of(
    survey: Survey, options: PlanOptions, image: ImageOptions, urls: UrlOptions, saved: str = ""
) -> ShardPlan:
    """Returns the plan for the images of a survey, with the numbers of shards in the file `saved`.

    Raises `UserError` as `make_plan`, or if all images are missing.
    """
    counts, kinds = survey.counts, survey.kinds
    note_activity("planning", kinds.total(), "image")
    check_some_exist(survey)
    # Sampled images decide how many shards a split gets. If another run fails to read a sampled
    # image, another number of shards would make all finished shards worthless. A run with the same
    # survey and options therefore takes the saved numbers.
    surveyed = repr((sorted(counts.items()), sorted(kinds.items()), options, image))
    digest = hashlib.sha256(surveyed.encode("utf-8", "backslashreplace")).hexdigest()
    with contextlib.suppress(FileNotFoundError, ValueError):
        found = decode(storage.read(saved), _SavedPlan) if saved else None
        if found and found.survey == digest:
            options = dataclasses.replace(options, num_shards=found.num_shards)
            return make_plan(counts, options, 0.0, kinds)
    plan = make_plan(counts, options, mean_record_bytes(survey, options, image, urls), kinds)
    if saved:
        storage.write(saved, msgspec.json.encode(_SavedPlan(digest, dict(plan.num_shards))))
    return plan


def survey_and_plan(
    batches: beam.PCollection[RefBatch], given: ShardOptions, saved: str = ""
) -> beam.PCollection[ShardPlan]:
    """Turns `RefBatch`es with splits into one `ShardPlan`; args as for `PlanShards`."""
    options = given.plan
    salt, with_sample = options.salt, "*" not in options.num_shards
    stores = StoreConfig.of_pipeline(batches)

    def survey(batch: RefBatch) -> Survey:
        counts = count_labels(batch, options.class_names)
        kinds = collections.Counter((str(r.split), label_kind(r.label)) for r in batch.refs)
        sample = sample_of([batch] if with_sample else [], salt)
        missing = [ref.uri for ref in batch.refs if ref.mtime_ns == MISSING]
        return Survey(counts, kinds, sample, len(missing), min(missing, default=""))

    return (
        batches
        | "Survey" >> beam.Map(stores.step(survey, "plan"))
        | "MergeSurveys" >> beam.CombineGlobally(merge_surveys, salt)
        | "MakePlan"
        >> beam.Map(stores.step(plan_of, "plan"), options, given.image, given.urls, saved)
    )


class AssignSplits(beam.PTransform):
    """Transform that gives every reference of some `RefBatch`es a split.

    A split that the input gave stays. For the remaining images, a salted hash of the group or the
    key draws the split. Images that are added later change no existing split, unless splits are
    stratified.

        options = ShardOptions(plan=PlanOptions(splits={"train": 0.8, "validation": 0.2}))
        batches = listed.batches | AssignSplits(options)

    Args:
        options: Options with a `plan`, which has the fractions of the splits and the salt.
    """

    def __init__(self, options: ShardOptions = ShardOptions()):  # noqa: B008  # frozen
        super().__init__()
        self._options = options.plan

    def expand(self, batches: beam.PCollection[RefBatch]) -> beam.PCollection[RefBatch]:
        if self._options.stratify:
            return batches | "Stratify" >> StratifySplits(self._options)
        return batches | "AssignSplits" >> beam.Map(assign_splits, self._options)


class PlannedShards(NamedTuple):
    """Collections that `PlanShards` returns.

    Attributes:
        units: `ShardUnit`s, one per shard, as `WriteBalancedTFRecord` takes them.
        plan: One `ShardPlan`.
    """

    units: beam.PCollection[ShardUnit]
    plan: beam.PCollection[ShardPlan]


class PlanShards(beam.PTransform):
    """Transform from `RefBatch`es with splits to one `ShardUnit` per shard.

        options = ShardOptions(plan=PlanOptions(num_shards={"train": 64, "validation": 8}))
        planned = batches | AssignSplits(options) | PlanShards(options)
        files = planned.units | WriteBalancedTFRecord("out/set-", options)

    Args:
        options: How images become shards. Without `options.plan.num_shards`, the encoded size of
            some sampled images decides the number of shards.
        saved: A file for the numbers of shards, which the same build uses when it runs again.
        features: Features of `AnalyseColumns`, which add an index to each shard for `CommitShards`.

    Raises:
        UserError: While running: there is no image, only one class, an unknown label or split, a
            split with fewer images than shards, or an image without a split.
    """

    def __init__(
        self,
        options: ShardOptions = ShardOptions(),  # noqa: B008  # frozen
        *,
        saved: str = "",
        features: beam.PCollection[dict[str, FeatureSpec]] | None = None,
    ):
        super().__init__()
        self._features = () if features is None else (pvalue.AsSingleton(features),)
        self._given = options
        self._saved = saved and storage.place("saved", saved)

    def expand(self, batches: beam.PCollection[RefBatch]) -> PlannedShards:
        options, salt = self._given.plan, self._given.plan.salt
        # The plan is a side input: its size is splits times classes, however many images there are.
        plan = survey_and_plan(batches, self._given, self._saved)  # one ShardPlan
        plan_side = pvalue.AsSingleton(plan)
        keyed = beam.ParDo(BatchByKeyFn(key_by_bucket), plan_side, salt)
        buckets, ranks = rank_by_hash(batches, keyed, tuple[str, int, int], salt)
        units = (
            buckets
            | "AssignToShards"
            >> beam.ParDo(
                BatchByKeyFn(assign_to_shards), plan_side, pvalue.AsSingleton(ranks)
            ).with_output_types(tuple[tuple[str, int], RefBatch])
            | "GroupShards" >> beam.GroupByKey()
            | "MakeUnits" >> beam.Map(make_unit, plan_side, options, *self._features)
            # Grouping may have left many units to one worker.
            | "SpreadUnits" >> beam.Reshuffle()
        )  # ShardUnit, one per shard
        return PlannedShards(units, plan)
