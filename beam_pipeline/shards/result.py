"""Describes a written shard: for the commit and the report, and for a job that resumes."""

from __future__ import annotations

import collections
import dataclasses
import errno
import hashlib
import tempfile
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from beam_pipeline.options import ShardOptions
from beam_pipeline.planning.refs import Label, ShardUnit, names_of
from beam_pipeline.shards.places import ShardPlaces
from imageshards import storage
from imageshards.errors import OutputError
from imageshards.index import index_file
from imageshards.manifest import ONE, File, IndexFile, Shard
from imageshards.manifest.file import Reject
from imageshards.typed import Whole, decode

if TYPE_CHECKING:  # the commit needs no Pillow
    from imageshards.images.encode import EncodedImage

# The name under which a copied record is counted among the formats of originals.
COPIED = "TFRECORD"
# Note about a picture whose boxes, or some of them, were dropped, as they show no part of it.
BOXES_DROPPED = "boxes_dropped"
# Every 16th record of a shard counts towards the mean and deviation of pixels.
PIXEL_SAMPLE = 16
# Errors of the output that would stop all shards, not only this one.
_FATAL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG}
_PIXEL_SUMS = ("pixels", "sums", "squares")


class ShardStats(msgspec.Struct):
    """Counts over the images of a shard, in whole numbers, whose sum depends on no order.

    Attributes:
        counts: Name of a count → value, as text → number. All but `rejects` count accepted images:

            - `formats` of originals, and `notes` of their decoder and about their boxes;
            - `sources`: numbers of the inputs;
            - `pixels`, `sums`, `squares`: per channel the number of pixels in the sampled records,
              the sum of pixels, and the sum of their squares;
            - `missing`: features, with the number of records in which the feature is one NaN;
            - `rejects`: reasons.
    """

    counts: dict[str, dict[str, Whole]] = {}

    def add(self, source: int, sums: Iterable[Iterable[int]], encoded: EncodedImage | None) -> None:
        """Counts one accepted image of the input `source`.

        `sums` has for each channel pixels, sum and sum of squares; it is empty outside the sample.
        `encoded` is None for a copied record, whose original is unknown.
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
        of_name = self.counts.setdefault(name, {})
        of_name[value] = of_name.get(value, 0) + number

    def of(self, name: str) -> dict[str, int]:
        """Returns the values of a count with their numbers, the largest first."""
        return most_first(self.counts.get(name, {}))

    def total(self, name: str) -> int:
        return sum(self.counts.get(name, {}).values())

    def mean_and_std(self) -> tuple[list[float], list[float]]:
        """Returns mean and standard deviation per channel, of pixels scaled to 0..1."""
        means, deviations = [], []
        for channel in sorted(self.counts.get("pixels", {})):
            pixels, total, squares = (
                self.counts.get(name, {}).get(channel, 0) for name in _PIXEL_SUMS
            )
            pixels = max(pixels, 1)
            # E[x²] - E[x]² in whole numbers, so that nothing is rounded before the division.
            variance = max(0.0, (squares * pixels - total * total) / (pixels * pixels))
            means.append(round(total / pixels / 255, 6))
            deviations.append(round(variance**0.5 / 255, 6))
        return means, deviations


def merge_stats(found: Iterable[ShardStats]) -> ShardStats:
    total = ShardStats()
    for stats in found:
        for name, counts in stats.counts.items():
            for value, number in counts.items():
                total.count(name, value, number)
    return total


def most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


class WrittenFile(File, frozen=True):
    version: str = ""  # version of the object in a store; "" on a disk

    @property
    def entry(self) -> File:
        """Returns the entry of the file in the manifest."""
        return File(self.num_bytes, self.sha256)


class ShardResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Description of a written shard, stored as JSON beside the shard when it is finished."""

    name: str  # part of the file's name between prefix and suffix
    split: str
    num_records: Whole
    classes: dict[str, Whole]  # class name → records with that class
    label: str = ONE  # how many labels an image has: `ONE`, `NONE` or `SEVERAL`
    num_rejects: Whole
    file: WrittenFile
    index: WrittenFile | None = None  # valid as long as no records move; None without features
    rejects_file: WrittenFile | None = None  # the rejected originals; None without any
    digest: str  # `unit_digest`, by which a later run knows whether the shard is valid
    read_bytes: Whole  # bytes of originals that were read
    msec: dict[str, Whole] = {}  # stage → time that the shard took in it, in milliseconds
    rejects: list[Reject]
    stats: ShardStats
    run_id: str = ""  # id of the run that wrote the shard
    reused: bool = False  # an earlier run wrote the shard

    @property
    def strata(self) -> dict[str, int]:
        """Counts of records that the commit evens out: by class if images have one label."""
        return self.classes if self.label == ONE else {"": self.num_records}

    @property
    def num_images(self) -> int:
        return self.num_records + self.num_rejects

    def without_details(self) -> ShardResult:
        """Returns the result for the commit, without the parts that grow with the shard."""
        # One process collects the results of all shards, and reads rejects when they are needed.
        return msgspec.structs.replace(self, rejects=[], stats=ShardStats())

    def entry(self, file: str, index: IndexFile | None = None) -> Shard:
        """Returns the entry of the shard in the manifest.

        Args:
            file: Name of the shard's file.
            index: The new index if records have moved; None for the index that was written.

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
    names = (name for label in labels for name in names_of(label))
    return dict(sorted(collections.Counter(names).items()))


def unit_digest(unit: ShardUnit, options: ShardOptions) -> str:
    """Returns a hash of everything that determines a shard's bytes."""
    # Everything is sorted, so that a new order of fields does not change the hash.
    image = sorted(dataclasses.asdict(options.image).items())
    digest = hashlib.sha256(repr((image, sorted(options.versions))).encode())
    digest.update(repr(options.quarantine_bytes).encode())
    features = unit.features and sorted(unit.features.items())
    digest.update(repr((unit.name, sorted(unit.class_ids.items()), features)).encode())
    for ref in unit.refs:
        columns = sorted(ref.columns.items()) if ref.columns else None
        where = (ref.offset_bytes, ref.source_bytes) if ref.offset_bytes >= 0 else None
        text = repr((*ref[:7], columns, where, ref.in_pixels, ref.box_labels))
        digest.update(text.encode("utf-8", "backslashreplace"))  # file names may have surrogates
    return digest.hexdigest()


