"""Beam's TFRecord sink for planned shards: their names, their framing, one writer a bundle."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.io import iobase, tfrecordio
from apache_beam.io.filesystem import CompressionTypes

from beam_pipeline.images.process_pool import LocalPool, own_pool
from beam_pipeline.planning.refs import ShardUnit
from beam_pipeline.shards.places import ShardPlaces, WriteOptions
from beam_pipeline.shards.result import Reject, ShardResult
from beam_pipeline.shards.versions import check_versions
from beam_pipeline.shards.writer import write_shard
from imageshards import storage
from imageshards.progress import note_activity
from imageshards.storage import map_concurrently
from imageshards.text import counted, printable

_LOGGER = logging.getLogger(__name__)


# A written shard as Beam groups them, in few bytes: its name, and its rejected images, where these
# are not beside the shard, in `staging`.
Written = tuple[str, tuple[Reject, ...]]


class BalancedSink(tfrecordio._TFRecordSink):
    """Beam's TFRecord sink whose elements are `ShardUnit`s instead of encoded records.

    Args:
        file_path_prefix, coder, file_name_suffix, shard_name_template, compression_type, staging,
            finished, pool: As of `WriteBalancedTFRecord`.
        options: How shards are written.

    Attributes:
        places: Where they lie.

    Raises:
        ValueError: The records were to be compressed, or the coder is not of bytes.
    """

    def __init__(
        self,
        file_path_prefix: str,
        coder: beam.coders.Coder,
        file_name_suffix: str,
        shard_name_template: str | None,
        compression_type: str,
        *,
        staging: str,
        finished: str,
        options: WriteOptions,
        pool: LocalPool | None = None,
    ):
        if not isinstance(coder, BytesCoder):
            raise ValueError(
                f"coder received {coder!r}; expected BytesCoder(): records are bytes, and another "
                "coder would change their sizes, by which they are found."
            )
        super().__init__(
            file_path_prefix, coder, file_name_suffix, 0, shard_name_template, compression_type
        )
        # Beam makes 1 of it for an empty template; then one worker would write everything.
        self.num_shards = 0
        if compression_type == CompressionTypes.AUTO:
            self.compression_type = CompressionTypes.detect_compression_type(file_name_suffix)
        if self.compression_type != CompressionTypes.UNCOMPRESSED:
            raise ValueError(
                f"compression_type received {self.compression_type!r}; expected UNCOMPRESSED: JPEG "
                "does not shrink, TFDS cannot read such shards, and nobody can seek in them."
            )
        output, _, first_name = file_path_prefix.rpartition("/")
        self.places = ShardPlaces(
            output=output,
            staging=staging,
            finished=finished,
            first_name=first_name,
            name_format=str(self.shard_name_format),
            suffix=file_name_suffix,
            keeps_rejects=bool(staging),
        )
        self._options = options
        self._pool = pool

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
        places = dataclasses.replace(self.places, staging=init_result)
        return ShardWriter(places, self._options, self._pool or own_pool())

    def pre_finalize(self, init_result: str, writer_results: Iterable[Any]) -> list[Any]:
        """Deletes files that have the names of these shards, as Beam's own sink does.

        So a shard that is in its place when `finalize_write` is run again is known to be its work.
        With `staging` old shards are the commit's business.
        """
        if not self.places.staging:
            names = [name for results in writer_results for name, _ in results]
            for _ in map_concurrently(functools.partial(self._delete_old, init_result), names):
                pass
        return []

    def _delete_old(self, init_result: str, name: str) -> None:
        # A shard that is gone from here was moved to its final name by a `finalize_write` before.
        if storage.exists(storage.join(init_result, self.places.file_of(name))):
            storage.delete([self.places.final_path(name)])

    def finalize_write(
        self,
        init_result: str,
        writer_results: Iterable[tuple[Written, ...]],
        unused_pre_finalize_results: Any,
        w: Any = None,
    ) -> Iterator[str]:
        """The final paths of all shards, and, without `staging`, their rejects as `reject_text`.

        Without `staging` shards are moved there first. A call after one that succeeded or failed,
        or beside one, finds each shard in one of these states:

        - only in the temporary folder, or, in a store, in both places: it is moved;
        - only in its final place: it was moved before, as `pre_finalize` left no other file there;
        - in neither: it is lost.

        Raises:
            FileNotFoundError: A shard is lost.
        """
        written = dict(shard for results in writer_results for shard in results)
        names = sorted(written)
        if not self.places.staging:
            move = functools.partial(self._move_to_final_path, init_result)
            for _ in map_concurrently(move, names):
                pass
            rejects = [reject for name in names for reject in written[name]]
            if rejects:
                reasons = collections.Counter(reject.reason for reject in rejects)
                _LOGGER.warning(
                    "%s of %s* left out as rejected: %s",
                    counted(len(rejects), "image"),
                    self.file_path_prefix.get(),
                    dict(reasons.most_common()),
                )
            with contextlib.suppress(OSError):  # what is left of it is empty, or copies
                storage.delete_folder(init_result)
            yield from map(reject_text, rejects)
        yield from map(self.places.final_path, names)

    def _move_to_final_path(self, init_result: str, name: str) -> None:
        final = self.places.final_path(name)
        try:
            storage.move(storage.join(init_result, self.places.file_of(name)), final)
        except FileNotFoundError:
            if not storage.exists(final):
                raise


# Beam declares that what comes out of a write is text. No path begins with this.
_REJECT_MARK = "\0"


def reject_text(reject: Reject) -> str:
    """A reject as text, which `reject_of` knows from a path."""
    fields = {name: printable(value) for name, value in dataclasses.asdict(reject).items()}
    return _REJECT_MARK + json.dumps(fields)


def reject_of(text: str) -> Reject | None:
    """The reject of `reject_text`; None for a path."""
    return Reject(**json.loads(text[1:])) if text.startswith(_REJECT_MARK) else None


class ShardWriter(iobase.Writer):
    """Has the planned shards of a bundle written by a pool of processes; says which.

    The pool of a whole job shares out all its shards: they are queued and the bundle goes on;
    `close` waits for them. From that of one of Beam's workers each shard is given out as soon as
    it is written.
    """

    def __init__(self, places: ShardPlaces, options: WriteOptions, pool: LocalPool):
        self._places = places
        self._options = options
        self._pool = pool
        self._queued: list[concurrent.futures.Future[ShardResult]] = []
        self._written: list[Written] = []
        counter = beam.metrics.Metrics.counter
        self._images = counter("write", "images")
        self._bytes = counter("write", "bytes_read")
        self._rejects = counter("write", "rejects")
        self._reused = counter("write", "reused")
        self._requests = counter("store", "requests")
        self._retries = counter("store", "retries")

    def write(self, unit: ShardUnit) -> None:
        """Writes a shard, or has it written."""
        note_activity("writing shards")
        name = self._places.shard_name(unit)
        how = self._places, self._options
        future = self._pool.submit(name, write_shard, unit, *how, size=len(unit.refs))
        self._queued.append(future)
        # In a worker of Beam's a bundle is lost as a whole: what is written is given out at once.
        if not self._pool.is_of_job:
            self.close()

    def at_capacity(self) -> bool:
        """Whether there are shards to give out at once."""
        return bool(self._written)

    def close(self) -> tuple[Written, ...]:
        """The shards, when all of them are written."""
        while self._queued:
            self._written.append(self._done(self._queued.pop(0).result()))
        asked = storage.unreported()
        self._requests.inc(asked.requests)
        self._retries.inc(asked.retries)
        return tuple(self._written)

    def _done(self, result: ShardResult) -> Written:
        if result.reused:
            self._reused.inc(result.num_images)
        else:
            self._images.inc(result.num_images)
            self._bytes.inc(result.read_bytes)
            self._rejects.inc(result.num_rejects)
        # Where they are in a file, one process need not hold the rejects of all shards.
        return result.name, () if self._places.keeps_rejects else tuple(result.rejects)
