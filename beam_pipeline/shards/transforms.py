"""Defines `WriteBalancedTFRecord`, Beam's `WriteToTFRecord` for planned shards."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.io import iobase, tfrecordio
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP

from beam_pipeline.beam_files import StoreConfig
from beam_pipeline.images.process_pool import THIS_PROCESS, own_pool
from beam_pipeline.metrics import count
from beam_pipeline.options import ShardOptions
from beam_pipeline.planning.refs import ShardUnit
from beam_pipeline.shards.places import ShardPlaces
from beam_pipeline.shards.record import check_versions
from beam_pipeline.shards.result import ShardResult
from beam_pipeline.shards.writer import decode_reject, write_shard
from imageshards import storage
from imageshards.manifest.file import Reject
from imageshards.progress import note_activity
from imageshards.storage import map_concurrently
from imageshards.text import counted
from imageshards.tfrecord import read_records

_LOGGER = logging.getLogger(__name__)

# Beam groups only the names of written shards; the result of a shard is a file beside the shard.
Names = tuple[str, ...]


class WriteBalancedTFRecord(beam.io.WriteToTFRecord):
    """`WriteToTFRecord` for shards that were planned before any pixel is read.

    Takes the `ShardUnit`s of `PlanShards` instead of encoded records, and returns the final paths
    of the files, as `WriteToTFRecord` does. Beam's own transform with `num_shards` sends every byte
    through a GroupByKey and starts each bundle at a random shard. This transform shuffles only
    references. It uses Beam's expansion for `num_shards=0`, with a sink that writes whole shards.

    Example:

        import apache_beam as beam
        import beam_pipeline as bp

        options = bp.ShardOptions(image=bp.ImageOptions(height_px=128, width_px=128))
        with beam.Pipeline("FnApiRunner") as pipeline:
            listed = pipeline | bp.ListImages(bp.InputOptions("photos"))
            planned = listed.batches | bp.AssignSplits(options) | bp.PlanShards(options)
            write = bp.WriteBalancedTFRecord("out/set-", options)
            files = planned.units | write
            files | beam.Map(print)  # out/set-train-00000-of-00016 ...
            rejects = files | bp.ReadRejects(write)
            rejects | "Bad" >> beam.Map(print)  # Reject(key='cat/7.jpg', uri=...

    An image that cannot become a record leaves a hole in its shard. A file in `quarantine/`, one
    per shard, keeps such images with reasons and bytes. To fill holes from other shards, and to get
    a manifest, give `staging` and add `CommitShards`. Existing files with the names of these shards
    are replaced, and other files with the prefix stay, as with `WriteToTFRecord`. Records are never
    compressed: JPEG does not shrink, and readers could not seek.

    Args:
        file_path_prefix: Begin of each path: prefix + `train-00000-of-00016` + suffix.
        options: How images become shards, as for `PlanShards`.
        file_name_suffix: For example `.tfrecord`.
        staging: Folder where finished shards wait for `CommitShards`, and where a resumed job finds
            them; "" to move shards to their final places as soon as all are written.
        job: Id that `staging`/job.json must have when a shard is finished; "" for no check.

    Attributes:
        options: The given options, with the `run_id` of this transform.
        places: Paths of the shards.

    Raises:
        ValueError: The suffix means compressed files.
    """

    def __init__(
        self,
        file_path_prefix: str,
        options: ShardOptions = ShardOptions(),  # noqa: B008  # frozen
        *,
        file_name_suffix: str = "",
        staging: str = "",
        job: str = "",
    ):
        plain = CompressionTypes.UNCOMPRESSED
        if CompressionTypes.detect_compression_type(file_name_suffix) != plain:
            raise ValueError(
                f"file_name_suffix received {file_name_suffix!r}, of compressed files; expected "
                "another: JPEG does not shrink, and nobody can seek in such shards."
            )
        file_path_prefix = storage.place("file_path_prefix", file_path_prefix)
        super().__init__(file_path_prefix, file_name_suffix=file_name_suffix)
        # Two runs may have the same options, but never the same id.
        self.options = dataclasses.replace(options, run_id=uuid.uuid4().hex)
        self._sink = BalancedSink(file_path_prefix, BytesCoder(), file_name_suffix, 0, None, plain)
        output, slash, first_name = file_path_prefix.rpartition("/")
        self.places = ShardPlaces(
            output=output or slash,  # "/set-" is in the root
            staging=staging and storage.place("staging", staging),
            job=job,
            first_name=first_name,
            suffix=file_name_suffix,
        )
        self._sink.write_to(self.places, self.options)

    def expand(self, units: beam.PCollection[ShardUnit]) -> beam.PCollection[str]:
        self._sink.stores = StoreConfig.of_pipeline(units)
        return (
            super().expand(units)
            # Beam gives the paths a time after the end of the global window. Flink 2.x, which runs
            # a batch job as a stream, does not admit such elements to a side input.
            | "InWindow" >> beam.Map(TimestampedValue, MIN_TIMESTAMP)
            | "SpreadFiles" >> beam.Reshuffle()
        )  # final path of each shard


class ReadRejects(beam.PTransform):
    """Final paths of shards → a `Reject` for each image that did not become a record.

        rejects = files | ReadRejects(write)

    Args:
        write: The `WriteBalancedTFRecord` that returned the paths.
    """

    def __init__(self, write: WriteBalancedTFRecord):
        super().__init__()
        self._places = write.places

    def expand(self, files: beam.PCollection[str]) -> beam.PCollection[Reject]:
        lists = files | "ReadLists" >> SideBySide("", rejects_of, self._places)  # [Reject]
        return lists | "Each" >> beam.FlatMap(lambda found: found)


@beam.ptransform_fn
def SideBySide(
    elements: beam.PCollection, stage: str, step: Callable[..., Any], *given: Any
) -> beam.PCollection:
    """Applies a function of a stage to four elements at the same time, in threads.

    The functions wait for a disk to sync or for a store to answer, and need little CPU time.
    """
    do = StoreConfig.of_pipeline(elements).step(_side_by_side, stage)
    return (
        elements
        # The commit may rewrite a shard with 30 MB of records in memory, so four must do.
        | "Some" >> beam.BatchElements(4, 4)  # [element]
        | "Do" >> beam.FlatMap(do, step, *given)
    )


def _side_by_side(some: list[Any], step: Callable[..., Any], *given: Any) -> Iterator[Any]:
    yield from map_concurrently(lambda element: step(element, *given), some)


def rejects_of(path: str, places: ShardPlaces) -> list[Reject]:
    name = places.name_of(path)
    beside = places.rejects_path(name) if places.staging else places.quarantine_path(name)
    found = read_records(beside) if storage.exists(beside) else ()
    return [decode_reject(record.payload) for record in found]


class BalancedSink(tfrecordio._TFRecordSink):
    """Beam's TFRecord sink whose elements are `ShardUnit`s instead of encoded records."""

    def write_to(self, places: ShardPlaces, options: ShardOptions) -> None:
        """Sets the paths of shards and the options by which they are written."""
        self.places = places
        self.stores = StoreConfig()
        self._options = options
        self._made_in = THIS_PROCESS

    # Beam's `WriteImpl` calls the following methods.

    def initialize_write(self) -> str:
        """Returns the folder to which bundles write."""
        if self.places.staging:
            return self.places.staging
        return str(self._create_temp_dir(self.file_path_prefix.get()))

    def open_writer(self, init_result: str, uid: str) -> ShardWriter:
        """Returns a writer for a bundle of shards; refuses libraries that write other bytes."""
        check_versions(self._options.versions)
        is_local = self._made_in == THIS_PROCESS
        places = dataclasses.replace(self.places, staging=init_result)
        return ShardWriter(places, self._options, is_local, self.stores)

    def pre_finalize(self, init_result: str, writer_results: Iterable[Names]) -> list[Any]:
        """Deletes old files with the names of these shards, as Beam's own sink does.

        Then `finalize_write` knows every file in a final place as its own work. With `staging` the
        commit deletes old shards.
        """
        places = dataclasses.replace(self.places, staging=init_result)

        def delete_old(name: str) -> None:
            # A shard that is no longer staged was moved to its final place by `finalize_write`.
            if storage.exists(places.staged_path(name)):
                storage.delete([places.final_path(name), places.quarantine_path(name)])

        if not self.places.staging:
            with storage.using(self.stores.settings()):
                list(map_concurrently(delete_old, itertools.chain(*writer_results)))
        return []

    def finalize_write(
        self,
        init_result: str,
        writer_results: Iterable[Names],
        unused_pre_finalize_results: Any,
        w: Any = None,
    ) -> Iterator[str]:
        """Yields the final paths of all shards, which are moved there first without `staging`.

        Beam may call this again after a success or a failure, or twice at the same time. A call may
        find each file of shards and rejects in one of these states:

        - only in the temporary folder, or, in a store, in both places: the file is moved;
        - only in its final place: another call moved it, as `pre_finalize` left no old file there;
        - in neither place: a shard is lost (`FileNotFoundError`), or has no rejects.
        """
        names = sorted(set[str]().union(*writer_results))
        if not self.places.staging:
            places = dataclasses.replace(self.places, staging=init_result)
            with storage.using(self.stores.settings()):
                put = functools.partial(_put_in_place, places)
                with_rejects = sum(map_concurrently(put, names))
                # No job needs the rest of the temporary folder.
                with contextlib.suppress(OSError):
                    storage.delete_folder(init_result)
            if with_rejects:
                _LOGGER.warning(
                    "%s of %s* rejected images, which are in %s, with the reasons",
                    counted(with_rejects, "shard"),
                    self.file_path_prefix.get(),
                    storage.parent_of(places.quarantine_path("")),
                )
        yield from map(self.places.final_path, names)


