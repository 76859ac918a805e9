"""Fewer, larger elements: a shuffle's cost is per element, and so is a combine's."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from beam_pipeline.planning.refs import ImageRef, RefBatch

# References that wait in a worker's memory, about 80 MB, until their lists are worth sending.
GATHERED = 200_000


class GatherFn(beam.DoFn):
    """Elements → (key, RefBatch), gathered over all elements of a bundle.

    A thousand classes dealt to a thousand shards are a million hands of one reference, and so
    are a thousand rows of a shuffled manifest.

    Args:
        keyed: `keyed(element, *sides)` gives (key, reference) pairs.
    """

    def __init__(self, keyed: Callable[..., Iterable[tuple[Any, ImageRef]]]):
        self._keyed = keyed

    def start_bundle(self) -> None:
        self._hands: dict[Any, list[ImageRef]] = collections.defaultdict(list)
        self._held = 0

    def process(self, element: Any, *sides: Any) -> Iterator[tuple[Any, RefBatch]]:
        for key, ref in self._keyed(element, *sides):
            self._hands[key].append(ref)
            self._held += 1
        if self._held >= GATHERED:
            yield from self._flush()

    def finish_bundle(self) -> Iterator[Any]:
        for hand in self._flush():
            yield GlobalWindows.windowed_value(hand)

    def _flush(self) -> Iterator[tuple[Any, RefBatch]]:
        hands = self._hands
        self.start_bundle()
        for key, refs in hands.items():
            yield key, RefBatch(refs)


class SumCountsFn(beam.CombineFn):
    """Dicts of counts → their sum.

    Beam adds in place here; of a plain function it keeps ten dicts and sums them anew, which
    for a number per shard is quadratic.
    """

    def create_accumulator(self) -> dict[Any, int]:
        return {}

    def add_input(self, accumulator: dict[Any, int], element: dict[Any, int]) -> dict[Any, int]:
        for key, count in element.items():
            accumulator[key] = accumulator.get(key, 0) + count
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[dict[Any, int]]) -> dict[Any, int]:
        total = self.create_accumulator()
        for each in accumulators:
            self.add_input(total, each)
        return total

    def extract_output(self, accumulator: dict[Any, int]) -> dict[Any, int]:
        return accumulator
