"""`WriteBalancedTFRecord`: Beam's `WriteToTFRecord` for shards that a plan has chosen."""

from __future__ import annotations

import apache_beam as beam

from beam_pipeline.images.process_pool import LocalPool
from beam_pipeline.options import ImageOptions, UrlOptions
from beam_pipeline.shards.places import WriteOptions
from beam_pipeline.shards.sink import BalancedSink


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

        image = bp.ImageOptions(height_px=128, width_px=128)
        with beam.Pipeline("FnApiRunner") as pipeline:
            listed = pipeline | bp.ListImages(bp.InputOptions("photos"))
            planned = listed.batches | bp.AssignSplits() | bp.PlanShards(image=image)
            paths = planned.units | bp.WriteBalancedTFRecord("out/set-", image=image)
            paths | beam.Map(print)  # out/set-train-00000-of-00016 ...

    An image that cannot become a record leaves a hole in its shard, and is kept with the reason and
    its bytes in `quarantine/` beside the shards, a file for each shard that rejected some. To have
    holes filled from other shards, and a manifest, give `staging` and let `CommitShards` follow. As
    of `WriteToTFRecord`, files that have the names of these shards are replaced, and others with
    the prefix stay. Records are never compressed: JPEG does not shrink, and nobody could seek.

    Args:
        file_path_prefix: As for `WriteToTFRecord`, and so are the next two: a file is called
            prefix + split + template + suffix.
        file_name_suffix: For example `.tfrecord`.
        shard_name_template: As `-SSSSS-of-NNNNN`.
        image: How pictures are encoded.
        urls: How images at http:// and https:// addresses are fetched.
        damage: What becomes of JPEGs that decode, but that libjpeg warns about: "" to leave them
            unnoticed, `count`, or `reject`.
        staging: Folder where finished shards wait for `CommitShards`, and where a job that is
            run again finds them; "" to give them their names as soon as all are written.
        finished: With `staging`, a folder for the shards themselves until then.
        quarantine_bytes: Whether original bytes of rejected images are kept.
        versions: (library, version) pairs that must be the same on every worker.
        pool: Processes of this machine that write the shards; None where Beam's workers do, each
            of which then has some of its own.

    Attributes:
        options: How shards are written.
        places: Where they lie.

    Raises:
        ValueError: The suffix is that of compressed files.
    """

    def __init__(
        self,
        file_path_prefix: str,
        *,
        file_name_suffix: str = "",
        shard_name_template: str | None = None,
        image: ImageOptions,
        urls: UrlOptions = UrlOptions(),  # noqa: B008  # frozen
        damage: str = "",
        staging: str = "",
        finished: str = "",
        quarantine_bytes: bool = True,
        versions: tuple[tuple[str, str], ...] = (),
        pool: LocalPool | None = None,
    ):
        super().__init__(file_path_prefix, file_name_suffix=file_name_suffix)
        self.options = WriteOptions(
            image=image,
            urls=urls,
            damage=damage,
            quarantine_bytes=quarantine_bytes,
            versions=versions,
        )
        self._sink = BalancedSink(
            file_path_prefix,
            file_name_suffix,
            shard_name_template,
            staging=staging,
            finished=finished,
            options=self.options,
            pool=pool,
        )
        self.places = self._sink.places
