"""What a build is asked to do: small frozen dataclasses, validated once."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from imageshards.errors import UserError

RESIZE_MODES = ("crop", "stretch", "pad", "shortest", "none")
FILTERS = ("bicubic", "bilinear", "box", "hamming", "lanczos", "nearest")
SUBSAMPLINGS = ("4:2:0", "4:2:2", "4:4:4")
COLORSPACES = ("rgb", "grey")
DATA_SET = "data_set"
TABLE = "table"
LAYOUTS = ("auto", "class_folders", "split_folders", "flat", TABLE, DATA_SET)
BBOX_FRAMES = ("stored", "upright")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq")
# Options of an image table alone.
COLUMN_FLAGS = (
    "image_column", "label_column", "key_column", "split_column", "group_column", "columns",
)  # fmt: skip
COMPRESSIONS = ("none", "gzip")
DAMAGE_CHECKS = ("", "count", "reject")
SHARD_BY = ("balanced", "class")
COLUMN_KINDS = ("int", "float", "string")
SCALINGS = ("none", "zscore", "minmax")
FIRST_LABELS = (0, 1)

# File names have five digits for it.
MAX_SHARDS = 99_999

_SPLIT_NAME = re.compile(r"[A-Za-z0-9_]+")
_WEB_ADDRESS = re.compile(r"https?://[^\s/]\S*")


def is_split_name(name: str) -> bool:
    """Whether `name` can name a split: it becomes part of file names."""
    return _SPLIT_NAME.fullmatch(name) is not None


def label_group(regex: re.Pattern[str]) -> str | int | None:
    """The group of --label_regex that captures the label: `label`, else the first other one."""
    if "label" in regex.groupindex:
        return "label"
    taken = {regex.groupindex.get("split"), regex.groupindex.get("group")}
    return next((i for i in range(1, regex.groups + 1) if i not in taken), None)


def _choice(flag: str, received: object, expected: tuple[str, ...]) -> None:
    if received not in expected:
        raise UserError(f"{flag} received {received!r}; expected one of {', '.join(expected)}.")


def _at_least(flag: str, received: float, least: float) -> None:
    if received < least:
        raise UserError(f"{flag} received {received}; expected at least {least}.")


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """How one picture becomes the JPEG of a record.

    Attributes:
        height_px, width_px: Target size; for `shortest` the shortest side becomes
            `height_px`; unused for `none`.
        resize_mode: One of `RESIZE_MODES`.
        filter: Resampling filter, one of `FILTERS`, antialiased as Pillow does.
        quality: JPEG quality, 1..100.
        subsampling: Chroma subsampling, one of `SUBSAMPLINGS`.
        colorspace: `rgb` (3 channels) or `grey` (1 channel).
        background: RGB, 0..255, under transparent pixels and around `pad`.
        only_shrink: Never enlarge a picture.
        max_pixels: Larger pictures are rejected before they are decoded.
        max_bytes: Larger files are rejected before they are read.
        bbox_frame: Whether given boxes are relative to the pixels as `stored`, or to
            the picture made `upright` by its EXIF orientation.
    """

    height_px: int = 256
    width_px: int = 256
    resize_mode: str = "crop"
    filter: str = "bicubic"
    quality: int = 90
    subsampling: str = "4:2:0"
    colorspace: str = "rgb"
    background: tuple[int, int, int] = (255, 255, 255)
    only_shrink: bool = False
    max_pixels: int = 100_000_000
    max_bytes: int = 64 * 1024 * 1024
    bbox_frame: str = "stored"

    def __post_init__(self) -> None:
        _choice("--resize_mode", self.resize_mode, RESIZE_MODES)
        _choice("--filter", self.filter, FILTERS)
        _choice("--subsampling", self.subsampling, SUBSAMPLINGS)
        _choice("--colorspace", self.colorspace, COLORSPACES)
        _choice("--bbox_frame", self.bbox_frame, BBOX_FRAMES)
        if (
            not 1
            <= min(self.height_px, self.width_px)
            <= max(self.height_px, self.width_px)
            <= 16384
        ):
            raise UserError(
                f"--image_size received {self.height_px}x{self.width_px}; expected 1 to 16384 "
                "pixels a side."
            )
        if self.resize_mode == "shortest" and self.height_px != self.width_px:
            raise UserError(
                f"--image_size received {self.height_px}x{self.width_px} with --resize_mode "
                "shortest; expected one number, the shortest side."
            )
        if not 1 <= self.quality <= 100:
            raise UserError(f"--quality received {self.quality}; expected 1 to 100.")
        _at_least("--max_image_mpx", self.max_pixels, 1)
        _at_least("--max_image_mb", self.max_bytes, 1)

    @property
    def channels(self) -> int:
        """Channels of every record's picture: 3 or 1."""
        return 3 if self.colorspace == "rgb" else 1


