"""Which records move so that shards are even again."""

import collections
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.commit.finalize import Move, plan_moves

NONE = collections.Counter[str]()
Counts = Sequence[Mapping[str, int]]
COUNTS = st.lists(st.dictionaries(st.sampled_from("abcde"), st.integers(0, 9)), max_size=12)


def after(counts: Counts, moves: list[Move]) -> list[dict[str, int]]:
    """The counts when the records have moved; each must be there, and moves once."""
    result = [collections.Counter(of_shard) for of_shard in counts]
    assert len({move[:3] for move in moves}) == len(moves)
    for source, name, number, target in moves:
        assert 0 <= number < counts[source].get(name, 0)
        result[source][name] -= 1
        result[target][name] += 1
    return [dict(+each) for each in result]


def spread(values: Sequence[int]) -> int:
    return max(values) - min(values)


@given(COUNTS)
def test_sizes_and_classes_are_even_afterwards_and_nothing_is_lost(counts):
    result = after(counts, plan_moves(counts))
    if counts:
        assert spread([sum(each.values()) for each in result]) <= 1
        for name in "abcde":
            assert spread([each.get(name, 0) for each in result]) <= 1
    before, then = (sum(map(collections.Counter, of), NONE) for of in (counts, result))
    assert before == then
    assert plan_moves(result) == []


@given(COUNTS)
def test_a_shard_gives_the_last_records_of_a_class_of_which_it_takes_none(counts):
    moves = plan_moves(counts)
    takes = {(move.target, move.class_name) for move in moves}
    given_away = collections.defaultdict(list)
    for move in moves:
        given_away[move.source, move.class_name].append(move.number)
    for (source, name), numbers in given_away.items():
        count = counts[source][name]
        assert sorted(numbers) == list(range(count - len(numbers), count))
        assert (source, name) not in takes


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 9), st.data())
def test_a_reject_costs_two_moves_at_most(classes, shards, data):
    dealt = [name for name, count in enumerate(classes) for _ in range(count)]  # as a plan deals
    lost = data.draw(st.sets(st.integers(0, max(0, len(dealt) - 1)), max_size=6))
    counts: list[collections.Counter[str]] = [collections.Counter() for _ in range(shards)]
    for place, name in enumerate(dealt):
        counts[place % shards][f"class {name}"] += place not in lost
    assert len(plan_moves(counts)) <= 2 * len(lost)
