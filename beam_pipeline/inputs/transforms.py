"""Lists an input inside the pipeline, in parallel tasks, as batches of references."""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import apache_beam as beam

from beam_pipeline.beam_files import StoreConfig
from beam_pipeline.inputs.folders import Skipped
from beam_pipeline.inputs.label_files import LabelImages
from beam_pipeline.inputs.listing import ListingTask, list_task, listing_tasks, schema_of
from beam_pipeline.inputs.spool import decompressed
from beam_pipeline.inputs.tables.boxes import merge_boxes
from beam_pipeline.inputs.tables.roles import TableSchema
from beam_pipeline.metrics import count
from beam_pipeline.options import InputOptions
from beam_pipeline.planning.refs import ImageRef, RefBatch
from imageshards import storage
from imageshards.progress import note_activity
from imageshards.storage.concurrency import available_cores

BATCH_SIZE = 1000

# Folders of a store that are listed at the same time, and tasks in one element.
_TASKS_AT_ONCE = 16
_TASKS_TOGETHER = 64
_PAGES_AT_ONCE = 8

_T = TypeVar("_T")
_Inputs = tuple[tuple[InputOptions, TableSchema | None], ...]
# Input, key, URI and size of an image. Rows with boxes are grouped by all four, so different images
# with one key stay apart and `RefuseDuplicateKeys` finds them.
_Image = tuple[int, str, str, int]
# Position of a row (file, first row group of the part, number), and its reference.
_Row = tuple[tuple[str, int, int], ImageRef]


class Listed(NamedTuple):
    """Collections that `ListImages` returns.

    Attributes:
        batches: `RefBatch`es in no order. A reference has a split only if the input gives it.
        skipped: Dicts to be added up: reason → files that were passed over. Keys `reason: name` are
            for warnings: class folders without an image, finished datasets.
    """

    batches: beam.PCollection[RefBatch]
    skipped: beam.PCollection[dict[str, int]]


class ListImages(beam.PTransform):
    """Transform from an input to `RefBatch`es, listed by the workers.

        listed = pipeline | ListImages(InputOptions("photos/"))
        listed.batches | beam.Map(len)  # images of each batch
        listed.skipped | beam.Map(print)  # {"hidden": 2}

    Args:
        source: Folder, glob or image table, and how a label is found.
        schema: The columns of an image table; default: `schema_of(source)`.
        more: More inputs, each with the columns of an image table or None.
        spool: Folder that all workers see, to unpack compressed tars and Parquet files.
        draws: Whether images without a split are allowed beside files and folders whose names say
            a split. They may be drawn into that split. So are those of a single input whose name
            says one.
        class_names: Names of the classes that `InputOptions.labels` gives as numbers.

    Raises:
        UserError: The table cannot be read, or a flag does not fit the input. While running: the
            input does not exist, or a file name or row has no label, or no split without `draws`.
    """

    def __init__(
        self,
        source: InputOptions,
        schema: TableSchema | None = None,
        more: Sequence[tuple[InputOptions, TableSchema | None]] = (),
        spool: str = "",
        draws: bool = True,
        class_names: Sequence[str] | None = None,
    ):
        super().__init__()
        self._draws, self._class_names = draws, class_names
        self._first, self._more = (source, schema), more
        self._spool = spool and storage.place("spool", spool)

    def expand(self, pipeline: beam.Pipeline) -> Listed:
        stores = StoreConfig.of_pipeline(pipeline)
        source, schema = self._first
        schema = stores.step(schema_of)(source) if schema is None else schema
        inputs = ((source, schema), *self._more)
        sources = [each for each, _ in inputs]
        list_inputs = functools.partial(listing_tasks, draws=self._draws)
        listed = (
            pipeline
            | "Input" >> beam.Impulse()
            | "ListingTasks"
            >> beam.FlatMap(lambda _: stores.step(list_inputs, "list")(*sources))  # ListingTask
            # Without a shuffle, Beam would fuse the steps and one worker would list everything.
            | "Spread" >> beam.Reshuffle()
            | "Some" >> beam.BatchElements(_TASKS_TOGETHER, _TASKS_TOGETHER)  # [ListingTask]
            | "ListTasks"
            >> beam.FlatMap(stores.step(list_tasks, "list"), inputs, self._spool)
            .with_output_types(RefBatch, skipped=dict[str, int], boxes=tuple[_Image, _Row])
            .with_outputs("skipped", "boxes", main="batches")
        )
        # One task lists a CSV file or a flat folder, so its references are spread over all workers.
        batches = listed.batches | "SpreadBatches" >> beam.Reshuffle()
        if any(schema and schema.box_a_row for _, schema in inputs):
            images = (
                listed.boxes
                | "GroupBoxes" >> beam.GroupByKey()
                | "OneImage" >> beam.Map(_one_image, inputs)
                | "BatchImages" >> BatchRefs()
            )
            batches = (batches, images) | "WithImagesOfBoxes" >> beam.Flatten()
        skipped = listed.skipped
        if source.labels is not None:
            labels = LabelImages(source.labels, self._spool, self._class_names)
            batches, unlabelled = batches | "Label" >> labels
            skipped = (skipped, unlabelled) | "WithUnlabelled" >> beam.Flatten()
        return Listed(batches, skipped)


