"""Fewer, larger elements: a shuffle's cost is per element."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from beam_pipeline.planning.refs import ImageRef, RefBatch

# References that a worker holds, about 80 MB, before it sends its batches.
MAX_HELD_REFS = 200_000
# References of a batch where no key says otherwise.
BATCH_SIZE = 1000


class BatchByKeyFn(beam.DoFn):
    """Elements → (key, RefBatch): the references of a bundle, batched by a key.

    Without it a thousand classes in a thousand shards would be a million elements of one
    reference, and so would a thousand rows of a shuffled table.

    Args:
        keyed: `keyed(element, *sides)` gives (key, reference) pairs.
    """

    def __init__(self, keyed: Callable[..., Iterable[tuple[Any, ImageRef]]]):
        self._keyed = keyed

    def start_bundle(self) -> None:
        self._batches: dict[Any, list[ImageRef]] = collections.defaultdict(list)
        self._held = 0

    def process(self, element: Any, *sides: Any) -> Iterator[tuple[Any, RefBatch]]:
        for key, ref in self._keyed(element, *sides):
            self._batches[key].append(ref)
            self._held += 1
        if self._held >= MAX_HELD_REFS:
            yield from self._flush()

    def finish_bundle(self) -> Iterator[Any]:
        for keyed_batch in self._flush():
            yield GlobalWindows.windowed_value(keyed_batch)

    def _flush(self) -> Iterator[tuple[Any, RefBatch]]:
        batches = self._batches
        self.start_bundle()
        for key, refs in batches.items():
            yield key, RefBatch(refs)


class BatchRefs(beam.PTransform):
    """`ImageRef`s of your own → `RefBatch`es, as `AssignSplits` and what follows it take them.

        batches = pipeline | beam.Create([ImageRef("1", "gs://b/1.jpg", "cat"), …]) | BatchRefs()

    Keys must be unique, and all of the global window.
    """

    def expand(self, refs: beam.PCollection[ImageRef]) -> beam.PCollection[RefBatch]:
        return (
            refs
            | "Batch" >> beam.BatchElements(BATCH_SIZE, BATCH_SIZE)  # of a bundle
            | "RefBatch" >> beam.Map(RefBatch).with_output_types(RefBatch)
        )
