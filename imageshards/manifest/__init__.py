"""The names and the content of a dataset: a folder with shards and, written last, manifest.json.

The structs are checked when they are decoded, because a manifest may come from a stranger: file
names stay in the folder of the dataset, and numbers are counts. `format_version` fixes the keys; a
later release may add keys, which this release ignores.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from imageshards import bounds, storage
from imageshards.example import Dtype
from imageshards.tfrecord import FRAME_BYTES
from imageshards.typed import Whole

# Files and folders of a dataset.
MANIFEST_NAME = "manifest.json"
TRANSFORM_NAME = "transform"
QUARANTINE_NAME = "quarantine"
REJECTS_NAME = "rejects.jsonl"
REPORT_NAME = "report"
INDEX_NAME = "index"
CROISSANT_NAME = "croissant.json"
TFDS_FEATURES_NAME = "features.json"
TFDS_INFO_NAME = "dataset_info.json"
DUPLICATES_NAME = "duplicates"
PAGE_NAME = "index.html"  # in the folder of the report
# Only an unfinished build has this folder in its output.
STAGING_NAME = ".staging"
LOCK_NAME = "lock"  # in the staging folder; the job that writes the output holds it
REPLACED_NAME = "replaced"  # in the staging folder; the dataset that a build replaces

# A user who asks for one name of a line accepts any name of that line. `test` is no name for
# validation: a test split measures a model that was chosen without the test split.
TRAIN_NAMES = ("train", "training")
VALIDATION_NAMES = ("validation", "val", "valid")
# Folders and files with these names hold a split.
SPLIT_NAMES = {*TRAIN_NAMES, *VALIDATION_NAMES, "dev", "eval", "evaluation", "test", "testing"}

# The name of a split becomes part of file names.
SPLIT_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")
SHARD_NAME = re.compile(r"(\w+)-(\d{5})-of-(\d{5})\.tfrecord")  # split, number, total

IMAGE_FEATURE = "image/encoded"
LABEL_FEATURE = "image/class/label"
LABELS_FEATURE = "image/class/labels"
CLASS_FEATURE = "image/class/text"
FILENAME_FEATURE = "image/filename"
SHA256_FEATURE = "image/key/sha256"


def tfds_labels_name(feature: str) -> str:
    """Returns the name of the file in which TFDS keeps the class names of a feature."""
    return f"{feature.replace('/', '.')}.labels.txt"


# A dataset consists of these folders and files, of its manifest, and of shards (`SHARD_NAME`). A
# build with --overwrite removes all of them that it does not write again.
DATASET_FOLDERS = (INDEX_NAME, TRANSFORM_NAME, QUARANTINE_NAME, REPORT_NAME)
COMPANION_NAMES = (
    CROISSANT_NAME, TFDS_FEATURES_NAME, TFDS_INFO_NAME,
    tfds_labels_name(LABEL_FEATURE), tfds_labels_name(LABELS_FEATURE),
)  # fmt: skip

# The number of labels per image, which `build --label` sets.
ONE, NONE, SEVERAL = "one", "none", "several"

# Columns with this prefix hold an entry for each box: its class, and its four sides from 0 to 1.
OBJECT_PREFIX = "image/object/"
BOX_CLASS_FEATURE = f"{OBJECT_PREFIX}class/text"
BOX_LABEL_FEATURE = f"{OBJECT_PREFIX}class/label"
BOX_FEATURES = tuple(f"{OBJECT_PREFIX}bbox/{side}" for side in ("xmin", "xmax", "ymin", "ymax"))

# Remedies for a damaged dataset.
BUILD_AGAIN = "build the dataset again by imageshards build --overwrite"
ADOPT_AGAIN = "describe the TFRecords again by imageshards adopt"

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]  # neither infinite nor NaN
Counts = dict[str, Whole]


def is_plain(name: str) -> bool:
    """Returns whether a name leads to a file in its folder and nowhere else."""
    is_one = re.fullmatch(r"[^./\\][^/\\]*", name) is not None and name.isprintable()
    return is_one and len(name.encode()) <= bounds.MAX_NAME_BYTES


class File(Struct, frozen=True):
    """A file of the dataset that is neither a shard nor an index."""

    num_bytes: Whole
    sha256: Sha256


class IndexFile(Struct, frozen=True):
    """The index of a shard; `file` is its path below the dataset, `index/NAME`."""

    file: str
    num_bytes: Whole
    sha256: Sha256

    def __post_init__(self) -> None:
        folder, _, name = self.file.partition("/")
        if folder != INDEX_NAME or not is_plain(name):
            raise ValueError(f"file is {self.file!r}; expected a file in {INDEX_NAME}/")


class Shard(Struct, frozen=True, omit_defaults=True):
    """One TFRecord file.

    Attributes:
        file: The name of the file.
        num_records, num_bytes, sha256: The number of records, and the size and SHA-256 of the file.
        classes: Class name → number of records with the class.
        index: The file of the index.
        folder: The folder in which `imageshards adopt` left the file; "" for the dataset's folder.
    """

    file: str
    num_records: Whole
    num_bytes: Whole
    sha256: Sha256
    classes: Counts
    index: IndexFile
    folder: str = ""

    def __post_init__(self) -> None:
        is_name = is_plain(self.file) and self.file not in DATASET_FOLDERS
        # A shard with one of these endings would replace a file of the dataset.
        if not is_name or self.file.endswith((".json", ".txt")):
            raise ValueError(f"file is {self.file!r}; expected the plain name of a shard")
        if "\0" in self.folder or {".", ".."} & {*self.folder.split("/")}:
            raise ValueError(f"folder is {self.folder!r}; expected a folder, without . and ..")
        # Readers allocate arrays for num_records items, so the file must be able to hold them.
        if self.num_records * FRAME_BYTES > self.num_bytes:
            most = f"expected no more than {self.num_bytes} bytes can hold"
            raise ValueError(f"num_records is {self.num_records}; {most}")

    @property
    def name(self) -> str:
        """The path of the file with its folder, which differs for each shard of a dataset."""
        return storage.join(self.folder, self.file) if self.folder else self.file


class Split(Struct, frozen=True):
    """The shards of a split, in order, and the number of their records."""

    num_records: Whole
    shards: Annotated[list[Shard], Meta(max_length=bounds.MAX_SHARDS)]


class FeatureSpec(Struct, frozen=True):
    """One feature of the records.

    Attributes:
        dtype: `int64`, `float32` or `string`.
        shape: `()` for a single value, `(3,)` for a fixed length, None for a variable length.
    """

    dtype: Dtype
    shape: tuple[Whole, ...] | None

    def __post_init__(self) -> None:
        shape = self.shape or ()
        if len(shape) > bounds.MAX_DIMENSIONS or math.prod(shape) > bounds.MAX_RECORD_BYTES:
            raise ValueError("shape is too large; expected a shape that fits into a record")

    @property
    def form(self) -> str:
        """The shape as a phrase."""
        return "variable length" if self.shape is None else f"shape {list(self.shape)}"


class Image(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options that made the pictures; None for options that are unknown.

    Attributes:
        size: Pixels of both sides, or (height, width); None if sizes vary.
        mode: The resize mode; for adopted pictures `exact` means one size, `none` several.
        mean, std: One number per channel, for pixels scaled to 0..1.
        filter, quality, ...: The options of `ImageOptions` with these names.
    """

    # With bounds msgspec 0.22 would confuse the two types of the union.
    size: int | tuple[int, ...] | None
    mode: str
    filter: str | None = None
    quality: int | None = None
    subsampling: str | None = None
    colorspace: str | None = None
    background: tuple[Annotated[int, Meta(ge=0, le=255)], ...] | None = None
    icc: str | None = None
    only_shrink: bool | None = None
    max_pixels: int | None = None
    max_bytes: int | None = None
    bbox_frame: str | None = None
    channels: Literal[1, 3] | None = None
    mean: tuple[Number, ...] | None = None
    std: tuple[Number, ...] | None = None

    def __post_init__(self) -> None:
        sides = (self.size,) * 2 if isinstance(self.size, int) else self.size
        allowed = range(1, bounds.MAX_SIDE_PX + 1)
        if sides and not (len(sides) == 2 and all(side in allowed for side in sides)):
            raise ValueError(f"size is {self.size}; expected one side or two, in pixels")


