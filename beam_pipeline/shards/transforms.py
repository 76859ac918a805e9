"""`WriteBalancedTFRecord`: planned shards, written by Beam's workers or by the local pool."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.io.filesystem import CompressionTypes

from beam_pipeline.options import ImageOptions
from beam_pipeline.planning.shard_unit import ShardUnit
from beam_pipeline.shards import process_pool
from beam_pipeline.shards.result import ShardResult
from beam_pipeline.shards.sink import BalancedSink
from beam_pipeline.shards.writer import WriteSpec, write_shard
from beam_pipeline.versions import differences, versions
from imageshards import storage
from imageshards.errors import UserError


class _WriteShardFn(beam.DoFn):
    """ShardUnit → ShardResult, in this process."""

    def __init__(self, spec: WriteSpec):
        self._spec = spec
        self._images = beam.metrics.Metrics.counter("write", "images")
        self._bytes = beam.metrics.Metrics.counter("write", "bytes_read")
        self._rejects = beam.metrics.Metrics.counter("write", "rejects")
        self._reused = beam.metrics.Metrics.counter("write", "reused")
        self._requests = beam.metrics.Metrics.counter("store", "requests")
        self._retries = beam.metrics.Metrics.counter("store", "retries")

    def setup(self) -> None:
        """Refuses to write other bytes than the client's packages would."""
        differ = differences(dict(self._spec.versions), versions())
        if differ:
            raise UserError(
                f"versions on worker host {socket.gethostname()} differ from the client's "
                f"({differ}); expected the same ones, as the bytes depend on them: install this "
                "release with its constraints.txt on both, and start the workers again."
            )

    def process(self, unit: ShardUnit) -> Iterator[ShardResult]:
        result = write_shard(unit, self._spec, self._count)
        if result.reused:
            self._reused.inc(len(unit.refs))
        asked = storage.unreported()
        self._requests.inc(asked.requests)
        self._retries.inc(asked.retries)
        yield result

    def _count(self, images: int, size_bytes: int, rejects: int) -> None:
        self._images.inc(images)
        self._bytes.inc(size_bytes)
        self._rejects.inc(rejects)


class _CountFn(beam.DoFn):
    """ShardUnit → itself; a metric says how many images there are to do."""

    def __init__(self) -> None:
        self._images = beam.metrics.Metrics.counter("plan", "images")

    def process(self, unit: ShardUnit) -> Iterator[ShardUnit]:
        self._images.inc(len(unit.refs))
        yield unit


class _StartShardFn(beam.DoFn):
    """ShardUnit → its name; a process of the local pool begins to write it."""

    def __init__(self, spec: WriteSpec):
        self._spec = spec

    def process(self, unit: ShardUnit) -> Iterator[str]:
        process_pool.active().submit(unit.name, write_shard, unit, self._spec, size=len(unit.refs))
        yield unit.name


class _FinishShardFn(beam.DoFn):
    """Name of a shard → ShardResult, once the local pool has written it."""

    def process(self, name: str, *after: Any) -> Iterator[ShardResult]:
        yield process_pool.active().result(name)


class WriteBalancedTFRecord(beam.io.WriteToTFRecord):
    """`WriteToTFRecord` whose shards are chosen by a plan before a pixel is read.

    Takes `ShardUnit`s instead of encoded records: Beam's own transform sends every byte
    through a GroupByKey and starts each bundle at a random shard; here only references
    were shuffled, and every shard's place, size and bytes are known in advance. Finished
    shards are left in `staging` for the commit.

    Args:
        file_path_prefix, coder, file_name_suffix, num_shards, shard_name_template,
            compression_type: As for `WriteToTFRecord`; each unit brings its own number of
            shards, so `num_shards` must be 0.
        staging: Folder for what is known of finished shards until they are committed.
        finished: Folder for the shards themselves until then; default: `staging`.
        image: How pictures are encoded.
        versions: (library, version) pairs that the bytes depend on.
        after: Collections that must be complete before results are given out.

    Attributes:
        spec: What a worker is given besides its unit.
    """

    def __init__(
        self,
        file_path_prefix: str,
        coder: beam.coders.Coder = BytesCoder(),  # noqa: B008  # Beam's own signature
        file_name_suffix: str = "",
        num_shards: int = 0,
        shard_name_template: str | None = None,
        compression_type: str = CompressionTypes.AUTO,
        *,
        staging: str,
        finished: str = "",
        image: ImageOptions,
        versions: tuple[tuple[str, str], ...] = (),
        after: tuple[beam.PCollection, ...] = (),
    ):
        if num_shards:
            raise ValueError(
                f"num_shards received {num_shards}; the plan chooses shards: leave it 0."
            )
        framing = (coder, file_name_suffix, num_shards, shard_name_template, compression_type)
        super().__init__(file_path_prefix, *framing)
        self._sink = BalancedSink(file_path_prefix, *framing)
        output = file_path_prefix.rpartition("/")[0]
        self.spec = WriteSpec(output, staging, finished or staging, image, versions, self._sink)
        self._after = tuple(beam.pvalue.AsIter(collection) for collection in after)

    def expand(self, units: beam.PCollection) -> beam.PCollection:
        if process_pool.is_active():
            # The analysis of columns runs in this process while the pool writes shards.
            return (
                units
                | "StartShard" >> beam.ParDo(_StartShardFn(self.spec))
                | "Started" >> beam.Reshuffle()
                | "FinishShard" >> beam.ParDo(_FinishShardFn(), *self._after)
            )
        counted = units | "CountImages" >> beam.ParDo(_CountFn())
        spread = counted | "Spread" >> beam.Reshuffle()
        return spread | "WriteShard" >> beam.ParDo(_WriteShardFn(self.spec))
