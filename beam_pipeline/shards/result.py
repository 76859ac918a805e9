"""What is known of a written shard: for the commit, for a resumed job, for the report."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from imageshards.form import loads, of_type
from imageshards.index import IndexRows

if TYPE_CHECKING:  # the commit needs no Pillow
    from imageshards.images.encode import EncodedImage

SIZE_EDGES_PX = [0, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192]
BYTES_EDGES = [0, *(1000 * 2**i for i in range(14))]
# The format of an original that was a record.
COPIED = "TFRECORD"
# Every 16th record of a shard counts towards the mean and deviation of pixels.
PIXEL_SAMPLE = 16


@dataclasses.dataclass(frozen=True)
class Reject:
    """An image that did not become a record: a row of the quarantine."""

    key: str
    uri: str
    label: str
    split: str
    reason: str
    stage: str
    message: str


@dataclasses.dataclass
class ShardStats:
    """Counts over the accepted images of a shard; whole numbers, so any order gives the same.

    Attributes:
        formats: File format of the original → images.
        notes: What was noticed while decoding → images.
        source_width_px, source_height_px, record_bytes: Histograms over `SIZE_EDGES_PX` and
            `BYTES_EDGES`.
        pixel_sums: For each channel [pixels, sum, sum of squares] of the sampled records.
        sources: Number of the input, as text → records from it.
    """

    formats: dict[str, int] = dataclasses.field(default_factory=dict)
    notes: dict[str, int] = dataclasses.field(default_factory=dict)
    source_width_px: list[int] = dataclasses.field(default_factory=lambda: [0] * len(SIZE_EDGES_PX))
    source_height_px: list[int] = dataclasses.field(
        default_factory=lambda: [0] * len(SIZE_EDGES_PX)
    )
    record_bytes: list[int] = dataclasses.field(default_factory=lambda: [0] * len(BYTES_EDGES))
    pixel_sums: list[list[int]] = dataclasses.field(default_factory=list)
    sources: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(
        self,
        source: int,
        record_bytes: int,
        sums: Iterable[Iterable[int]],
        encoded: EncodedImage | None,
    ) -> None:
        """Counts one accepted image.

        Args:
            source: Number of its input.
            record_bytes: Size of its record's payload.
            sums: Of its pixels, if it is one of the sample.
            encoded: The picture; None for a copied record, whose original is not known.
        """
        _add(self.sources, str(source))
        _add(self.formats, encoded.source_format if encoded else COPIED)
        _count(self.record_bytes, BYTES_EDGES, record_bytes)
        if encoded:
            for note in encoded.notes:
                _add(self.notes, note)
            _count(self.source_width_px, SIZE_EDGES_PX, encoded.source_width_px)
            _count(self.source_height_px, SIZE_EDGES_PX, encoded.source_height_px)
        self._add_pixels([list(channel) for channel in sums])

    def merge(self, other: ShardStats) -> None:
        """Adds the counts of another shard."""
        for name in ("formats", "notes", "sources"):
            for key, count in getattr(other, name).items():
                _add(getattr(self, name), key, count)
        for name in ("source_width_px", "source_height_px", "record_bytes"):
            pairs = zip(getattr(self, name), getattr(other, name), strict=True)
            setattr(self, name, [a + b for a, b in pairs])
        self._add_pixels(other.pixel_sums)

    def _add_pixels(self, sums: list[list[int]]) -> None:
        if not self.pixel_sums:
            self.pixel_sums = [[0, 0, 0] for _ in sums]
        for mine, theirs in zip(self.pixel_sums, sums, strict=False):
            for i, value in enumerate(theirs):
                mine[i] += value

    def check(self) -> None:
        """Raises ValueError for counts that are of other histograms or channels."""
        lengths = [len(self.source_width_px), len(self.source_height_px), len(self.record_bytes)]
        if lengths != [len(SIZE_EDGES_PX), len(SIZE_EDGES_PX), len(BYTES_EDGES)]:
            raise ValueError(f"its histograms have {lengths} bins")
        if any(len(sums) != 3 or not sums[0] for sums in self.pixel_sums):
            raise ValueError("its sums of pixels are none")

    def mean_and_std(self) -> tuple[list[float], list[float]]:
        """Per channel, of pixels scaled to 0..1."""
        means, deviations = [], []
        for pixels, total, squares in self.pixel_sums:
            mean = total / pixels
            variance = max(0.0, (squares * pixels - total * total) / (pixels * pixels))
            means.append(round(mean / 255, 6))
            deviations.append(round(variance**0.5 / 255, 6))
        return means, deviations


def merge_stats(found: Iterable[ShardStats]) -> ShardStats:
    """Sum of counts."""
    total = ShardStats()
    for stats in found:
        total.merge(stats)
    return total


def _add(counts: dict[str, int], name: str, count: int = 1) -> None:
    counts[name] = counts.get(name, 0) + count


def _count(bins: list[int], edges: list[int], value: int) -> None:
    bins[bisect.bisect_right(edges, value) - 1] += 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardResult:
    """All that is known of a written shard; kept beside it, as JSON, when it is finished.

    Attributes:
        name: Of the shard: the part of its file's name between prefix and suffix.
        group: Shards of one group are kept even with each other: "" or a class name.
        num_bytes, sha256: Of the file.
        classes: Class name → records.
        num_rejects: Its images that were rejected.
        staged: Whether its bytes are in the staging folder, not in their final place.
        digest: Of everything its bytes depend on; tells finished work from stale work.
        rows: Of its records, in order: they become its part of `index/`.
        read_bytes: Bytes of originals that were read.
        damaged: Key of an image that libjpeg warns about → its warning, where that was looked for.
        rejects_bytes: Size of the file with the rejected originals.
        run_id: Of the run that wrote it.
        stored: Version of its object in a store, by which an earlier run's is known again.
        reused: Whether an earlier run had written it.
        unversioned: Its images that were listed without size and time: those that an image table
            names in a store or on the web. Whether one was replaced since is not known.
    """

    name: str
    split: str
    group: str
    num_records: int
    num_bytes: int
    sha256: str
    classes: dict[str, int]
    num_rejects: int
    staged: bool = True
    digest: str
    rows: IndexRows
    read_bytes: int
    rejects: list[Reject]
    stats: ShardStats
    damaged: dict[str, str] = dataclasses.field(default_factory=dict)
    rejects_bytes: int = 0
    run_id: str = ""
    stored: str = ""
    reused: bool = False
    unversioned: int = 0

    @property
    def num_images(self) -> int:
        """Images of the shard, rejected ones included."""
        return self.num_records + self.num_rejects

    def without_rows(self) -> ShardResult:
        """All but the rows, which are read again where they are needed.

        One process sees the results of all shards, and would hold a row for each image.
        """
        return dataclasses.replace(self, rows=IndexRows())

    def without_details(self) -> ShardResult:
        """What the commit plans by: of a size that does not grow with the shard's."""
        return dataclasses.replace(
            self, rows=IndexRows(), rejects=[], stats=ShardStats(), damaged={}
        )

    def to_json(self) -> str:
        """The text of the file beside a finished shard."""
        rest = dataclasses.asdict(self.without_rows())  # it would copy every value of every row
        return json.dumps(rest | {"rows": vars(self.rows)})

    @classmethod
    def from_json(cls, text: str) -> ShardResult:
        """Raises ValueError for a text that is no result."""
        fields = loads(text, _RESULT)
        try:
            fields["rejects"] = [Reject(**reject) for reject in fields["rejects"]]
            fields["stats"] = ShardStats(**fields["stats"])
            fields["rows"] = IndexRows(**fields["rows"])
            result = cls(**fields)
        except TypeError as e:  # a key that this version does not know
            raise ValueError(str(e)) from e
        result.stats.check()
        result.rows.check(result.num_records)
        return result


_RESULT = of_type(ShardResult)


def count_classes(record_classes: Iterable[str]) -> dict[str, int]:
    """Class name → records, by name."""
    return dict(sorted(collections.Counter(record_classes).items()))
