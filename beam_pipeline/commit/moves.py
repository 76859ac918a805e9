"""Computes which records move so that shards are even again after rejects left holes."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Move(NamedTuple):
    """Move of the `number`-th record of a class, counted from 0, from one shard to another."""

    source: int
    class_name: str
    number: int
    target: int


def plan_moves(counts: Sequence[Mapping[str, int]]) -> list[Move]:
    """Returns moves after which sizes of shards, and counts of each class, differ by at most one.

    Every shard gets ⌊count / shards⌋ records of each class. A controlled rounding of the table of
    counts (Cox 1987) decides which shards get one extra record, and of which class. A shard keeps
    an extra record that it has, if possible, and gives away its last records of a class.

    Args:
        counts: For each shard, class name → records, as written.
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
    """Returns for each shard the classes of which it gets more than ⌊count / shards⌋ records."""
    extras: list[set[str]] = [set() for _ in counts]
    for of_shard, extra in zip(counts, extras, strict=True):
        extra.update(n for n, count in of_shard.items() if count > totals[n] // len(counts))
    chosen = collections.Counter(name for extra in extras for name in extra)
    for name in sorted(totals):
        surplus = chosen[name] - totals[name] % len(counts)
        # If too many shards have an extra record, the shards with the most extras give theirs away.
        # If too few have an extra record, the shards with the fewest extras get one.
        if surplus:
            shards = [i for i, extra in enumerate(extras) if (name in extra) == (surplus > 0)]
            shards.sort(key=lambda i: (len(extras[i]), -i), reverse=surplus > 0)
            for shard in shards[: abs(surplus)]:
                extras[shard] ^= {name}
    return extras


def _even_out(
    extras: list[set[str]], counts: Sequence[Mapping[str, int]], base: Mapping[str, int]
) -> None:
    """Passes extra records from shards with too many to shards with too few, in `extras`."""
    share, odd = divmod(sum(map(len, extras)), len(extras))
    fullest = sorted(range(len(extras)), key=lambda i: (-len(extras[i]), i))
    wanted = {shard: share + (place < odd) for place, shard in enumerate(fullest)}
    needs = (i for i, extra in enumerate(list(map(len, extras))) for _ in range(wanted[i] - extra))

    def cost(name: str, giver: int, taker: int) -> int:
        """Returns how many more records move if this class is passed on."""
        has_extra = [counts[shard].get(name, 0) > base[name] for shard in (giver, taker)]
        return has_extra[0] - has_extra[1]

    for giver, extra in enumerate(extras):
        for _ in range(len(extra) - wanted[giver]):
            taker = next(needs)
            # The giver has more extra records than the taker, so there is a class only it has.
            name = min(extra - extras[taker], key=lambda n: (cost(n, giver, taker), n))
            extra.remove(name)
            extras[taker].add(name)
