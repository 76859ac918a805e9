"""What a write came to, added up for the commit."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

from beam_pipeline.shards.result import ShardResult, ShardStats

# Damaged images that the manifest names; more are counted.
MAX_DAMAGED = 1000


@dataclasses.dataclass
class WriteSummary:
    """What some shards came to.

    Attributes:
        shards: The shards, without details.
        rejects: Reason → rejected images.
        stats: Split → counts over accepted images.
        reused_images: Images whose shards an earlier run had finished.
        unchecked_images: Those of them that may have been replaced since, for all that is known.
        num_damaged: Images that became records although libjpeg warns about them.
        damaged: Key → warning, of the first of them by key.
    """

    shards: list[ShardResult] = dataclasses.field(default_factory=list)
    rejects: dict[str, int] = dataclasses.field(default_factory=dict)
    stats: dict[str, ShardStats] = dataclasses.field(default_factory=dict)
    reused_images: int = 0
    unchecked_images: int = 0
    num_damaged: int = 0
    damaged: dict[str, str] = dataclasses.field(default_factory=dict)


def summarise(result: ShardResult) -> WriteSummary:
    """The part of one result that travels to the commit."""
    reasons = dict(collections.Counter(reject.reason for reject in result.rejects))
    reused, unchecked = (result.num_images, result.unversioned) if result.reused else (0, 0)
    return WriteSummary(
        [result.without_details()],
        reasons,
        {result.split: result.stats},
        reused,
        unchecked,
        len(result.damaged),
        result.damaged,
    )


def add_up(summaries: Iterable[WriteSummary]) -> WriteSummary:
    """What all their shards came to."""
    total, rejects = WriteSummary(), collections.Counter[str]()
    for summary in summaries:
        total.shards += summary.shards
        rejects.update(summary.rejects)
        for split, stats in summary.stats.items():
            total.stats.setdefault(split, ShardStats()).merge(stats)
        total.reused_images += summary.reused_images
        total.unchecked_images += summary.unchecked_images
        total.num_damaged += summary.num_damaged
        total.damaged |= summary.damaged
    total.rejects = dict(rejects)
    total.damaged = dict(sorted(total.damaged.items())[:MAX_DAMAGED])
    return total


def without_shards(summary: WriteSummary) -> WriteSummary:
    """The totals alone: of a size that does not depend on the number of shards."""
    return dataclasses.replace(summary, shards=[])
