"""Samples that keep the shares of classes, and splits with equal shares of each class."""

import collections
import itertools
import random
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.options import PlanOptions, ShardOptions
from beam_pipeline.planning import strata
from beam_pipeline.planning.plan import bucket_ranks
from beam_pipeline.planning.refs import SPLIT, ImageRef, RefBatch
from beam_pipeline.planning.strata import SampleImages, quotas
from beam_pipeline.planning.transforms import AssignSplits
from imageshards.errors import user_error_in
from tests.support.errors import refused
from tests.support.listings import batches_of

FOUND: list[ImageRef] = []  # what the runner, in this process, has collected
FOLDS = {f"fold{number}": 0.2 for number in range(5)}


def refs_of(counts: dict[str, int], **more: Any) -> list[ImageRef]:
    keys = [(label, f"{label}/{i}") for label, count in counts.items() for i in range(count)]
    return [ImageRef(key, f"/{key}.jpg", label, **more) for label, key in keys]


def collect(batches: list[RefBatch]) -> None:
    FOUND.extend(ref for batch in batches for ref in batch.refs)


def run(refs: list[ImageRef], transform: beam.PTransform, size: int = 7) -> list[ImageRef]:
    """What a transform makes of references in any order, sorted."""
    FOUND.clear()
    refs = random.Random(size).sample(refs, len(refs))
    with beam.Pipeline(FnApiRunner()) as pipeline:
        made = pipeline | beam.Create(batches_of(refs, size)) | beam.Reshuffle() | transform
        batches = made if isinstance(made, beam.PCollection) else made.batches
        assert_that(batches, collect)
    return sorted(FOUND)


def stratified(splits: dict[str, float], salt: str = "s") -> AssignSplits:
    return AssignSplits(ShardOptions(plan=PlanOptions(splits, salt=salt, stratify=True)))


def shares(refs: list[ImageRef]) -> dict[Any, collections.Counter]:
    found: dict[Any, collections.Counter] = collections.defaultdict(collections.Counter)
    for ref in refs:
        found[ref.label][ref.split] += 1
    return found


@pytest.mark.parametrize(
    ("bucket_size", "splits"), [(3, FOLDS), (10_000, {"train": 0.9, "validation": 0.1})]
)
@pytest.mark.one_row
def test_each_split_has_its_share_of_each_class_in_any_order(monkeypatch, splits, bucket_size):
    monkeypatch.setattr(strata, "MIN_BUCKET_SIZE", bucket_size)
    counts = {"a": 61, "b": 10, "c": 3} | {f"one {i}": 1 for i in range(60)}
    refs = refs_of(counts)
    found = run(refs, stratified(splits))
    assert [ref._replace(split=None) for ref in found] == sorted(refs)
    for label, count in counts.items():
        for split, fraction in splits.items():
            assert abs(shares(found)[label][split] - count * fraction) < 1
    assert run(refs, stratified(splits), size=11) == found
    assert run(refs, stratified(splits, salt="other")) != found
    # The only images of classes are spread over all splits.
    assert {ref.split for ref in found if ref.label not in ("a", "b", "c")} == {*splits}


@given(st.lists(st.integers(1, 6), min_size=1, max_size=40), st.integers(0, 99))
def test_groups_stay_together_and_miss_a_share_by_less_than_a_group(sizes, salt):
    refs = [
        ImageRef(f"{g}/{i}", "u", "a", None, f"g{g}") for g, n in enumerate(sizes) for i in range(n)
    ]
    options = PlanOptions(FOLDS, salt=str(salt), stratify=True)
    total = {("", "a"): len(refs)}
    bucket = ("", "a", 0), RefBatch(strata.sort_by_hash([RefBatch(refs)], "s", SPLIT, True))
    found = strata.cut_stratum(bucket, total, bucket_ranks({bucket[0]: len(refs)}), options).refs
    of_groups = collections.defaultdict(set)
    for ref in found:
        of_groups[ref.group].add(ref.split)
    assert all(len(splits) == 1 for splits in of_groups.values())
    counts = collections.Counter(ref.split for ref in found)
    assert all(abs(counts[fold] - len(refs) / 5) < max(max(sizes), 1) + 1e-9 for fold in FOLDS)


def test_given_splits_and_groups_stay_and_several_labels_count_under_the_rarest():
    held = refs_of({"a": 9}, split="test")
    groups = [
        ImageRef(f"p{g}/{i}", "u", "rare" if i == g % 3 == 0 else "usual", None, f"p{g}")
        for g, i in itertools.product(range(60), range(3))
    ]
    found = run(held + groups, stratified({"x": 0.5, "y": 0.5}))
    assert [ref for ref in found if ref.split == "test"] == sorted(held)
    assert all(len({ref.split for ref in found if ref.group == f"p{g}"}) == 1 for g in range(60))
    assert shares(found)["rare"] == {"x": 10, "y": 10}
    names = [("b",)] * 2 + [("b", "c")] * 8 + [()] * 4
    several = [ImageRef(str(i), "u", labels) for i, labels in enumerate(names)]
    found = run(several, stratified({"x": 0.5, "y": 0.5}))
    assert shares(found) == {labels: {"x": n // 2, "y": n // 2} for labels, n in (
        (("b",), 2), (("b", "c"), 8), ((), 4))}  # fmt: skip


def test_splits_that_are_not_drawn_are_refused():
    with pytest.raises(Exception, match="stratify") as error:
        run(refs_of({"a": 3}, split="train"), stratified(FOLDS))
    assert "none is drawn" in str(user_error_in(error.value))
    with refused("stratify", "splits='train=1'"):
        PlanOptions({"train": 1.0}, stratify=True)


SIZES = st.dictionaries(st.tuples(st.sampled_from(["", "test"]), st.text("ab")), st.integers(1, 50))


@given(SIZES.filter(len), st.floats(0.01, 0.99), st.integers(1, 300) | st.none())
def test_quotas_are_exact_and_shares_to_one_image(sizes, sample, limit):
    kept, total = quotas(sizes, sample, limit), sum(sizes.values())
    wanted = min(max(1, round(sample * total)), total if limit is None else limit)
    assert sum(kept.values()) == wanted
    assert all(abs(kept[each] - sizes[each] * wanted / total) < 1 for each in sizes)
    assert sum(quotas(sizes, None, limit).values()) == min(total, limit or total)


def test_a_sample_is_the_same_in_any_order_and_larger_ones_contain_it(monkeypatch):
    monkeypatch.setattr(strata, "MIN_BUCKET_SIZE", 3)
    refs = refs_of({"a": 60, "b": 25}) + refs_of({"c": 15}, split="test")
    few, more = run(refs, SampleImages(limit=20)), run(refs, SampleImages(sample=0.4), size=11)
    assert collections.Counter(ref.label for ref in few) == {"a": 12, "b": 5, "c": 3}
    assert collections.Counter(ref.label for ref in more) == {"a": 24, "b": 10, "c": 6}
    assert {*few} < {*more}
    # The hash of a sample is not the hash of its splits.
    splits = collections.Counter(ref.split for ref in run(few, AssignSplits(), size=3))
    assert 0 < splits["validation"] < 9
