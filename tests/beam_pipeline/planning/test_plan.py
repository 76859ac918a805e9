"""Splits, class order and shards: arithmetic, so tables and properties."""

import collections
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.options import PlanOptions
from beam_pipeline.planning import plan as planning
from beam_pipeline.planning.refs import (
    RANK,
    SPLIT,
    ClassOrder,
    ImageRef,
    KeyHasher,
    RefBatch,
    distinct_labels,
)
from tests.support.errors import refused

# {(split, label): images}
KEYS = st.tuples(st.sampled_from(["train", "validation", "test"]), st.sampled_from("abcdefg"))
COUNTS = st.dictionaries(KEYS, st.integers(1, 60), min_size=1)


def make_plan(counts, kinds=None, **options):
    given = PlanOptions(**{"allow_one_class": True} | options)
    kinds = kinds or dict.fromkeys(((split, "one") for split, _ in counts), 1)
    return planning.make_plan(counts, given, 1000.0, kinds)


@given(COUNTS, st.integers(1, 25))
def test_balanced_shards_are_even_in_records_and_in_every_class(counts, wanted):
    smallest = min(sum(n for (s, _), n in counts.items() if s == split) for split, _ in counts)
    plan = make_plan(counts, num_shards={"*": min(wanted, smallest)})
    # (split, shard) → class id → images, from the ranks alone.
    shards: dict = collections.defaultdict(collections.Counter)
    for (split, class_id), count in plan.counts.items():
        for rank in range(count):
            place = plan.first_ranks[split, class_id] + rank
            shards[split, place % plan.num_shards[split]][class_id] += 1
    for split, num_shards in plan.num_shards.items():
        of_split = [shards[split, i] for i in range(num_shards)]
        totals = [shard.total() for shard in of_split]
        assert plan.images_per_shard(split) == (min(totals), max(totals))
        assert sum(totals) == sum(n for (s, _), n in counts.items() if s == split)
        assert max(totals) - min(totals) <= 1
        for class_id in range(len(plan.classes)):
            of_class = [shard[class_id] for shard in of_split]
            assert max(of_class) - min(of_class) <= 1


