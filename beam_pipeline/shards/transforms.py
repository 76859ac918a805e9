"""`WriteBalancedTFRecord`: Beam's `WriteToTFRecord` for shards that a plan has chosen."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
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
from beam_pipeline.options import ShardOptions
from beam_pipeline.planning.refs import ShardUnit
from beam_pipeline.shards.places import ShardPlaces
from beam_pipeline.shards.result import ShardResult
from beam_pipeline.shards.versions import check_versions
from beam_pipeline.shards.writer import decode_reject, write_shard
from imageshards import storage
from imageshards.manifest import Reject
from imageshards.progress import note_activity
from imageshards.storage import map_concurrently
from imageshards.text import counted
from imageshards.tfrecord import read_records

_LOGGER = logging.getLogger(__name__)

# What Beam groups are the names of written shards; all else that is known of one lies beside it.
Names = tuple[str, ...]


class WriteBalancedTFRecord(beam.io.WriteToTFRecord):
    """`WriteToTFRecord` whose shards were chosen before a pixel is read.

    Takes `ShardUnit`s, as `PlanShards` makes them, instead of encoded records, and returns the
    final paths of the files, as `WriteToTFRecord` does. Beam's own transform with `num_shards`
    sends every byte through a GroupByKey and starts each bundle at a random shard; here only
    references are shuffled, and every shard's records are known in advance. What Beam runs is its
    own expansion for `num_shards=0`; the shards are the work of the sink.

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

    An image that cannot become a record leaves a hole in its shard, and is kept with the reason and
    its bytes in `quarantine/` beside the shards, a file for each shard that rejected some. To have
    holes filled from other shards, and a manifest, give `staging` and let `CommitShards` follow. As
    of `WriteToTFRecord`, files that have the names of these shards are replaced, and others with
    the prefix stay. Records are never compressed: JPEG does not shrink, and nobody could seek.

    Args:
        file_path_prefix: As for `WriteToTFRecord`, and so are suffix and template: a file is called
            prefix + split + template + suffix.
        options: How images become shards; those of `PlanShards`.
        file_name_suffix: For example `.tfrecord`.
        shard_name_template: As `-SSSSS-of-NNNNN`.
        staging: Folder where finished shards wait for `CommitShards`, and where a job that is
            run again finds them; "" to give them their names as soon as all are written.
        finished: With `staging`, a folder for the shards themselves until then.
        job: Id in `staging`/job.json that must still be there when a shard is finished.

    Attributes:
        options: As given, with a `run_id` of this transform.
        places: Where shards lie.

    Raises:
        ValueError: The suffix is that of compressed files.
    """

    def __init__(
        self,
        file_path_prefix: str,
        options: ShardOptions = ShardOptions(),  # noqa: B008  # frozen
        *,
        file_name_suffix: str = "",
        shard_name_template: str | None = None,
        staging: str = "",
        finished: str = "",
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
        # Two runs may be given the same options.
        self.options = dataclasses.replace(options, run_id=uuid.uuid4().hex)
        self._sink = BalancedSink(
            file_path_prefix, BytesCoder(), file_name_suffix, 0, shard_name_template, plain
        )
        output, slash, first_name = file_path_prefix.rpartition("/")
        self.places = ShardPlaces(
            output=output or slash,  # "/set-" is in the root
            staging=staging and storage.place("staging", staging),
            finished=finished and storage.place("finished", finished),
            job=job,
            first_name=first_name,
            name_format=str(self._sink.shard_name_format),
            suffix=file_name_suffix,
        )
        self._sink.write_to(self.places, self.options)

    def expand(self, units: beam.PCollection[ShardUnit]) -> beam.PCollection[str]:
        self._sink.stores = StoreConfig.of_pipeline(units)
        return (
            super().expand(units)
            # Beam gives them a time after the end of the global window, where Flink 2.x, which
            # runs a batch job as a stream, does not let them into a side input.
            | "InWindow" >> beam.Map(TimestampedValue, MIN_TIMESTAMP)
            | "SpreadFiles" >> beam.Reshuffle()
        )


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
        lists = files | "ReadLists" >> SideBySide(rejects_of, self._places)  # [Reject]
        return lists | "Each" >> beam.FlatMap(lambda found: found)


class SideBySide(beam.PTransform):
    """A function of one element, and of what is given, of four elements at the same time.

    A worker waits for a disk that syncs or a store that answers; no shard needs much of its time.
    """

    def __init__(self, step: Callable[..., Any], *given: Any):
        super().__init__()
        self._step = step
        self._given = given

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        step, given = StoreConfig.of_pipeline(elements).step(self._step), self._given
        return (
            elements
            # Not more: a shard that is written anew may hold some 30 MB of records.
            | "Some" >> beam.BatchElements(4, 4)  # [element]
            | "Do" >> beam.FlatMap(lambda some: map_concurrently(lambda e: step(e, *given), some))
        )


def rejects_of(path: str, places: ShardPlaces) -> list[Reject]:
    """The rejected images of a shard by its final path, from what lies beside it."""
    name = places.name_of(path)
    beside = places.rejects_path(name) if places.staging else places.quarantine_path(name)
    found = read_records(beside) if storage.exists(beside) else ()
    return [decode_reject(record.payload) for record in found]


class BalancedSink(tfrecordio._TFRecordSink):
    """Beam's TFRecord sink whose elements are `ShardUnit`s instead of encoded records."""

    def write_to(self, places: ShardPlaces, options: ShardOptions) -> None:
        """Says where shards lie, and how they are written."""
        # Beam makes 1 of it for an empty template; then one worker would write everything.
        self.num_shards = 0
        self.places = places
        self.stores = StoreConfig()
        self._options = options
        self._made_in = THIS_PROCESS

    # What Beam's `WriteImpl` calls.

    def initialize_write(self) -> str:
        """The folder that bundles write to."""
        if self.places.staging:
            return self.places.staging
        return str(self._create_temp_dir(self.file_path_prefix.get()))

    def open_writer(self, init_result: str, uid: str) -> ShardWriter:
        """A writer of planned shards, whatever their number.

        Raises:
            UserError: This worker's libraries would write other bytes than the client's.
        """
        check_versions(self._options.versions)
        is_local = self._made_in == THIS_PROCESS
        return ShardWriter(self._places_in(init_result), self._options, is_local, self.stores)

    def _places_in(self, init_result: str) -> ShardPlaces:
        return dataclasses.replace(self.places, staging=init_result)

    def pre_finalize(self, init_result: str, writer_results: Iterable[Names]) -> list[Any]:
        """Deletes files that have the names of these shards, as Beam's own sink does.

        So a shard that is in its place when `finalize_write` is run again is known to be its work.
        With `staging` old shards are the commit's business.
        """
        places = self._places_in(init_result)

        def delete_old(name: str) -> None:
            # A shard that is gone from here was moved to its final name by a `finalize_write`.
            if storage.exists(places.staged_path(name)):
                storage.delete([places.final_path(name), places.quarantine_path(name)])

        if not self.places.staging:
            with storage.using(self.stores.settings()):
                old = [name for names in writer_results for name in names]
                collections.deque(map_concurrently(delete_old, old), maxlen=0)
        return []

    def finalize_write(
        self,
        init_result: str,
        writer_results: Iterable[Names],
        unused_pre_finalize_results: Any,
        w: Any = None,
    ) -> Iterator[str]:
        """The final paths of all shards.

        Without `staging` they, and files of what they rejected, are moved there first. A call after
        one that succeeded or failed, or beside one, finds each file in one of these states:

        - only in the temporary folder, or, in a store, in both places: it is moved;
        - only in its final place: it was moved before, as `pre_finalize` left no other file there;
        - in neither: a shard is lost; there are no rejects.

        Raises:
            FileNotFoundError: A shard is lost.
        """
        names = sorted({name for names in writer_results for name in names})
        if not self.places.staging:
            places = self._places_in(init_result)
            with storage.using(self.stores.settings()):
                put = functools.partial(_put_in_place, places)
                with_rejects = sum(map_concurrently(put, names))
            if with_rejects:
                _LOGGER.warning(
                    "%s of %s* rejected images, which are in %s, with the reasons",
                    counted(with_rejects, "shard"),
                    self.file_path_prefix.get(),
                    storage.parent_of(places.quarantine_path("")),
                )
            # What is left of it is nobody's.
            with contextlib.suppress(OSError), storage.using(self.stores.settings()):
                storage.delete_folder(init_result)
        yield from map(self.places.final_path, names)


