"""Rejected images leave holes: which records move so that shards are even again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Move:
    """Record `record` of shard `source` becomes the last of shard `target`."""

    source: int
    record: int
    target: int


def plan_moves(counts: Sequence[int]) -> list[Move]:
    """The fewest moves after which counts differ by at most one.

    The fullest shards keep the odd records (ties: the lower index); a shard gives from its
    end, in order, to the emptiest first by index. A function of the counts alone.

    Args:
        counts: Records per shard, as written.
    """
    if not counts:
        return []
    base, odd = divmod(sum(counts), len(counts))
    fullest = sorted(range(len(counts)), key=lambda i: (-counts[i], i))
    target = {shard: base + (place < odd) for place, shard in enumerate(fullest)}
    needs = [shard for shard in range(len(counts)) for _ in range(target[shard] - counts[shard])]
    gives = [
        (shard, record)
        for shard in range(len(counts))
        for record in range(target[shard], counts[shard])
    ]
    return [Move(source, record, to) for (source, record), to in zip(gives, needs, strict=True)]