def _put_in_place(places: ShardPlaces, name: str) -> bool:
    """Moves a shard, and then its rejects; returns whether the shard has rejects."""
    try:
        storage.move(places.staged_path(name), places.final_path(name))
    except FileNotFoundError:
        if not storage.exists(places.final_path(name)):
            raise
    with contextlib.suppress(FileNotFoundError):
        storage.move(places.rejects_path(name), places.quarantine_path(name))
    return storage.exists(places.quarantine_path(name))


class ShardWriter(iobase.Writer):
    """Writer that has the planned shards of a bundle written by a pool of processes.

    If the pipeline runs in the process that made it, a bundle may have all shards of the job: they
    are queued for the pool, and `close` waits for them. A Beam worker returns each name as soon as
    the shard is written, because Beam repeats a failed bundle as a whole.
    """

    def __init__(
        self, places: ShardPlaces, options: ShardOptions, is_local: bool, stores: StoreConfig
    ):
        self._stores = stores
        self._places = places
        self._options = options
        self._pool = own_pool()
        self._is_local = is_local
        self._queued: list[concurrent.futures.Future[ShardResult]] = []
        self._written: list[str] = []

    def write(self, unit: ShardUnit) -> None:
        """Queues a shard for the pool; in a Beam worker, waits until the shard is written."""
        note_activity("writing shards")
        how = self._places, self._options
        with storage.using(self._stores.settings()):
            future = self._pool.submit(unit.name, write_shard, unit, *how, size=len(unit.refs))
        self._queued.append(future)
        if not self._is_local:
            self.close()

    def at_capacity(self) -> bool:
        """Returns whether there are names of written shards, which Beam then collects."""
        return bool(self._written)

    def close(self) -> Names:
        """Waits until all queued shards are written; returns their names."""
        for result in self._pool.results(self._queued):
            _count_shard(result)
            self._written.append(result.name)
        asked = storage.unreported()
        count("store", requests=asked.requests, retries=asked.retries)
        return tuple(self._written)


def _count_shard(result: ShardResult) -> None:
    if result.reused:
        count("write", reused=result.num_images)
        return
    for stage, msec in result.msec.items():
        count(stage, msec=msec)
    count("read", items=result.num_images, bytes=result.read_bytes, rejects=result.num_rejects)
    count("decode", items=result.num_images)
    count("encode", items=result.num_records)
    count("write", items=result.num_records, bytes=result.file.num_bytes)
