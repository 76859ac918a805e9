"""Which records move so that shards are even again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.commit.finalize import Move, plan_moves

COUNTS = st.lists(st.integers(0, 50), max_size=40)


def after(counts, moves):
    result = list(counts)
    for move in moves:
        result[move.source] -= 1
        result[move.target] += 1
    return result


@given(COUNTS)
def test_shards_are_even_afterwards_and_nothing_is_lost(counts):
    result = after(counts, plan_moves(counts))
    assert sum(result) == sum(counts)
    assert not counts or max(result) - min(result) <= 1


@given(COUNTS)
def test_no_plan_has_fewer_moves(counts):
    if not counts:
        return
    base, odd = divmod(sum(counts), len(counts))
    # At best the fullest `odd` shards keep base + 1 records.
    fullest = sorted(counts, reverse=True)
    least = sum(max(0, c - base - (i < odd)) for i, c in enumerate(fullest))
    assert len(plan_moves(counts)) == least


@given(COUNTS)
def test_a_record_moves_at_most_once_from_the_end_of_a_shard_that_takes_none(counts):
    moves = plan_moves(counts)
    records = [(move.source, move.record) for move in moves]
    assert len(set(records)) == len(records)
    assert not {move.source for move in moves} & {move.target for move in moves}
    for source in {move.source for move in moves}:
        given_away = sorted(record for s, record in records if s == source)
        assert given_away == list(range(counts[source] - len(given_away), counts[source]))


@given(COUNTS)
def test_even_shards_stay_as_they_are(counts):
    assert plan_moves(after(counts, plan_moves(counts))) == []


@pytest.mark.parametrize(
    ("counts", "moves"),
    [
        ([], []),
        ([0], []),
        ([3, 3, 2], []),
        ([4, 2], [Move(0, 3, 1)]),
        ([0, 5, 5], [Move(1, 4, 0), Move(2, 3, 0), Move(2, 4, 0)]),
        ([2, 0, 0], [Move(0, 1, 1)]),
    ],
)
def test_moves_of_small_cases(counts, moves):
    assert plan_moves(counts) == moves
