"""Defines the options of a build: small frozen dataclasses, each validated once."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from beam_pipeline import option_texts
from beam_pipeline.option_texts import ColumnSpec as ColumnSpec
from beam_pipeline.option_texts import invalid
from beam_pipeline.option_texts import label_group as label_group
from beam_pipeline.plan_options import PlanOptions as PlanOptions
from imageshards import storage
from imageshards.commands.command_line import names_or_file
from imageshards.commands.options import Option, check_options
from imageshards.errors import Arg
from imageshards.images.options import EXTENSIONS
from imageshards.images.options import ImageOptions as ImageOptions
from imageshards.manifest import NONE, ONE, SEVERAL
from imageshards.template import fields
from imageshards.text import composed, printable

DATASET = "dataset"
TABLE = "table"
ARCHIVES = "archives"  # no value of --layout: names of files show that an input is an archive
WEBDATASET = "webdataset"
# Formats of detection datasets.
COCO, YOLO, VOC = ANNOTATIONS = ("coco", "yolo", "voc")
LAYOUTS = (
    "auto", "class_folders", "split_folders", "flat", WEBDATASET, TABLE, DATASET, *ANNOTATIONS
)  # fmt: skip
ARCHIVE_SUFFIXES = (".tar", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq")
# Options that only files in folders and archives have, and that only rows have.
FILE_FLAGS = ("extensions", "exclude_glob")
TABLE_FLAGS = (
    "image_column", "image_path", "label_column", "key_column", "split_column", "group_column",
    "columns", "drop_column", "allow_any_path", "bbox_format",
)  # fmt: skip
LABELS = (ONE, NONE, SEVERAL)
# How a table gives boxes: as sides from 0 to 1, as sides in pixels, or as a corner and a size in
# pixels.
RELATIVE, PIXELS, XYWH = "relative", "pixels", "xywh"


@dataclasses.dataclass(frozen=True)
class InputOptions:
    """Options of one input: where images come from, and how their labels are found."""

    # fmt: off
    input: Annotated[str, Option(
        "where the images are. Class folders: ROOT/<class>/*.jpg or ROOT/<split>/<class>/*.jpg. A "
        "flat folder or a glob, with --label_regex. Archives (.tar, .zip, .tar.gz, a .tar of tars) "
        "that contain such folders. WebDataset tars. An image table: .csv (with commas, semicolons "
        "or tabs), .jsonl or .parquet; Parquet may also hold the pictures. A detection dataset: a "
        ".json file of COCO, a YOLO folder or data.yaml, a Pascal VOC folder. A finished dataset, "
        "whose records are copied. For archives and tables, PATH may be a glob or contain a range "
        "such as {0000..0099}. Repeat the flag for more inputs",
        place=storage.absolute_place, metavar="PATH", action="append")]
    layout: Annotated[str, Option(
        "layout of --input: class_folders, split_folders, flat, webdataset, table, dataset, coco, "
        "yolo or voc. auto finds it from the names and the content of files (default: auto)",
        metavar="LAYOUT", choices=LAYOUTS)] = "auto"
    label: Annotated[str, Option(
        "number of labels of each image. none: records get no class. several: the label column "
        "holds a list, or see --label_separator (default: one; several for coco, yolo and voc, "
        "where an image has the classes of its boxes; or as in the datasets among the inputs)",
        choices=LABELS)] = ONE
    label_separator: Annotated[str | None, Option(
        "separator of several labels in one text: '|' splits cat|dog. Implies --label several",
        metavar="TEXT")] = None
    label_regex: Annotated[str | None, Option(
        "regular expression that finds the label in a file name: '^([a-z]+)\\.' finds cat in "
        "cat.0.jpg. The label is the group named label, or else the first group. Groups named "
        "split and group set the split and the group",
        metavar="REGEX")] = None
    labels: Annotated[str | None, Option(
        "file with the labels of images that no folder labels: rows of a file name and a class, "
        "such as Kaggle's LOC_val_solution.csv, or only classes or their numbers, one a line in "
        "the order of the file names (default: none)",
        place=storage.absolute_place, metavar="FILE")] = None
    image_column: Annotated[str | None, Option(
        "table column with the image's path, relative to the table or --image_root, or its URI "
        "(default: image, path, uri, file, filename, url or a similar name)",
        metavar="NAME")] = None
    image_path: Annotated[str | None, Option(
        "path or URI of each row's image, with table columns in braces, in place of an image "
        "column: 'train_images/{id_code}.jpg'", metavar="TEMPLATE")] = None
    allow_any_path: Annotated[bool, Option(
        "let the rows of a table name files outside the table's folder; a row may then copy any "
        "file that you can read into the dataset")] = False
    image_root: Annotated[str | None, Option(
        "folder of the images of a table, or above the images of coco, yolo and voc (default: the "
        "folder of the table, and the usual folders near the annotations)",
        place=storage.absolute_place, metavar="DIR")] = None
    label_column: Annotated[str | None, Option(
        "table column with the label, or for WebDataset an entry of the .json member (default: "
        "label, class or category; for WebDataset the .cls member)", metavar="NAME")] = None
    key_column: Annotated[str | None, Option(
        "table column with a unique key; none numbers the rows instead (default: key or id, else "
        "the image column)",
        metavar="NAME")] = None
    split_column: Annotated[str | None, Option(
        "table column with the split (default: split)", metavar="NAME")] = None
    group_column: Annotated[str | None, Option(
        "table column with a group, for example a patient; all rows of a group get the same split "
        "(default: none)",
        metavar="NAME")] = None
    columns: Annotated[tuple[ColumnSpec, ...] | None, Option(
        "types of columns, each as name:int, name:float or name:string. Append [] for a list of "
        "any length, [N] for a list of N values, and :zscore or :minmax to scale floats. Example: "
        "age:float:zscore,tokens:int[]. The types of all remaining columns follow from the first "
        "rows. '' stores no column at all",
        parse=option_texts.parse_columns, metavar="SPECS")] = None
    drop_column: Annotated[tuple[str, ...], Option(
        "columns not to store, with commas between them. The flag may be repeated (default: none)",
        parse=option_texts.parse_names, action="extend", metavar="A,B")] = ()
    bbox_format: Annotated[str, Option(
        "how a table stores bounding boxes. relative: columns xmin, ymin, xmax, ymax from 0 to 1. "
        "pixels: the same columns in pixels. xywh: columns x, y, width (or w), height (or h) in "
        "pixels, as in COCO. A row holds one box as numbers, or all boxes of an image as lists "
        "(default: relative)",
        choices=(RELATIVE, PIXELS, XYWH))] = RELATIVE
    zip_encoding: Annotated[str | None, Option(
        "encoding of the names in .zip archives that do not say theirs, such as cp932 or gbk of "
        "Windows (default: utf-8, else cp437 with a warning)", metavar="NAME")] = None
    extensions: Annotated[tuple[str, ...], Option(
        "file name extensions of images (default: jpg,jpeg,jpe,jfif,png,webp,gif,bmp,tif,tiff,avif "
        "and, with the extra heif, heic,heif)",
        parse=option_texts.parse_extensions, metavar="LIST")] = EXTENSIONS
    exclude_glob: Annotated[tuple[str, ...], Option(
        "globs of files and folders to leave out, separated by commas. A glob without a slash, "
        "such as '*_small.jpg', matches names at any depth. A glob with a slash, such as 'cat/old' "
        "or 'dog/**/b*.png', matches the path below --input. The flag may be repeated (default: "
        "none)",
        parse=option_texts.parse_globs, action="extend", metavar="GLOBS")] = ()
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        try:
            b" ".decode("utf-8" if self.zip_encoding is None else self.zip_encoding)
        except (LookupError, ValueError) as e:
            expected = "the name of an encoding, such as cp932, gbk or utf-8"
            raise invalid("zip_encoding", repr(self.zip_encoding), expected) from e
        if self.image_path is not None:
            fields(self.image_path)
            if self.image_column is not None:
                received = f"{self.image_path!r} with " + Arg("image_column", self.image_column)
                raise invalid("image_path", received, remedy="leave one of them out")
        if self.label_separator is not None:
            if self.label == NONE or not self.label_separator:
                received = f"{self.label_separator!r} with " + Arg("label", self.label)
                expected = "a text such as '|', and several labels an image"
                raise invalid("label_separator", received, expected)
            # The dataclass is frozen, so a derived value needs the setter of `object`.
            object.__setattr__(self, "label", SEVERAL)
        leave_out = "leave one of them out"
        if self.labels is not None and (self.label != ONE or self.label_regex is not None):
            other = Arg("label", self.label) if self.label != ONE else Arg("label_regex")
            raise invalid("labels", f"{self.labels!r} with " + other, remedy=leave_out)
        if self.label_regex is None:
            return
        given = repr(self.label_regex)
        if self.label == NONE:
            raise invalid("label_regex", f"{given} with " + Arg("label", NONE), remedy=leave_out)
        try:
            regex = re.compile(self.label_regex)
        except re.error as e:
            unread = f"{given}, which cannot be read ({e})"
            raise invalid("label_regex", unread, "a regular expression") from e
        if label_group(regex) is None:
            expected = "a group that captures the label, for example '^([a-z]+)\\.'"
            raise invalid("label_regex", given, expected)
        if self.layout in ("class_folders", WEBDATASET, TABLE, DATASET, *ANNOTATIONS):
            layout = Arg("layout", self.layout) + ", which has labels of its own"
            raise invalid("label_regex", f"{given} with " + layout, remedy=leave_out)


@dataclasses.dataclass(frozen=True)
class CopiedInput(InputOptions):
    """Options of an input that is a finished dataset, with facts from its manifest."""

    fingerprint: str = ""  # fingerprint of the dataset when the build began; "" for any
    keeps_splits: bool = True  # records keep the splits of the dataset
    record_label: str = ONE  # how many labels each record has: `ONE`, `NONE` or `SEVERAL`
    # The option that gave groups to the original images, with its value; {} without groups.
    groups: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class UrlOptions:
    """Options for images at `http://` and `https://` addresses."""

    # fmt: off
    url_timeouts: Annotated[tuple[float, float, float], Option(
        "time limits in seconds: to connect, between two pieces of an answer, and for one image in "
        "total, with redirects and retries (default: 10,30,120)",
        parse=option_texts.parse_timeouts, metavar="CONNECT,READ,TOTAL")] = (10.0, 30.0, 120.0)
    url_retries: Annotated[int, Option(
        "retries after HTTP status 429 or 5xx, a time-out or a broken connection", least=0)] = 3
    url_requests_per_host: Annotated[int, Option(
        "requests that one process sends to a host at the same time", least=1)] = 8
    allow_private_hosts: Annotated[bool, Option(
        "permit connections to loopback, private and link-local addresses")] = False
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)


@dataclasses.dataclass(frozen=True)
class CopiedColumns:
    """Extra columns in the records of the datasets that a build copies."""

    transform: str  # folder of the exported transform that made the columns
    as_given: bool  # the columns were neither scaled nor transformed


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """Options that the transforms of a pipeline share: how images become shards.

    Attributes:
        image: How pictures are encoded.
        plan: Splits, shards and the order of classes.
        urls: How images at http:// and https:// addresses are fetched.
        quarantine_bytes: Whether the original bytes of rejected images are kept.
        versions: (library, version) pairs that the bytes depend on, the same on every worker.
        run_id: Random id of a run, set by `WriteBalancedTFRecord`. A shard with another id was
            written by an earlier run.
    """

    image: ImageOptions = dataclasses.field(default_factory=ImageOptions)
    plan: PlanOptions = dataclasses.field(default_factory=PlanOptions)
    urls: UrlOptions = dataclasses.field(default_factory=UrlOptions)
    quarantine_bytes: bool = True
    versions: tuple[tuple[str, str], ...] = ()
    run_id: str = ""


@dataclasses.dataclass(frozen=True)
class BuildOptions:
    """All options of a build.

    Attributes:
        source: Options of the first `--input`.
        more_sources: Options of the further `--input` flags.
        copied: Extra columns of the copied records; None without any.
        given: Names of the options that were given. For the rest, finished datasets among the
            inputs bring their own values.
    """

    # fmt: off
    source: InputOptions
    output: Annotated[str, Option(
        "folder of the dataset: new, empty, or with an unfinished build, which is resumed",
        place=storage.absolute_place, metavar="DIR")]
    more_sources: tuple[InputOptions, ...] = ()
    image: ImageOptions = dataclasses.field(default_factory=ImageOptions)
    plan: PlanOptions = dataclasses.field(default_factory=PlanOptions)
    urls: UrlOptions = dataclasses.field(default_factory=UrlOptions)
    exclude: Annotated[tuple[str, ...], Option(
        "keys of images to leave out: a text file with one key per line, or a dataset, whose keys "
        "are left out. The flag may be repeated (default: none)", group="input", action="append",
        parse=functools.partial(storage.absolute_place, "exclude"), metavar="FILE")] = ()
    drop_class: Annotated[tuple[str, ...], Option(
        "classes to leave out, with commas between them, by the names that the input gives. An "
        "image with several labels loses the label and its boxes, and is left out if no label "
        "stays. The flag may be repeated (default: none)", group="input", action="extend",
        parse=functools.partial(names_or_file, "drop_class"), metavar="A,B|FILE")] = ()
    sample: Annotated[float | None, Option(
        "fraction of the images to take, drawn by a hash of the keys; each class, in each split "
        "that the input gives, keeps its share to one image (default: all)",
        group="input", above=0, below=1)] = None
    limit: Annotated[int | None, Option(
        "number of images to take, drawn as --sample draws them (default: all)",
        group="input", least=1)] = None
    class_map: Annotated[Mapping[str, str], Option(
        "renames classes; equal new names join classes. Give pairs, or a text file with one pair "
        "per line. The flag may be repeated (default: none)", group="input", action="append",
        parse=option_texts.parse_class_map, metavar="OLD=NEW,...|FILE",
        )] = dataclasses.field(default_factory=dict)
    transform_module: Annotated[str | None, Option(
        "Python module with a preprocessing_fn(inputs) as in TFX; the function's outputs replace "
        "the extra columns (default: none)", group="splits and shards",
        place=storage.place, metavar="FILE|MODULE")] = None
    transform_temp_dir: Annotated[str | None, Option(
        "temporary folder that TensorFlow on every worker can reach; required for extra columns "
        "with --output s3:// on a cluster (default: below --output, or a temporary folder of this "
        "machine)",
        place=storage.absolute_place, metavar="DIR", group="splits and shards")] = None
    max_reject_fraction: Annotated[float, Option(
        "fails the build if more than this fraction of the images is rejected, after all images "
        "were tried; one reject is allowed unless the fraction is 0",
        least=0, most=1, metavar="0..1")] = 0.01
    quarantine_bytes: Annotated[bool, Option(
        "keep the reasons of rejected images, but not the images",
        flag="no_quarantine_bytes")] = True
    report: Annotated[bool, Option("do not write report/", flag="no_report")] = True
    overwrite: Annotated[bool, Option(
        "replace a finished dataset; classes keep their ids")] = False
    plan_only: Annotated[bool, Option(
        "list the images and show the planned shards, or the error that would stop the build, such "
        "as equal keys; the exit code is the build's; write nothing")] = False
    copied: CopiedColumns | None = None
    given: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)
    # fmt: on

    @property
    def sources(self) -> tuple[InputOptions, ...]:
        """Options of all inputs, in the order of their flags."""
        return (self.source, *self.more_sources)

    def shard_options(self, versions: Mapping[str, str]) -> ShardOptions:
        return ShardOptions(
            image=self.image, plan=self.plan, urls=self.urls,
            quarantine_bytes=self.quarantine_bytes, versions=tuple(versions.items()),
        )  # fmt: skip

    def with_sources(self, sources: Sequence[InputOptions]) -> BuildOptions:
        return dataclasses.replace(self, source=sources[0], more_sources=tuple(sources[1:]))

    def __post_init__(self) -> None:
        check_options(self)
        if printable(self.output) != self.output:
            raise invalid(
                "output",
                f"{self.output!r}, a name with bytes that are no UTF-8",
                "a name in UTF-8, as Beam and TensorFlow take no other",
                "rename the folder",
            )
        for name in ("class_names", "class_map", "drop_class"):
            if self.source.label == NONE and vars(self).get(name, vars(self.plan).get(name)):
                names = "names of classes with " + Arg("label", NONE)
                raise invalid(name, names, remedy="leave one of them out")
        if self.source.label == NONE and self.plan.stratify:
            raise invalid(
                "stratify", "no classes with " + Arg("label", NONE), remedy="leave it out"
            )
        renamed = option_texts.checked_class_map(self.class_map)
        object.__setattr__(self, "class_map", renamed)
        object.__setattr__(self, "drop_class", tuple(map(composed, self.drop_class)))
        for name in self.drop_class:
            if name in (*renamed, *renamed.values()):
                remedy = "drop the names that the input has, without renaming them"
                raise invalid(
                    "drop_class", f"{name!r}, which is in " + Arg("class_map"), "", remedy
                )
