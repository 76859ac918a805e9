"""Which records move so that shards are even again, after rejects left holes: arithmetic alone."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Move(NamedTuple):
    """The `number`-th record, from 0, of a class in the shard `source` becomes one of `target`."""

    source: int
    class_name: str
    number: int
    target: int


def plan_moves(counts: Sequence[Mapping[str, int]]) -> list[Move]:
    """Moves after which the shards' sizes, and their counts of each class, differ by at most one.

    Every shard gets ⌊count / shards⌋ records of each class; which shards get one more, and of which
    class, is a controlled rounding of the table of counts (Cox 1987). There always is one: of a
    shard with more such extra records and one with fewer, only the first has one of some class. A
    shard that has an extra record keeps it where that is possible; a shard gives the last
    records of a class.

    Args:
        counts: For each shard class name → records, as written.
    """
    if not counts:
        return []
    totals = collections.Counter[str]()
    for of_shard in counts:
        totals.update(of_shard)
    base = {name: total // len(counts) for name, total in totals.items()}
    extras = _choose_extras(counts, totals)
    _even_out(extras, counts, base)
    moves = []
    for name in sorted(totals):
        target = [base[name] + (name in extra) for extra in extras]
        has = [of_shard.get(name, 0) for of_shard in counts]
        needs = (i for i in range(len(counts)) for _ in range(target[i] - has[i]))
        for source, wanted in enumerate(target):
            for number in range(wanted, has[source]):
                moves.append(Move(source, name, number, next(needs)))
    return moves


def _choose_extras(
    counts: Sequence[Mapping[str, int]], totals: Mapping[str, int]
) -> list[set[str]]:
    """For each shard the classes of which it gets one record more than ⌊count / shards⌋.

    Those that have one keep it, but for the shards with the most extra records, where there
    are too many; where there are too few, the shards with the fewest get one.
    """
    extras: list[set[str]] = [set() for _ in counts]
    for of_shard, extra in zip(counts, extras, strict=True):
        extra.update(n for n, count in of_shard.items() if count > totals[n] // len(counts))
    chosen = collections.Counter(name for extra in extras for name in extra)
    for name in sorted(totals):
        surplus = chosen[name] - totals[name] % len(counts)
        if surplus:
            shards = [i for i, extra in enumerate(extras) if (name in extra) == (surplus > 0)]
            shards.sort(key=lambda i: (len(extras[i]), -i), reverse=surplus > 0)
            for shard in shards[: abs(surplus)]:
                extras[shard] ^= {name}
    return extras


def _even_out(
    extras: list[set[str]], counts: Sequence[Mapping[str, int]], base: Mapping[str, int]
) -> None:
    """Passes extra records from shards with too many to those with too few; few records move."""
    share, odd = divmod(sum(map(len, extras)), len(extras))
    fullest = sorted(range(len(extras)), key=lambda i: (-len(extras[i]), i))
    wanted = {shard: share + (place < odd) for place, shard in enumerate(fullest)}
    needs = (i for i, extra in enumerate(list(map(len, extras))) for _ in range(wanted[i] - extra))

    def cost(name: str, giver: int, taker: int) -> int:
        """Records that move more if this class is passed on."""
        has_extra = [counts[shard].get(name, 0) > base[name] for shard in (giver, taker)]
        return has_extra[0] - has_extra[1]

    for giver, extra in enumerate(extras):
        for _ in range(len(extra) - wanted[giver]):
            taker = next(needs)
            name = min(extra - extras[taker], key=lambda n: (cost(n, giver, taker), n))
            extra.remove(name)
            extras[taker].add(name)
