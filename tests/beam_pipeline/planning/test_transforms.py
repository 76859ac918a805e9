"""The plan's steps one after the other, as Beam runs them, without a runner."""

import collections
import dataclasses
import random
from collections import Counter

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.inputs.transforms import BatchRefs
from beam_pipeline.options import ImageOptions, PlanOptions, ShardOptions, UrlOptions
from beam_pipeline.planning import plan as plan_module
from beam_pipeline.planning import strata
from beam_pipeline.planning import transforms as planning
from beam_pipeline.planning.plan import RECORD_OVERHEAD_BYTES, bucket_ranks, make_plan
from beam_pipeline.planning.refs import ORDER, ImageRef, KeyHasher, RefBatch, ShardUnit, label_kind
from beam_pipeline.planning.strata import BatchByKeyFn, sort_by_hash
from beam_pipeline.planning.transforms import AssignSplits, PlanShards
from tests.support.builds import jpeg
from tests.support.errors import refused
from tests.support.listings import batches_of

COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(5, 60), min_size=1)


def refs_of(counts: dict[str, int], split: str | None = None) -> list[ImageRef]:
    labels = [(label, i) for label, count in counts.items() for i in range(count)]
    return [ImageRef(f"{label}/{i}.jpg", f"/in/{i}.jpg", label, split) for label, i in labels]


def run(batches: list[RefBatch], options: PlanOptions, seed: int = 0) -> list[ShardUnit]:
    """`PlanShards`, by hand; groups arrive in an order of their own, as on any runner."""
    shuffle = random.Random(seed).shuffle
    batches = [planning.assign_splits(batch, options) for batch in batches]
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    kinds: collections.Counter[tuple[str, str]] = collections.Counter()
    for batch in batches:
        counts.update(planning.count_labels(batch, None))
        kinds.update((str(ref.split), label_kind(ref.label)) for ref in batch.refs)
    plan = make_plan(counts, options, 1000.0, kinds)
    buckets = collections.defaultdict(list)
    for batch in batches:
        for key, ref in planning.key_by_bucket(batch, plan, options.salt):
            buckets[key].append(RefBatch([ref]))
    for shuffled in buckets.values():
        shuffle(shuffled)
    in_order = {key: sort_by_hash(refs, options.salt) for key, refs in buckets.items()}
    ordered = [(key, RefBatch(refs)) for key, refs in in_order.items()]
    ranks = bucket_ranks({key: len(batch) for key, batch in ordered})
    shards = collections.defaultdict(list)
    shuffle(ordered)
    for bucket in ordered:
        for shard, ref in planning.assign_to_shards(bucket, plan, ranks):
            shards[shard].append(RefBatch([ref]))
    units = [planning.make_unit(found, plan, options) for found in shards.items()]
    return sorted(units, key=lambda unit: unit.name)


@settings(max_examples=40, deadline=None)
@given(COUNTS, st.integers(1, 5), st.integers(1, 40), st.integers(0, 9))
def test_every_image_is_in_one_shard_in_any_order(counts, num_shards, batch_size, seed):
    options = PlanOptions(splits={"train": 1.0}, num_shards={"*": num_shards}, allow_one_class=True)
    refs = refs_of(counts)
    units = run(batches_of(refs, batch_size), options, seed)
    found = [ref for unit in units for ref in unit.refs]
    assert sorted(found) == sorted(ref._replace(split="train") for ref in refs)
    sizes = [len(unit.refs) for unit in units]
    assert max(sizes) - min(sizes) <= 1
    random.Random(seed).shuffle(refs)
    assert run(batches_of(refs, batch_size + 1), options, seed + 1) == units


@pytest.mark.parametrize("bucket_size", [1, 40])
def test_large_classes_ranked_in_buckets_give_the_same_plan(monkeypatch, bucket_size):
    options = PlanOptions(num_shards={"*": 3})
    batches = batches_of(refs_of({"a": 150, "b": 61}), 16)
    expected = run(batches, options)
    monkeypatch.setattr(plan_module, "MIN_BUCKET_SIZE", bucket_size)
    assert run(batches, options, seed=1) == expected