def _put_in_place(places: ShardPlaces, name: str) -> bool:
    """Moves a shard and, after it, what it rejected; returns whether there is something of that."""
    try:
        storage.move(places.staged_path(name), places.final_path(name))
    except FileNotFoundError:
        if not storage.exists(places.final_path(name)):
            raise
    with contextlib.suppress(FileNotFoundError):
        storage.move(places.rejects_path(name), places.quarantine_path(name))
    return storage.exists(places.quarantine_path(name))


class ShardWriter(iobase.Writer):
    """Has the planned shards of a bundle written by a pool of processes; says which.

    Where the pipeline runs in the process that made it, a bundle may have all shards of the job:
    they are queued for the pool, and `close` waits for them. In a worker of Beam's each shard is
    given out as soon as it is written, as Beam does a bundle that fails again as a whole.
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
        """Writes a shard, or has it written."""
        note_activity("writing shards")
        name = self._places.shard_name(unit)
        how = self._places, self._options
        with storage.using(self._stores.settings()):
            future = self._pool.submit(name, write_shard, unit, *how, size=len(unit.refs))
        self._queued.append(future)
        if not self._is_local:
            self.close()

    def at_capacity(self) -> bool:
        """Whether there are shards to give out at once."""
        return bool(self._written)

    def close(self) -> Names:
        """The names of the shards, when all of them are written."""
        self._written += map(_counted_name, self._pool.results(self._queued))
        asked = storage.unreported()
        _count("store", requests=asked.requests, retries=asked.retries)
        return tuple(self._written)


def _counted_name(result: ShardResult) -> str:
    images, rejects = result.num_images, result.num_rejects
    if result.reused:
        _count("write", reused=images)
    else:
        _count("write", images=images, bytes_read=result.read_bytes, rejects=rejects)
    return result.name


def _count(namespace: str, **numbers: int) -> None:
    for name, number in numbers.items():
        beam.metrics.Metrics.counter(namespace, name).inc(number)