class Source(Struct, frozen=True):
    """Counts of the accepted originals.

    Attributes:
        formats: Picture format → originals.
        notes: Change that decoding made → originals.
        missing: Feature → records in which the feature is NaN.
    """

    formats: Counts = {}
    notes: Counts = {}
    missing: Counts = {}


class Input(Struct, frozen=True):
    """One input of a build.

    Attributes:
        path: The path or URI of the input.
        fingerprint: The fingerprint of a dataset; None for images.
        num_records: The records that were made of the input.
    """

    path: str
    fingerprint: str | None
    num_records: Whole


class Roles(Struct, frozen=True, omit_defaults=True):
    """The roles of features in a record.

    Attributes:
        image, label, filename, text: The features that hold the picture, the label, the file name
            and the class name; None without one.
        hot: Features that hold a 0 or 1 for each class, in place of `label`.
        labels: The number of labels of an adopted record.
    """

    image: str
    label: str | None
    filename: str | None
    text: str | None
    hot: tuple[str, ...] = ()
    labels: Literal["one", "none", "several"] | None = None

    @property
    def label_features(self) -> tuple[str, ...]:
        """The features that hold the labels of a record; () without labels."""
        return self.hot or ((self.label,) if self.label else ())


class Manifest(Struct, frozen=True, kw_only=True):
    """The content of `manifest.json`.

    Attributes:
        format_version: The version of the format.
        splits: Split → its shards.
        classes: Class names, in the order of their ids.
        first_label: The label of the first class in adopted records; None for 0.
        features: Feature → its dtype and shape.
        image: The options that made the pictures.
        listed: Number of listed images: records and rejects.
        rejects: Reason → images that did not become a record.
        skipped: Reason → files that were not listed.
        source: Counts of the originals.
        fingerprint: A hash of the records and of their description (`fingerprint_of`).
        inputs: The inputs of the build.
        options: The options of the build, for people; commands read only `Origin`.
        versions: Library → its version.
        warnings: Sentences for people.
        copies: Counts of images that equal another image, in all and between splits.
        adopted: The roles of features in adopted records; None for a build.
        files: Path below the dataset → each file that is neither a shard nor an index.
        digest: SHA-256 of the rest (`digest_of`).
    """

    format_version: Literal[1]
    splits: dict[Annotated[str, Meta(pattern=rf"^{SPLIT_NAME.pattern}\Z")], Split]
    classes: list[str]
    first_label: Whole | None = None
    features: dict[str, FeatureSpec]
    image: Image
    listed: Whole
    rejects: Counts
    skipped: Counts = {}
    source: Source = Source()
    fingerprint: str
    inputs: list[Input] = []
    options: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    warnings: list[str] = []
    copies: Counts = {}
    adopted: Roles | None = None
    files: dict[str, File] = {}
    digest: str = ""

    def __post_init__(self) -> None:
        if len({*self.classes}) < len(self.classes):
            raise ValueError("classes names a class twice; expected each class once")
        most = min(bounds.MAX_CLASSES, bounds.MAX_CLASSES_OF_SPLITS // max(1, len(self.splits)))
        if len(self.classes) > most:
            raise ValueError(f"classes has {len(self.classes)} items; expected up to {most}")
        names: set[str] = set()
        for _, shard in self.shards():
            if shard.name in names:
                raise ValueError(f"splits has the shard {shard.name!r} twice; expected it once")
            names.add(shard.name)
            # A folder may lead out of the dataset, which only adopted datasets need.
            if shard.folder and not self.adopted:
                raise ValueError(f"the shard {shard.name!r} has a folder; expected none in a build")
        if self.first_label is not None and not self.adopted:
            raise ValueError("first_label is there; expected no such key in a build")
        for path in self.files:
            if not all(map(is_plain, path.split("/"))):
                raise ValueError(f"files has {path!r}; expected a file in the dataset's folder")

    def to_builtins(self) -> dict[str, Any]:
        """Returns the JSON object to write, with the keys in the order of the fields."""
        # An absent key and None mean the same; shorter files are easier to read.
        return {key: value for key, value in msgspec.to_builtins(self).items() if value is not None}

    def shards(self) -> Iterator[tuple[str, Shard]]:
        """Yields (split, shard) for every shard, in order."""
        for name, split in self.splits.items():
            for shard in split.shards:
                yield name, shard

    @property
    def num_records(self) -> int:
        """The number of records in all splits."""
        return sum(split.num_records for split in self.splits.values())

    @property
    def label(self) -> str:
        """The number of labels of each record: `ONE`, `NONE` or `SEVERAL`."""
        if self.adopted:
            return self.adopted.labels or ONE
        if LABEL_FEATURE in self.features:
            return ONE
        if LABELS_FEATURE in self.features:
            return SEVERAL
        # Readers of records accept a manifest without label features; classes mean one label.
        return ONE if self.classes else NONE

    @property
    def roles(self) -> Roles:
        """The features that hold the picture, the labels, the file name and the class name."""
        if self.adopted:
            return self.adopted
        label = {ONE: LABEL_FEATURE, SEVERAL: LABELS_FEATURE}.get(self.label)
        text = None if self.label == NONE else CLASS_FEATURE
        return Roles(IMAGE_FEATURE, label, FILENAME_FEATURE, text)

    @property
    def make_again(self) -> str:
        """The remedy for files that differ from the manifest and cannot be copied again."""
        return ADOPT_AGAIN if self.adopted else BUILD_AGAIN


# The features of every record with one label, whatever its extra columns.
RECORD_FEATURES = {
    IMAGE_FEATURE: FeatureSpec("string", ()),
    "image/format": FeatureSpec("string", ()),
    "image/height": FeatureSpec("int64", ()),
    "image/width": FeatureSpec("int64", ()),
    "image/channels": FeatureSpec("int64", ()),
    "image/colorspace": FeatureSpec("string", ()),
    LABEL_FEATURE: FeatureSpec("int64", ()),
    CLASS_FEATURE: FeatureSpec("string", ()),
    FILENAME_FEATURE: FeatureSpec("string", ()),
    SHA256_FEATURE: FeatureSpec("string", ()),
}
RECORD_NAMES = frozenset({*RECORD_FEATURES, LABELS_FEATURE})
"""An extra column cannot have one of these names."""


def record_features(label: str) -> dict[str, FeatureSpec]:
    """Returns the features of every record that a build writes, by the number of labels."""
    found = dict(RECORD_FEATURES)
    if label != ONE:
        del found[LABEL_FEATURE], found[CLASS_FEATURE]
    if label == SEVERAL:
        found[LABELS_FEATURE] = FeatureSpec("int64", None)
        found[CLASS_FEATURE] = FeatureSpec("string", None)
    return found
