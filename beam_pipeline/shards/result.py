"""What is known of a written shard: for the commit, for a resumed job, for the report."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from beam_pipeline.planning.refs import Label, names_of
from imageshards.index import index_file
from imageshards.manifest import ONE, File, IndexFile, Reject, Shard
from imageshards.typed import Whole

if TYPE_CHECKING:  # the commit needs no Pillow
    from imageshards.images.encode import EncodedImage

# The format of an original that was a record.
COPIED = "TFRECORD"
# Every 16th record of a shard counts towards the mean and deviation of pixels.
PIXEL_SAMPLE = 16
_PIXEL_SUMS = ("pixels", "sums", "squares")


class ShardStats(msgspec.Struct):
    """Counts over the images of a shard; whole numbers, so any order of adding up gives the same.

    Attributes:
        counts: What is counted → its value, as text → how many:

            - `formats` of originals, and `notes` that were made while they were decoded;
            - `sources`: numbers of the inputs that records are from;
            - `pixels`, `sums`, `squares`: channels, with the pixels of the sampled records, their
              sum, and the sum of their squares;
            - `missing`: features, with the records where the feature is one NaN;
            - `rejects`: reasons. All else is counted of accepted images alone.
    """

    counts: dict[str, dict[str, Whole]] = {}

    def add(self, source: int, sums: Iterable[Iterable[int]], encoded: EncodedImage | None) -> None:
        """Counts one accepted image.

        Args:
            source: Number of its input.
            sums: For each channel pixels, sum and sum of squares, if it is one of the sample.
            encoded: The picture; None for a copied record, whose original is not known.
        """
        self.count("sources", str(source))
        self.count("formats", encoded.source_format if encoded else COPIED)
        if encoded:
            for note in encoded.notes:
                self.count("notes", note)
        for channel, values in enumerate(sums):
            for name, value in zip(_PIXEL_SUMS, values, strict=True):
                self.count(name, str(channel), value)

    def count(self, name: str, value: str, number: int = 1) -> None:
        """Adds to one of the counts."""
        of_name = self.counts.setdefault(name, {})
        of_name[value] = of_name.get(value, 0) + number

    def of(self, name: str) -> dict[str, int]:
        """One of the counts, the largest first."""
        return most_first(self.counts.get(name, {}))

    def total(self, name: str) -> int:
        """The sum of one of the counts."""
        return sum(self.counts.get(name, {}).values())

    def mean_and_std(self) -> tuple[list[float], list[float]]:
        """Per channel, of pixels scaled to 0..1."""
        means, deviations = [], []
        for channel in sorted(self.counts.get("pixels", {})):
            pixels, total, squares = (
                self.counts.get(name, {}).get(channel, 0) for name in _PIXEL_SUMS
            )
            pixels = max(pixels, 1)
            variance = max(0.0, (squares * pixels - total * total) / (pixels * pixels))
            means.append(round(total / pixels / 255, 6))
            deviations.append(round(variance**0.5 / 255, 6))
        return means, deviations


def merge_stats(found: Iterable[ShardStats]) -> ShardStats:
    """Sum of counts."""
    total = ShardStats()
    for stats in found:
        for name, counts in stats.counts.items():
            for value, number in counts.items():
                total.count(name, value, number)
    return total


def most_first(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by their names, the largest first."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


class WrittenFile(File, frozen=True):
    """A file that was written.

    Attributes:
        version: The version of its object in a store; "" on a disk.
    """

    version: str = ""

    @property
    def entry(self) -> File:
        """The file as the manifest lists it."""
        return File(self.num_bytes, self.sha256)


class ShardResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that is known of a written shard; kept beside it, as JSON, when it is finished.

    Attributes:
        name: Of the shard: the part of its file's name between prefix and suffix.
        classes: Class name → records that have it.
        label: How many labels an image has: `ONE`, `NONE` or `SEVERAL`.
        num_rejects: Its images that were rejected.
        file: The shard itself.
        index: Its part of `index/` as long as no records move; None for a unit without features.
        rejects_file: The file with the rejected originals; None without any.
        staged: Whether its bytes are in the staging folder, not in their final place.
        digest: Of everything its bytes depend on; tells finished work from stale work.
        read_bytes: Bytes of originals that were read.
        run_id: Of the run that wrote it.
        reused: Whether an earlier run had written it.
    """

    name: str
    split: str
    num_records: Whole
    classes: dict[str, Whole]
    label: str = ONE
    num_rejects: Whole
    file: WrittenFile
    index: WrittenFile | None = None
    rejects_file: WrittenFile | None = None
    staged: bool = True
    digest: str
    read_bytes: Whole
    rejects: list[Reject]
    stats: ShardStats
    run_id: str = ""
    reused: bool = False

    @property
    def strata(self) -> dict[str, int]:
        """Records that are kept even over the shards, by class where images have one label."""
        return self.classes if self.label == ONE else {"": self.num_records}

    @property
    def num_images(self) -> int:
        """Images of the shard, rejected ones included."""
        return self.num_records + self.num_rejects

    def without_details(self) -> ShardResult:
        """What the commit plans by: of a size that does not grow with the shard's.

        One process sees the results of all shards; rejects are read again where they are needed.
        """
        return msgspec.structs.replace(self, rejects=[], stats=ShardStats())

    def entry(self, file: str, index: IndexFile | None = None) -> Shard:
        """Returns the entry of the shard in the manifest.

        Args:
            file: The name of the file.
            index: Its index where records have moved; None for the one that was written.

        Raises:
            ValueError: The shard was written without an index.
        """
        if index is None:
            if self.index is None:
                raise ValueError(f"{self.name} has no index: PlanShards was given no features")
            index = IndexFile(index_file(file), self.index.num_bytes, self.index.sha256)
        return Shard(
            file=file,
            num_records=self.num_records,
            num_bytes=self.file.num_bytes,
            sha256=self.file.sha256,
            classes=self.classes,
            index=index,
        )


def count_classes(labels: Iterable[Label | list[str]]) -> dict[str, int]:
    """Class name → records that have it, by name."""
    names = (name for label in labels for name in names_of(label))
    return dict(sorted(collections.Counter(names).items()))
