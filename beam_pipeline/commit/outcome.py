"""What became of the shards, added up for the commit."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any

import apache_beam as beam

from beam_pipeline.shards.record import ShardStats
from beam_pipeline.shards.result import ShardResult


@dataclasses.dataclass(frozen=True)
class Finished:
    """What the commit needs to know of a written shard: its size does not grow with it.

    Attributes:
        num_rejects: Its images that were rejected; its result file says which.
        staged: Whether its bytes are in the staging folder, not in their final place.
    """

    name: str
    split: str
    group: str
    num_records: int
    num_bytes: int
    sha256: str
    classes: dict[str, int]
    digest: str
    num_rejects: int
    staged: bool


def summarise(result: ShardResult) -> Finished:
    """The part of a result that travels to the commit."""
    classes = collections.Counter(result.record_classes)
    return Finished(
        result.name, result.split, result.group, result.num_records, result.num_bytes,
        result.sha256, dict(sorted(classes.items())), result.digest, len(result.rejects),
        result.staged,
    )  # fmt: skip


@dataclasses.dataclass
class Outcome:
    """What became of some shards.

    Attributes:
        finished: The shards.
        rejects: Reason → rejected images.
        stats: Split → counts over accepted images.
        reused_images: Images whose shards an earlier run had finished.
    """

    finished: list[Finished]
    rejects: dict[str, int]
    stats: dict[str, ShardStats]
    reused_images: int = 0

    def add(self, other: Outcome) -> None:
        """Adds what became of other shards."""
        self.finished.extend(other.finished)
        for reason, count in other.rejects.items():
            self.rejects[reason] = self.rejects.get(reason, 0) + count
        for split, stats in other.stats.items():
            self.stats.setdefault(split, ShardStats()).merge(stats)
        self.reused_images += other.reused_images


def outcome_of(result: ShardResult) -> Outcome:
    """The part of a result that travels to the commit."""
    reasons = dict(collections.Counter(reject.reason for reject in result.rejects))
    reused = result.num_records + len(result.rejects) if result.reused else 0
    return Outcome([summarise(result)], reasons, {result.split: result.stats}, reused)


class MergeOutcomesFn(beam.CombineFn):
    """Outcomes → that of all shards together, added up in place."""

    def create_accumulator(self) -> Outcome:
        return Outcome([], {}, {})

    def add_input(self, accumulator: Outcome, element: Outcome) -> Outcome:
        accumulator.add(element)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[Outcome]) -> Outcome:
        total = self.create_accumulator()
        for each in accumulators:
            total.add(each)
        return total

    def extract_output(self, accumulator: Outcome) -> Outcome:
        return accumulator


def totals(outcome: Outcome) -> Outcome:
    """An outcome without its shards: of a size that does not depend on their number."""
    return dataclasses.replace(outcome, finished=[])


class ToListFn(beam.CombineFn):
    """Elements → one list of them."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add_input(self, accumulator: list[Any], element: Any) -> list[Any]:
        accumulator.append(element)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Any]]) -> list[Any]:
        return [value for values in accumulators for value in values]

    def extract_output(self, accumulator: list[Any]) -> list[Any]:
        return accumulator