@given(COUNTS, st.floats(1e-4, 1.0))
def test_shards_by_size_are_as_many_as_the_size_asks_for(counts, shard_mb):
    plan = make_plan(counts, shard_mb=shard_mb)
    for split, num_shards in plan.num_shards.items():
        images = sum(n for (s, _), n in counts.items() if s == split)
        assert 1 <= num_shards <= images
        least = min(planning.MIN_SHARDS, images // planning.MIN_RECORDS_PER_SHARD)
        assert num_shards >= least
        if max(1, least) < num_shards < images:
            assert images * 1000 / num_shards == pytest.approx(shard_mb * 1e6, rel=0.51)


@pytest.mark.parametrize(
    ("images", "options", "expected"),
    [
        (63, {}, 1),
        (64, {}, 2),
        (512, {}, 16),
        (100_000, {}, 16),  # 100 MB
        (100_000, {"num_shards": {"train": 2}}, 2),  # others follow their size
    ],
)
def test_a_split_has_16_shards_where_each_holds_32_records(images, options, expected):
    assert make_plan({("train", "a"): images}, **options).num_shards == {"train": expected}


@pytest.mark.parametrize(
    ("counts", "shards", "expected"),
    [
        ({"a": 1}, 1, [1]),
        ({"a": 11}, 10, [2]),
        ({"a": 11}, 1, [1]),  # one shard holds them all, so they fit
        ({"a": 600, "b": 400}, 5, [3, 2]),  # 200 a shard
        ({"a": 600, "b": 400}, 1000, [60, 40]),  # small shards, ten to a bucket
        ({"a": 60_000, "b": 40_000}, 5, [3, 2]),  # constant in the number of images
    ],
)
def test_buckets_are_about_as_large_as_shards(monkeypatch, counts, shards, expected):
    monkeypatch.setattr(planning, "MIN_BUCKET_SIZE", 10)
    plan = make_plan({("train", name): n for name, n in counts.items()}, num_shards={"*": shards})
    assert [plan.num_buckets("train", i) for i in range(len(counts))] == expected


def test_hashes_are_stable_across_releases_and_differ_by_salt_and_purpose():
    # A change here would move every image of every dataset that is built again.
    assert KeyHasher("imageshards")("cat/1.jpg").hex() == "63fe3d28b05c437e6b0dfd9a9d3a5fc2"
    hashes = {KeyHasher(salt, purpose)("key") for salt in "ab" for purpose in (RANK, SPLIT)}
    assert len(hashes) == 4
    assert len(KeyHasher("s")("\udcff")) == 16  # bytes of a name that are no text


def test_fractions_are_kept_within_chance():
    splits = {"train": 0.7, "test": 0.02, "validation": 0.28}
    draw = planning.SplitAssigner(splits, "salt")
    n = 20_000
    found = collections.Counter(draw(f"class/{i}.jpg") for i in range(n))
    for name, fraction in splits.items():
        assert abs(found[name] - n * fraction) < 5 * math.sqrt(n * fraction * (1 - fraction))


def test_growing_train_takes_from_its_neighbour_only():
    small = planning.SplitAssigner({"train": 0.5, "a": 0.3, "b": 0.2}, "s")
    large = planning.SplitAssigner({"train": 0.6, "a": 0.2, "b": 0.2}, "s")
    moves = {(small(str(i)), large(str(i))) for i in range(2000)}
    assert moves == {("train", "train"), ("a", "train"), ("a", "a"), ("b", "b")}


@pytest.mark.parametrize(
    ("labels", "class_names", "pinned", "expected"),
    [
        ("ba", ("b", "x", "a"), (), ["b", "x", "a"]),
        ("dab", None, ("c", "a"), ["c", "a", "b", "d"]),
        (["10", "9", "é", "Z"], None, (), ["9", "10", "Z", "é"]),
        ([str(i) for i in range(12)], None, (), [str(i) for i in range(12)]),
        (["0", "3", "10", "2"], None, ("10", "2"), ["10", "2", "0", "3"]),
        ("b", ("a", "b"), (), ["a", "b"]),  # without an image a class keeps its id
    ],
)
def test_class_order(labels, class_names, pinned, expected):
    assert ClassOrder(class_names, pinned).names(labels) == expected


@pytest.mark.parametrize(
    ("label", "class_names", "argument"),
    [(" ", None, ""), ("a\nb", None, ""), ("a\rb", None, ""), ("\udcff", None, ""),
     ("cow", ("cat",), "class_names")],
    ids=["blank", "newline", "carriage return", "no text", "unknown"],
)  # fmt: skip
def test_a_bad_label_is_refused_with_its_image(label, class_names, argument):
    refs = [ImageRef("good.jpg", "u", "cat"), ImageRef("bad.jpg", "u", label)]
    assert distinct_labels(RefBatch(refs[:1]), class_names) == {"cat"}
    with refused(argument, repr(label), "'bad.jpg'"):
        distinct_labels(RefBatch(refs), class_names)


@pytest.mark.parametrize(
    ("counts", "kinds", "options", "words"),
    [
        ({}, None, {}, ["input", "no image"]),
        ({("train", "a"): 3}, None, {"allow_one_class": False}, ["one class", "'a'"]),
        ({("train", "a"): 3}, None, {"num_shards": {"val": 2}}, ["num_shards", "'val'", "train"]),
        ({("train", "a"): 3}, None, {"num_shards": {"train": 4}}, ["4", "'train'", "3 images"]),
        ({("tr/ain", "a"): 3}, None, {}, ["split", "'tr/ain'", "letters"]),
        ({("train", "a"): 100_001}, None, {"shard_mb": 1e-9}, ["100,001 shards", "99999"]),
        ({}, {("train", "several"): 3}, {}, ["label received several", "no image", "label='none'"]),
        ({}, {("train", "none"): 3, ("test", "one"): 3}, {}, ["none and one", "ImageRef"]),
    ],
)
def test_inputs_that_cannot_be_planned_are_refused(counts, kinds, options, words):
    with refused(None, *words):
        make_plan(counts, kinds, **options)


def test_images_with_one_of_several_labels_or_none_need_no_other_class():
    plan = make_plan({("train", "a"): 2}, {("train", "several"): 3}, allow_one_class=False)
    assert plan.classes == ("a",) and plan.num_images == 3
    plan = make_plan({}, {("train", "none"): 3}, pinned_classes=("a",))
    assert plan.classes == () and plan.num_images == 3