def finished_result(name: str, places: ShardPlaces, digest: str) -> ShardResult | None:
    """Returns the result of an earlier run that wrote this shard, if its files are still whole."""
    try:
        result = read_result(name, places)
    except (OSError, OutputError):
        return None
    # Some rejects may be temporary, as a new attempt may read those images.
    if result.digest != digest or any(r.may_be_temporary for r in result.rejects):
        return None
    files = {
        places.staged_path(name): result.file,
        places.index_path(name): result.index,
        places.rejects_path(name): result.rejects_file,
    }
    if not all(file is None or _is_whole(path, file) for path, file in files.items()):
        return None
    return msgspec.structs.replace(result, reused=True)


def read_result(name: str, places: ShardPlaces) -> ShardResult:
    """Reads the result beside a finished shard; raises `OutputError` for another file."""
    try:
        result = decode(storage.read(places.result_path(name)), ShardResult)
        if result.name != name:
            raise ValueError(f"it is the result of {result.name!r}")
        return result
    except ValueError as e:
        raise OutputError(
            f"{places.result_path(name)!r}, in the folder of an unfinished build, is not the "
            f"result of a shard ({e})",
            remedy="delete it and give the same command again",
        ) from e


def write_result(result: ShardResult, places: ShardPlaces) -> None:
    """Writes the result beside its shard, which makes the shard finished."""
    storage.write(places.result_path(result.name), msgspec.json.encode(result))


def is_unchanged(path: str, file: WrittenFile) -> bool:
    """Returns whether a file has the bytes that were written."""
    found = storage.stat(path)
    if found is None or found.size_bytes != file.num_bytes:
        return False
    # The bytes of a version need not be read again.
    is_same = bool(found.version) and file.version == found.version
    return is_same or storage.sha256_of(path)[1] == file.sha256


def _is_whole(path: str, file: WrittenFile) -> bool:
    """Does the same for a file of an earlier run; a file that cannot be read is written again."""
    # After a power cut, a file of this machine may have its size and time, but not its bytes.
    if storage.is_local(path):
        file = msgspec.structs.replace(file, version="")
    try:
        return is_unchanged(path, file)
    except OSError:
        return False


def output_error(path: str, e: OSError) -> Exception:
    """Returns a sentence for a known error of the output or of a store, else `e` itself."""
    is_local = storage.is_local(path)
    if e.errno not in _FATAL and is_local:
        return e
    remedy = "make room or fix its permissions"
    if not is_local and e.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"make room in {tempfile.gettempdir()}, where a shard waits (TMPDIR is another)"
    return OutputError(
        argument="output",
        received=f"{path!r}, which cannot be written ({e.strerror or e})",
        remedy=f"{remedy}, then give the same command again: finished shards are kept",
    )
