"""What a write came to, added up for the commit."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

import apache_beam as beam

from beam_pipeline.shards.result import ShardResult, ShardStats, ShardSummary

# Damaged images that the manifest names; more are counted.
MAX_DAMAGED = 1000


@dataclasses.dataclass
class WriteSummary:
    """What some shards came to.

    Attributes:
        shards: The shards.
        rejects: Reason → rejected images.
        stats: Split → counts over accepted images.
        reused_images: Images whose shards an earlier run had finished.
        unchecked_images: Those of them that may have been replaced since, for all that is known.
        num_damaged: Images that became records although libjpeg warns about them.
        damaged: Key → warning, of the first of them by key.
    """

    shards: list[ShardSummary] = dataclasses.field(default_factory=list)
    rejects: dict[str, int] = dataclasses.field(default_factory=dict)
    stats: dict[str, ShardStats] = dataclasses.field(default_factory=dict)
    reused_images: int = 0
    unchecked_images: int = 0
    num_damaged: int = 0
    damaged: dict[str, str] = dataclasses.field(default_factory=dict)

    def add(self, other: WriteSummary) -> None:
        """Adds what other shards came to."""
        self.shards.extend(other.shards)
        for reason, count in other.rejects.items():
            self.rejects[reason] = self.rejects.get(reason, 0) + count
        for split, stats in other.stats.items():
            self.stats.setdefault(split, ShardStats()).merge(stats)
        self.reused_images += other.reused_images
        self.num_damaged += other.num_damaged
        if other.damaged:
            self.damaged = dict(sorted((self.damaged | other.damaged).items())[:MAX_DAMAGED])
        self.unchecked_images += other.unchecked_images


def summarise(result: ShardResult) -> WriteSummary:
    """The part of one result that travels to the commit."""
    reasons = dict(collections.Counter(reject.reason for reject in result.rejects))
    reused, unchecked = (result.num_images, result.unversioned) if result.reused else (0, 0)
    return WriteSummary(
        [result.summary()],
        reasons,
        {result.split: result.stats},
        reused,
        unchecked,
        len(result.damaged),
        result.damaged,
    )


def without_shards(summary: WriteSummary) -> WriteSummary:
    """The totals alone: of a size that does not depend on the number of shards."""
    return dataclasses.replace(summary, shards=[])


class SumSummariesFn(beam.CombineFn):
    """WriteSummaries → that of all shards together, added up in place."""

    def create_accumulator(self) -> WriteSummary:
        return WriteSummary()

    def add_input(self, accumulator: WriteSummary, element: WriteSummary) -> WriteSummary:
        accumulator.add(element)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[WriteSummary]) -> WriteSummary:
        total = self.create_accumulator()
        for each in accumulators:
            total.add(each)
        return total

    def extract_output(self, accumulator: WriteSummary) -> WriteSummary:
        return accumulator