def test_records_inside_a_shard_are_in_the_order_of_their_hashes():
    options = PlanOptions(splits={"train": 1.0}, num_shards={"*": 2})
    hasher = KeyHasher(options.salt, ORDER)
    refs = batches_of(refs_of({"a": 50, "b": 50}), 9)
    units = run(refs, options)
    for unit in units:
        hashes = [hasher(ref.key) for ref in unit.refs]
        assert hashes == sorted(hashes)
        assert len({ref.label for ref in unit.refs[:20]}) == 2
    assert run(refs, dataclasses.replace(options, salt="other")) != units


def test_a_given_split_stays_and_a_group_keeps_together():
    splits = ["test", *[None] * 9] * 21
    refs = [ImageRef(f"k{i}", "u", "a", s, f"person {i % 7}") for i, s in enumerate(splits)]
    options = PlanOptions(splits={"x": 0.5, "y": 0.5})
    found = planning.assign_splits(RefBatch(refs), options).refs
    # More images move none of these.
    assert planning.assign_splits(RefBatch(refs[50:60]), options).refs == found[50:60]
    drawn = collections.defaultdict(set)
    assert all(ref.split == "test" for ref in found[::10])
    for ref, split in zip(found, splits, strict=True):
        if split is None:
            drawn[ref.group].add(ref.split)
    assert all(len(splits) == 1 for splits in drawn.values())
    assert set.union(*drawn.values()) == {"x", "y"}


@given(st.integers(0, 200), st.integers(1, 50))
def test_a_sample_does_not_depend_on_batches(images, batch_size):
    refs = refs_of({"a": images})
    whole = planning.sample_of([RefBatch(refs)], "s").refs
    parts = [planning.sample_of([batch], "s") for batch in batches_of(refs[::-1], batch_size)]
    assert planning.sample_of(parts, "s").refs == whole
    assert len(whole) == min(images, planning.SAMPLE_SIZE)


@pytest.mark.process
def test_mean_record_bytes_passes_over_what_cannot_be_read_or_decoded(tmp_path):
    (tmp_path / "good.jpg").write_bytes(jpeg(1))
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    refs = [ImageRef(n, str(tmp_path / n), "a") for n in ("good.jpg", "bad.jpg", "none.jpg")]
    options = ImageOptions(height_px=16, width_px=16)
    kinds = collections.Counter({("train", "one"): 3})

    def mean_of(found, plan_options=PlanOptions()):  # noqa: B008
        survey = planning.Survey(collections.Counter(), kinds, RefBatch(found))
        return planning.mean_record_bytes(survey, plan_options, options, UrlOptions())

    assert mean_of(refs) == mean_of(refs[:1]) > 500
    assert mean_of(refs[1:]) == RECORD_OVERHEAD_BYTES
    assert mean_of(refs, PlanOptions(num_shards={"train": 2})) == 0  # nobody asks
    assert mean_of(refs, PlanOptions(num_shards={"*": 2})) == 0


def test_an_image_without_a_split_is_refused():
    with refused("", "'a/0.jpg'", "PlanShards", "AssignSplits"):
        planning.count_labels(RefBatch(refs_of({"a": 1})), None)


def test_the_transforms_compose_in_a_users_own_pipeline():
    refs = refs_of({"a": 40, "b": 23})
    options = PlanOptions(num_shards={"train": 3, "validation": 2})
    given = ShardOptions(plan=options)

    def check(units: list[ShardUnit]) -> None:
        assert sorted(units, key=lambda unit: unit.name) == run([RefBatch(refs)], options)

    with beam.Pipeline(FnApiRunner()) as pipeline:
        own = pipeline | beam.Create(refs[::-1])
        planned = own | BatchRefs() | AssignSplits(given) | PlanShards(given)
        assert_that(planned.units, check)


