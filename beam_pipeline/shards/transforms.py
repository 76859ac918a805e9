"""`WriteBalancedTFRecord`: Beam's `WriteToTFRecord` for shards that a plan has chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.coders import BytesCoder
from apache_beam.io.filesystem import CompressionTypes

from beam_pipeline.images.process_pool import LocalPool
from beam_pipeline.options import ImageOptions, UrlOptions
from beam_pipeline.shards.places import WriteOptions
from beam_pipeline.shards.sink import BalancedSink, reject_of


class WrittenShards(NamedTuple):
    """What `WriteBalancedTFRecord` gives.

    Attributes:
        files: Final paths of the shards, `str`.
        rejects: The images that could not become records, `Reject`; none with `staging`, where
            `CommitShards` finds them, with their bytes, beside the shards.
    """

    files: beam.PCollection
    rejects: beam.PCollection


def _with_tag(written: str) -> Iterator[str | pvalue.TaggedOutput]:
    reject = reject_of(written)
    yield written if reject is None else pvalue.TaggedOutput("rejects", reject)


class WriteBalancedTFRecord(beam.io.WriteToTFRecord):
    """`WriteToTFRecord` whose shards were chosen before a pixel is read.

    Takes `ShardUnit`s, as `PlanShards` makes them, instead of encoded records, and returns
    `WrittenShards`: the final names of the files, and the rejects. Beam's own transform with
    `num_shards` sends every byte through a GroupByKey and starts each bundle at a random shard;
    here only references are shuffled, and every shard's records are known in advance. What Beam
    runs is its own expansion for `num_shards=0`; the shards are the work of the sink.

    Example:

        import apache_beam as beam
        import beam_pipeline as bp

        image = bp.ImageOptions(height_px=128, width_px=128)
        with beam.Pipeline("FnApiRunner") as pipeline:
            listed = pipeline | bp.ListImages(bp.InputOptions("photos"))
            planned = listed.batches | bp.AssignSplits() | bp.PlanShards(image=image)
            written = planned.units | bp.WriteBalancedTFRecord("out/set-", image=image)
            written.files | "Files" >> beam.Map(print)  # out/set-train-00000-of-00016 ...
            written.rejects | "Rejects" >> beam.Map(print)  # Reject(key="cat/7.jpg", ...

    An image that cannot become a record leaves a hole in its shard. `CommitShards` fills such
    holes from other shards and writes the quarantine and the manifest; without `staging` the
    rejects are an output. As of `WriteToTFRecord`, files that have the names of these shards are
    replaced, and others with the prefix stay.

    Args:
        file_path_prefix: As for `WriteToTFRecord`, and so are the next five: a file is called
            prefix + split + template + suffix.
        coder: Must be `BytesCoder`, of the records' bytes.
        file_name_suffix: For example `.tfrecord`.
        num_shards: Must be 0: each unit brings its own number of shards.
        shard_name_template: As `-SSSSS-of-NNNNN`.
        compression_type: Must be none: JPEG does not shrink, and nobody could seek.
        image: How pictures are encoded.
        urls: How images at http:// and https:// addresses are fetched.
        damage: What becomes of JPEGs that decode, but that libjpeg warns about: "" to leave them
            unnoticed, `count`, or `reject`.
        staging: Folder where finished shards wait for `CommitShards`, and where a job that is
            run again finds them; "" to give them their names as soon as all are written.
        finished: With `staging`, a folder for the shards themselves until then.
        quarantine_bytes: With `staging`, whether original bytes of rejected images are kept.
        versions: (library, version) pairs that must be the same on every worker.
        pool: Processes of this machine that write the shards; None where Beam's workers do, each
            of which then has some of its own.

    Attributes:
        options: How shards are written.
        places: Where they lie.

    Raises:
        ValueError: `num_shards` is not 0, `coder` is not of bytes, or the records were
            to be compressed.
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
        image: ImageOptions,
        urls: UrlOptions = UrlOptions(),  # noqa: B008  # frozen
        damage: str = "",
        staging: str = "",
        finished: str = "",
        quarantine_bytes: bool = True,
        versions: tuple[tuple[str, str], ...] = (),
        pool: LocalPool | None = None,
    ):
        if num_shards:
            raise ValueError(
                f"num_shards received {num_shards}; the plan chooses shards: leave it 0."
            )
        super().__init__(file_path_prefix, coder, file_name_suffix)
        self.options = WriteOptions(
            image=image,
            urls=urls,
            damage=damage,
            quarantine_bytes=quarantine_bytes,
            versions=versions,
        )
        self._sink = BalancedSink(
            file_path_prefix,
            coder,
            file_name_suffix,
            shard_name_template,
            compression_type,
            staging=staging,
            finished=finished,
            options=self.options,
            pool=pool,
        )
        self.places = self._sink.places

    def expand(self, units: beam.PCollection) -> WrittenShards:
        written = super().expand(units)  # str
        tagged = written | "TagRejects" >> beam.FlatMap(_with_tag).with_outputs(
            "rejects", main="files"
        )
        return WrittenShards(tagged.files, tagged.rejects)
