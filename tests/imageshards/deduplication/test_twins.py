"""Which of two duplicates goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from imageshards.deduplication.twins import COLUMNS, Twin, choose_twins


def row(key: str, split: str = "train", dhash: int | None = 0, **more: Any) -> dict[str, Any]:
    default = dict.fromkeys(COLUMNS, 0) | {"class_name": "a", "source_sha256": key}
    return default | {"key": key, "split": split, "dhash": dhash} | more


def twins_of(rows: list[dict[str, Any]], pairs: list[tuple[int, int]] = []) -> list[Twin]:  # noqa: B006
    columns = {name: [each[name] for each in rows] for name in (*COLUMNS, "dhash")}
    columns["dhash"] = pa.array(columns["dhash"], pa.uint64())
    return choose_twins(pa.table(columns), np.array(pairs, np.uint64).reshape(-1, 2))


def keys(twins: list[Twin]) -> list[tuple[str, str]]:
    return [(twin.kept["key"], twin.other["key"]) for twin in twins]


@pytest.mark.parametrize(
    ("kept", "other"),
    [("test", "train"), ("validation", "train"), ("test", "validation"), ("dev", "train"),
     ("validation", "dev")],
)  # fmt: skip
def test_what_models_are_compared_on_stays(kept, other):
    for rows in ([row("a", kept), row("b", other)], [row("b", kept), row("a", other)]):
        (twin,) = twins_of(rows)
        assert twin.splits == (kept, other)


def test_within_a_split_the_larger_file_stays_then_the_first_key():
    rows = [row("b"), row("a"), row("c", source_bytes=9)]
    assert keys(twins_of(rows)) == [("c", "a"), ("c", "b")]


def test_a_near_chain_keeps_what_has_no_kept_twin():
    rows = [row("a", dhash=0), row("b", dhash=0b11), row("c", dhash=0b1111)]
    assert keys(twins_of(rows, [(0, 3), (3, 15)])) == [("a", "b")]


def test_the_twin_of_another_split_is_named_before_a_nearer_one():
    rows = [row("a", "train", 1, source_bytes=9), row("b", "train", 1), row("v", "validation", 7)]
    twins = twins_of(rows, [(1, 7)])
    assert keys(twins) == [("v", "a"), ("v", "b")]
    assert [twin.distance for twin in twins] == [2, 2]


def test_leaks_come_first_then_what_is_nearest():
    rows = [
        row("t0", dhash=0), row("t1", dhash=0),
        row("v", "validation", 8), row("x", "train", 9), row("e", "test", 16),
        row("w", "validation", 17),
    ]  # fmt: skip
    twins = twins_of(rows, [(8, 9), (16, 17)])
    assert keys(twins) == [("v", "x"), ("e", "w"), ("t0", "t1")]


def test_equal_files_are_exact_also_where_no_hash_is_known():
    rows = [row("a", source_sha256="s"), row("b", dhash=None, source_sha256="s"), row("c", dhash=0)]
    twins = twins_of(rows)
    assert {(twin.other["key"], twin.exact) for twin in twins} == {("b", True), ("c", False)}