@given(st.text("abcd", max_size=60), st.integers(1, 20))
def test_batches_by_key_hold_every_reference_once_within_the_limit(labels, limit):
    fn = BatchByKeyFn(lambda batch: ((ref.label, ref) for ref in batch.refs))
    refs = [ImageRef(str(i), "u", label) for i, label in enumerate(labels)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strata, "MAX_HELD_REFS", limit)
        fn.start_bundle()
        sent: list[tuple[str, RefBatch]] = []
        for batch in batches_of(refs, 3):
            sent += fn.process(batch)
            assert sum(map(len, fn._batches.values())) < limit
        sent += [windowed.value for windowed in fn.finish_bundle()]
    assert all(ref.label == key for key, batch in sent for ref in batch.refs)
    assert len(sent) == len(set(labels)) or len(labels) >= limit
    found = sorted(int(ref.key) for _, batch in sent for ref in batch.refs)
    assert found == list(range(len(labels)))


@pytest.mark.parametrize("labels", [[None], [(), ("a",), ("a", "b", "a")]], ids=["none", "several"])
def test_shards_of_images_without_one_label_differ_by_one_record(labels, monkeypatch):
    monkeypatch.setattr("beam_pipeline.planning.plan.MIN_BUCKET_SIZE", 5)
    refs = [ImageRef(f"{i}.jpg", f"{i}.jpg", labels[i % len(labels)]) for i in range(101)]
    units = run(batches_of(refs, 7), PlanOptions(num_shards={"*": 4}))
    for split in ("train", "validation"):
        sizes = [len(unit.refs) for unit in units if unit.split == split]
        assert len(sizes) == 4 and max(sizes) - min(sizes) <= 1
    assert {ref.key for unit in units for ref in unit.refs} == {ref.key for ref in refs}
    names = {n for label in labels for n in label or ()}
    assert all(unit.class_ids.keys() <= names for unit in units)
    again = run(batches_of(refs[::-1], 11), PlanOptions(num_shards={"*": 4}), seed=1)
    assert {u.name: u.refs for u in again} == {u.name: u.refs for u in units}


def test_a_build_ends_only_where_all_images_are_missing(tmp_path):
    kinds = Counter({("train", "one"): 1})
    surveys = [
        planning.Survey(Counter(), kinds, RefBatch([]), bool(name), name and f"{tmp_path}/{name}")
        for name in ("c.jpg", "b.jpg", "")
    ]
    planning.check_some_exist(planning.merge_surveys(surveys, ""))
    with refused("input", "2 images", "b.jpg", "relative to"):
        planning.check_some_exist(planning.merge_surveys(surveys[:2], ""))


SURVEYED = {("train", "a"): 600, ("train", "b"): 400}
RESUMED = PlanOptions(splits={"train": 1.0}, shard_mb=0.1)


def shards_of(path, mean_bytes, counts=SURVEYED, options=RESUMED, **image):
    kinds = Counter({("train", "one"): sum(counts.values())})
    survey = planning.Survey(Counter(counts), kinds, RefBatch([]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "mean_record_bytes", lambda *args: mean_bytes)
        plan = planning.plan_of(survey, options, ImageOptions(**image), UrlOptions(), str(path))
    return plan.num_shards["train"]


def test_the_numbers_of_shards_of_an_earlier_run_are_used_for_the_same_survey_only(tmp_path):
    path = tmp_path / "plan.json"
    assert shards_of(path, 5000.0) == 50
    assert shards_of(path, 4000.0) == 50
    assert shards_of(path, 4000.0, {**SURVEYED, ("train", "a"): 850}) == 50  # 1,250 images now
    assert shards_of(path, 4000.0) == 40
    smaller = dataclasses.replace(RESUMED, shard_mb=0.05)
    assert shards_of(path, 4000.0, options=smaller) == 80
    assert shards_of(path, 6000.0, options=smaller, quality=50) == 120


@pytest.mark.parametrize("text", ["", "{", "[]", '{"survey": "x", "num_shards": {"train": 0}}'])
def test_a_damaged_file_is_replaced(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert shards_of(path, 5000.0) == 50
    assert shards_of(path, 4000.0) == 50