@dataclasses.dataclass(frozen=True)
class ColumnSpec:
    """One extra column of an image table.

    Attributes:
        name: Column name, and the feature's name in the record.
        kind: One of `COLUMN_KINDS`: int64, float32 or bytes in the record.
        shape: `()` scalar, `(k,)` fixed length, `None` variable length.
        scale: One of `SCALINGS`, for floats.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None = ()
    scale: str = "none"

    def __post_init__(self) -> None:
        if self.shape is not None and self.shape != () and self.shape[0] < 1:
            raise UserError(
                f"--columns {self.name} received the length {self.shape[0]}; expected at least 1, "
                "or [] for a variable length."
            )
        _choice(f"--columns {self.name}", self.kind, COLUMN_KINDS)
        _choice(f"--columns {self.name}", self.scale, SCALINGS)
        if self.scale != "none" and self.kind != "float":
            raise UserError(
                f"--columns {self.name} received scaling {self.scale!r} for a {self.kind} column; "
                "expected a float column."
            )

    def __str__(self) -> str:
        """As --columns takes it."""
        size = "" if self.shape == () else f"[{self.shape[0] if self.shape else ''}]"
        scale = "" if self.scale == "none" else f":{self.scale}"
        return f"{self.name}:{self.kind}{size}{scale}"


@dataclasses.dataclass(frozen=True)
class InputOptions:
    """Where references come from and how a label is found.

    Attributes:
        fingerprint: Of a finished data set, when the build began.
        read_from: Folder that a data set is read from, while the build replaces the one at `input`.
        keeps_splits: Whether the records of a data set keep their splits.
        record_columns: Extra columns of a data set that are analysed with those of photos.
        tells_given_splits: Whether a person is to hear of splits that photos bring, as --splits was
            given, which is not for them.
    """

    input: str
    layout: str = "auto"
    label_regex: str | None = None
    image_column: str | None = None
    key_column: str | None = None
    label_column: str | None = None
    split_column: str | None = None
    group_column: str | None = None
    columns: tuple[ColumnSpec, ...] | None = None
    extensions: tuple[str, ...] = (
        ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff",
    )  # fmt: skip
    fingerprint: str = ""
    read_from: str = ""
    keeps_splits: bool = True
    record_columns: tuple[ColumnSpec, ...] = ()
    tells_given_splits: bool = False

    @property
    def location(self) -> str:
        """Where it is read."""
        return self.read_from or self.input

    def __post_init__(self) -> None:
        _choice("--layout", self.layout, LAYOUTS)
        if self.label_regex is not None:
            try:
                regex = re.compile(self.label_regex)
            except re.error as e:
                raise UserError(
                    f"--label_regex received {self.label_regex!r}, which is no regular expression "
                    f"({e})."
                ) from e
            if label_group(regex) is None:
                raise UserError(
                    f"--label_regex received {self.label_regex!r}; expected a group that captures "
                    "the label, for example '^([a-z]+)\\.'."
                )
            if self.layout in ("class_folders", TABLE, DATA_SET):
                raise UserError(
                    f"--label_regex was given with --layout {self.layout}, which has labels of "
                    "its own; leave one of them out."
                )


@dataclasses.dataclass(frozen=True)
class UrlOptions:
    """How images at `http://` and `https://` addresses are fetched.

    Attributes:
        url_timeouts: Seconds to connect, between two pieces of an answer, and for an image in
            all, with its redirects and retries.
        url_retries: Further attempts after 429, 5xx, a time-out or a broken connection.
        url_requests_per_host: Requests that one process sends to a host at the same time.
        allow_private_hosts: Whether addresses that are not of the internet are connected to.
    """

    url_timeouts: tuple[float, float, float] = (10.0, 30.0, 120.0)
    url_retries: int = 3
    url_requests_per_host: int = 8
    allow_private_hosts: bool = False

    def __post_init__(self) -> None:
        _at_least("--url_retries", self.url_retries, 0)
        _at_least("--url_requests_per_host", self.url_requests_per_host, 1)


@dataclasses.dataclass(frozen=True)
class CopiedColumns:
    """Extra columns that records of data sets bring.

    Attributes:
        transform: Folder of the exported transform that made them.
        as_given: Whether they are as some input had them, neither scaled nor transformed.
    """

    transform: str
    as_given: bool


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """Splits, shards and the class order.

    Attributes:
        splits: Split name → fraction; fractions sum to 1. Ignored for images whose split
            the input gives.
        num_shards: Split name → shards; the key `*` stands for every split; empty for
            a number derived from `shard_mb`.
        shard_mb: Target size of a shard, in MB (10^6 bytes). Shards become smaller where a split
            would have fewer than 16 of them, down to 32 records each.
        shard_by: `balanced`, or `class` for files of one class each.
        salt: Changes every hash: another split and another order.
        class_names: Given class order; a label outside is an error.
        pinned_classes: Class order of the data set being rebuilt; new labels follow.
        allow_one_class: Whether a single class is accepted.
        first_label: The label of the first class in records and in `transform/`: 0, or 1 for
            readers whose label 0 is a background without pictures.
    """

    splits: Mapping[str, float] = dataclasses.field(
        default_factory=lambda: {"train": 0.9, "validation": 0.1}
    )
    num_shards: Mapping[str, int] = dataclasses.field(default_factory=dict)
    shard_mb: float = 128.0
    shard_by: str = "balanced"
    salt: str = "imageshards"
    class_names: tuple[str, ...] | None = None
    pinned_classes: tuple[str, ...] = ()
    allow_one_class: bool = False
    first_label: int = 0

    def __post_init__(self) -> None:
        _choice("--shard_by", self.shard_by, SHARD_BY)
        for name, fraction in self.splits.items():
            if not is_split_name(name):
                raise UserError(
                    f"--splits received the name {name!r}; expected letters, digits and "
                    "underscores."
                )
            if not 0 < fraction <= 1:
                raise UserError(
                    f"--splits received {name}={fraction}; expected a fraction above 0 and at most "
                    "1."
                )
        if abs(sum(self.splits.values()) - 1) > 1e-9:
            raise UserError(
                f"--splits received fractions that sum to {sum(self.splits.values()):g}; expected "
                "1, for example train=0.9,validation=0.1."
            )
        for name, count in self.num_shards.items():
            if not 1 <= count <= MAX_SHARDS:
                given = str(count) if name == "*" else f"{name}={count}"
                raise UserError(f"--num_shards received {given}; expected 1 to {MAX_SHARDS}.")
        if not self.shard_mb > 0:
            raise UserError(f"--shard_mb received {self.shard_mb}; expected more than 0 MB.")
        if self.class_names is not None and len(set(self.class_names)) != len(self.class_names):
            twice = sorted({c for c in self.class_names if self.class_names.count(c) > 1})
            raise UserError(f"--class_names received {twice[0]!r} twice; expected each class once.")


@dataclasses.dataclass(frozen=True)
class AboutOptions:
    """What `croissant.json` says of a data set besides what a build knows; None where not given.

    Attributes:
        license: Address or SPDX name.
        creator: Names of persons or organisations.
        description: A sentence or more.
        url: Address of a page about it.
        date_published: As YYYY-MM-DD.
    """

    license: str | None = None
    creator: tuple[str, ...] = ()
    description: str | None = None
    url: str | None = None
    date_published: str | None = None

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            for text in value if isinstance(value, tuple) else (value,):
                if text is not None and not text.strip():
                    raise UserError(f"--{name} received {text!r}; expected a text.")
        if self.url is not None and not _WEB_ADDRESS.fullmatch(self.url):
            raise UserError(
                f"--url received {self.url!r}; expected the address of a page, for example "
                "https://example.org/photos."
            )
        if self.date_published is not None and not _is_date(self.date_published):
            raise UserError(
                f"--date_published received {self.date_published!r}; expected a day as YYYY-MM-DD, "
                "for example 2026-11-22."
            )

    def given(self) -> dict[str, Any]:
        """What was given, by the names that schema.org has for it."""
        said = dataclasses.asdict(self)
        said["datePublished"] = said.pop("date_published")
        return {name: value for name, value in said.items() if value}


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


@dataclasses.dataclass(frozen=True)
class BuildOptions:
    """One build, whole.

    Attributes:
        source: The first --input, and how labels are found in it.
        more_sources: Those of the other --input flags.
        transform_temp_dir: Folder for tensorflow-transform's files while columns are
            analysed, visible to every worker; None for one below the output's staging, or on
            this machine where it does the work.
        exclude: File of keys of images that are left out.
        class_map: Class of the inputs → the class that its images are of instead.
        damage: Whether JPEGs are looked for that libjpeg warns about, and what becomes of them,
            one of `DAMAGE_CHECKS`.
        copied: Extra columns of records that are copied, if they have some.
        given: Names of the options that were given: where they were not, finished data sets among
            the inputs bring their own.
    """

    source: InputOptions
    output: str
    more_sources: tuple[InputOptions, ...] = ()
    image: ImageOptions = dataclasses.field(default_factory=ImageOptions)
    plan: PlanOptions = dataclasses.field(default_factory=PlanOptions)
    urls: UrlOptions = dataclasses.field(default_factory=UrlOptions)
    exclude: str | None = None
    class_map: Mapping[str, str] = dataclasses.field(default_factory=dict)
    transform_module: str | None = None
    transform_temp_dir: str | None = None
    compression: str = "none"
    damage: str = ""
    max_reject_fraction: float = 0.01
    quarantine_bytes: bool = True
    report: bool = True
    overwrite: bool = False
    plan_only: bool = False
    about: AboutOptions = dataclasses.field(default_factory=AboutOptions)
    copied: CopiedColumns | None = None
    given: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)

    @property
    def sources(self) -> tuple[InputOptions, ...]:
        """All inputs, in the order of their flags."""
        return (self.source, *self.more_sources)

    def with_sources(self, sources: Sequence[InputOptions]) -> BuildOptions:
        """The same build of other inputs."""
        return dataclasses.replace(self, source=sources[0], more_sources=tuple(sources[1:]))

    def __post_init__(self) -> None:
        _choice("--compression", self.compression, COMPRESSIONS)
        _choice("--check_damage", self.damage, DAMAGE_CHECKS)
        for old, new in self.class_map.items():
            if old == new:
                raise UserError(
                    f"--class_map received {old}={new}; expected a class and another name for it: "
                    "leave out what keeps its name."
                )
            if new in self.class_map:
                raise UserError(
                    f"--class_map received {old}={new} and {new}={self.class_map[new]}; expected "
                    "each class on one side only: name the class that its images are to be of in "
                    "the end, and rename what is swapped in two builds."
                )
        if not 0 <= self.max_reject_fraction <= 1:
            raise UserError(
                f"--max_reject_fraction received {self.max_reject_fraction}; expected 0 to 1."
            )
