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
from beam_pipeline.inputs.listing import Folder, expand_root, list_folder
from beam_pipeline.inputs.manifest_input import ManifestSchema
from beam_pipeline.options import InputOptions
from beam_pipeline.planning.batching import SumCountsFn
from beam_pipeline.planning.refs import RefBatch
from imageshards.storage import is_local

_FOLDERS_AT_ONCE = 16


class Listed(NamedTuple):
    """`RefBatch`es, and one dict: reason → files passed over."""

    batches: beam.PCollection
    skipped: beam.PCollection


class ListImages(beam.PTransform):
    """An input → batches of `ImageRef`, listed by the workers; nothing is in the graph."""

    def __init__(self, source: InputOptions, schema: ManifestSchema | None):
        super().__init__()
        self._source = source
        self._schema = schema

    def expand(self, pipeline: beam.Pipeline) -> Listed:
        listed = (
            pipeline
            | "Input" >> beam.Create([self._source])
            | "ExpandRoot" >> beam.FlatMap(expand_root)  # Folder
            | "Spread" >> beam.Reshuffle()
            | "ListFolder"
            >> beam.ParDo(_ListFolderFn(self._source, self._schema))
            .with_output_types(RefBatch, skipped=dict[str, int])
            .with_outputs("skipped", main="batches")
        )
        skipped = listed.skipped | "SumSkipped" >> beam.CombineGlobally(SumCountsFn())
        # A CSV file, or a flat folder, is one piece of work: what follows is not.
        batches = listed.batches | "SpreadBatches" >> beam.Reshuffle()
        return Listed(batches, skipped)


class _ListFolderFn(beam.DoFn):
    """Folder → RefBatch; tagged `skipped`: {reason: files}.

    A store gives a thousand names per request, so several of its folders are listed at once.
    """

    def __init__(self, source: InputOptions, schema: ManifestSchema | None):
        self._source = source
        self._schema = schema

    def start_bundle(self) -> None:
        self._waiting: collections.deque[concurrent.futures.Future[list[Any]]]
        self._waiting = collections.deque()
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None

    def process(self, folder: Folder) -> Iterator[Any]:
        if is_local(folder.path) or folder.kind == "manifest":
            yield from self._list(folder)
            return
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(_FOLDERS_AT_ONCE)
        self._waiting.append(self._threads.submit(lambda: list(self._list(folder))))
        if len(self._waiting) > 2 * _FOLDERS_AT_ONCE:
            yield from self._waiting.popleft().result()

    def finish_bundle(self) -> Iterator[Any]:
        try:
            while self._waiting:
                for found in self._waiting.popleft().result():
                    yield _windowed(found)
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)

    def _list(self, folder: Folder) -> Iterator[Any]:
        skipped: collections.Counter[str] = collections.Counter()
        for found in list_folder(folder, self._source, self._schema):
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
