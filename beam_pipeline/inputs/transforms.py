"""Lists an input inside the pipeline, piece by piece, as batches of references."""

from __future__ import annotations

import collections
import concurrent.futures
from collections.abc import Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipeline.inputs.folders import Skipped
from beam_pipeline.inputs.listing import ListingTask, list_task, listing_tasks, schema_of
from beam_pipeline.inputs.manifest import ManifestSchema
from beam_pipeline.options import InputOptions
from beam_pipeline.planning.batching import SumCountsFn
from beam_pipeline.planning.refs import RefBatch
from imageshards.storage import is_local

_TASKS_AT_ONCE = 16


class Listed(NamedTuple):
    """What `ListImages` returns.

    Attributes:
        batches: `RefBatch`es of images, in no order; a reference has a split only where the input
            gives it one.
        skipped: One dict: reason → files that were passed over.
    """

    batches: beam.PCollection[RefBatch]
    skipped: beam.PCollection[dict[str, int]]


class ListImages(beam.PTransform):
    """An input → `RefBatch`es; listed by the workers, so that no name is part of the graph.

    Args:
        source: Folder, glob or manifest, and how a label is found.
        schema: The columns of a manifest, where the caller has read them; default:
            `schema_of(source)`.

    Raises:
        UserError: The manifest cannot be read, or a flag does not fit the input; while running:
            the input is not there, or a file name or row has no label.
    """

    def __init__(self, source: InputOptions, schema: ManifestSchema | None = None):
        super().__init__()
        self._source = source
        self._schema = schema_of(source) if schema is None else schema

    def expand(self, pipeline: beam.Pipeline) -> Listed:
        listed = (
            pipeline
            | "Input" >> beam.Create([self._source])
            | "ListingTasks" >> beam.FlatMap(listing_tasks)  # ListingTask
            | "Spread" >> beam.Reshuffle()
            | "ListTask"
            >> beam.ParDo(_ListTaskFn(self._source, self._schema))
            .with_output_types(RefBatch, skipped=dict[str, int])
            .with_outputs("skipped", main="batches")
        )
        skipped = listed.skipped | "SumSkipped" >> beam.CombineGlobally(SumCountsFn())
        # A CSV file or a flat folder is one task, but what follows is work for every worker.
        batches = listed.batches | "SpreadBatches" >> beam.Reshuffle()
        return Listed(batches, skipped)


class _ListTaskFn(beam.DoFn):
    """ListingTask → RefBatch; tagged `skipped`: {reason: files}.

    A store gives a thousand names per request, so several of its folders are listed at once.
    """

    def __init__(self, source: InputOptions, schema: ManifestSchema | None):
        self._source = source
        self._schema = schema

    def start_bundle(self) -> None:
        self._waiting: collections.deque[concurrent.futures.Future[list[Any]]]
        self._waiting = collections.deque()
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None

    def process(self, task: ListingTask) -> Iterator[Any]:
        if is_local(task.path) or task.kind == "manifest":
            yield from self._list(task)
            return
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(_TASKS_AT_ONCE)
        self._waiting.append(self._threads.submit(lambda: list(self._list(task))))
        if len(self._waiting) > 2 * _TASKS_AT_ONCE:
            yield from self._waiting.popleft().result()

    def finish_bundle(self) -> Iterator[Any]:
        try:
            while self._waiting:
                for found in self._waiting.popleft().result():
                    yield _windowed(found)
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)

    def _list(self, task: ListingTask) -> Iterator[Any]:
        skipped: collections.Counter[str] = collections.Counter()
        for found in list_task(task, self._source, self._schema):
            if isinstance(found, Skipped):
                skipped[found.reason] += 1
            else:
                yield found
        yield beam.pvalue.TaggedOutput("skipped", dict(skipped))


def _windowed(found: Any) -> Any:
    """What a bundle's end may emit: an element with its window."""
    if isinstance(found, beam.pvalue.TaggedOutput):
        return beam.pvalue.TaggedOutput(found.tag, _windowed(found.value))
    return WindowedValue(found, MIN_TIMESTAMP, (GlobalWindow(),))