class BatchRefs(beam.PTransform):
    """Transform from your own `ImageRef`s to `RefBatch`es, as `AssignSplits` takes them.

        batches = pipeline | beam.Create([ImageRef("1", "gs://b/1.jpg", "cat"), …]) | BatchRefs()

    Keys must be unique, and all references must be in the global window.
    """

    def expand(self, refs: beam.PCollection[ImageRef]) -> beam.PCollection[RefBatch]:
        return (
            refs
            | "Batch" >> beam.BatchElements(BATCH_SIZE, BATCH_SIZE)  # [ImageRef]
            | "RefBatch" >> beam.Map(RefBatch).with_output_types(RefBatch)
        )


def list_tasks(tasks: Sequence[ListingTask], inputs: _Inputs, spool: str = "") -> Iterator[Any]:
    """Yields `RefBatch`es, {reason: files} tagged `skipped`, and rows with boxes tagged `boxes`.

    A store lists a thousand names per request, so several of its folders are listed at the same
    time, each no further than one batch ahead.
    """
    # Parts of tables are read in turn, as each may need much memory, and so are local folders, as a
    # disk answers immediately. Spooling a file keeps a core busy.
    in_turn = any(storage.is_local(task.path) or task.kind == "table" for task in tasks)
    at_once = 1 if in_turn else _TASKS_AT_ONCE
    schemas = [inputs[task.source][1] for task in tasks]
    have_pictures = [schema is not None and schema.has_pictures for schema in schemas]
    if all(decompressed(t.path) or of for t, of in zip(tasks, have_pictures, strict=True)):
        at_once = available_cores()
    # A page of a Parquet file may hold a thousand pictures, and each thread decompresses a page.
    if any(have_pictures):
        at_once = min(at_once, _PAGES_AT_ONCE)
    # Small folders share a batch.
    held: list[ImageRef] = []
    listed = (_list(task, inputs, spool) for task in tasks)
    for each in interleave(listed, at_once):
        if not isinstance(each, RefBatch):
            yield each
            continue
        held += each.refs
        note_activity("listing", len(each.refs), "image")
        count("list", items=len(each.refs), bytes=sum(max(0, r.size_bytes) for r in each.refs))
        if len(held) >= BATCH_SIZE:
            yield RefBatch(held)
            held = []
    if held:
        yield RefBatch(held)


def _list(task: ListingTask, inputs: _Inputs, spool: str) -> Iterator[Any]:
    source, schema = inputs[task.source]
    has_boxes = task.kind == "table" and schema is not None and schema.box_a_row
    begin = task.part.row_groups.start if task.part else 0
    skipped: collections.Counter[str] = collections.Counter()
    refs: list[ImageRef] = []
    for number, found in enumerate(list_task(task, source, schema, spool)):
        if isinstance(found, Skipped):
            skipped[str(found)] += 1
            continue
        # The boxes of an image may be in several files, so rows are grouped before they are
        # batched.
        if has_boxes:
            image = found.source, found.key, found.uri, found.size_bytes
            yield beam.pvalue.TaggedOutput("boxes", (image, ((task.path, begin, number), found)))
            continue
        refs.append(found)
        if len(refs) == BATCH_SIZE:
            yield RefBatch(refs)
            refs = []
    if refs:
        yield RefBatch(refs)
    if skipped:
        yield beam.pvalue.TaggedOutput("skipped", dict(skipped))


def _one_image(found: tuple[_Image, Iterable[_Row]], inputs: _Inputs) -> ImageRef:
    """Returns the reference of an image, with boxes in the order of files and rows."""
    refs = [ref for _, ref in sorted(found[1], key=operator.itemgetter(0))]
    schema = inputs[refs[0].source][1]
    note_activity("listing", 1, "image")
    return merge_boxes(refs, schema) if schema else refs[0]


def interleave(sources: Iterable[Iterator[_T]], at_once: int) -> Iterator[_T]:
    """Yields the elements of iterators in rounds, fetched by `at_once` threads."""
    end: Any = object()
    left = iter(sources)
    active: list[Iterator[_T]] = []
    # A new iterator takes the place of each that has ended.
    while active := [*active, *itertools.islice(left, at_once - len(active))]:
        found = list(storage.map_concurrently(lambda source: next(source, end), active, at_once))
        yield from (each for each in found if each is not end)
        active = [source for source, each in zip(active, found, strict=True) if each is not end]
