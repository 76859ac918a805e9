import numpy as np
import pyarrow as pa
import pytest

from imageshards.deduplication.search import COLUMNS, choose_twins


def row(key, split="train", dhash=0, **more):
    default = dict.fromkeys(COLUMNS, 0) | {"class_name": "a", "source_sha256": key}
    return default | {"key": key, "split": split, "dhash": dhash} | more


def keys(twins):
    return [(twin.kept["key"], twin.other["key"]) for twin in twins]


def twins_of(rows, pairs=[]):  # noqa: B006
    columns = {name: [each[name] for each in rows] for name in (*COLUMNS, "dhash")}
    columns["dhash"] = pa.array(columns["dhash"], pa.uint64())
    return choose_twins(pa.table(columns), np.array(pairs, np.uint64).reshape(-1, 2))


@pytest.mark.parametrize(
    ("kept", "other"), [("validation", "train"), ("test", "validation"), ("validation", "dev")]
)
def test_images_of_test_and_validation_splits_stay(kept, other):
    for rows in ([row("a", kept), row("b", other)], [row("b", kept), row("a", other)]):
        (twin,) = twins_of(rows)
        assert twin.splits == (kept, other)


def test_within_a_split_the_larger_file_stays_then_the_first_key():
    rows = [row("b"), row("a"), row("c", source_bytes=9)]
    assert keys(twins_of(rows)) == [("c", "a"), ("c", "b")]


def test_a_chain_of_near_images_keeps_images_without_a_kept_twin():
    rows = [row("a", dhash=0), row("b", dhash=0b11), row("c", dhash=0b1111)]
    assert keys(twins_of(rows, [(0, 3), (3, 15)])) == [("a", "b")]


def test_the_twin_of_another_split_is_named_before_a_nearer_one():
    rows = [row("a", "train", 1, source_bytes=9), row("b", "train", 1), row("v", "validation", 7)]
    twins = twins_of(rows, [(1, 7)])
    assert keys(twins) == [("v", "a"), ("v", "b")]
    assert [twin.distance for twin in twins] == [2, 2]


def test_leaks_come_first_and_then_the_nearest_twins():
    rows = [row("t0", dhash=0), row("t1", dhash=0), row("v", "validation", 8), row("x", "train", 9)]
    rows += [row("e", "test", 16), row("w", "validation", 17)]
    assert keys(twins_of(rows, [(8, 9), (16, 17)])) == [("v", "x"), ("e", "w"), ("t0", "t1")]


def test_equal_files_are_exact_even_without_a_hash():
    rows = [row("a", source_sha256="s"), row("b", dhash=None, source_sha256="s"), row("c", dhash=0)]
    assert {(t.other["key"], t.exact) for t in twins_of(rows)} == {("b", True), ("c", False)}
