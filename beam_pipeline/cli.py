"""The command line of a build: flags, their units and defaults, and what they become."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from beam_pipeline import options as opt
from imageshards import __version__
from imageshards.commands.command_line import Parser, names_or_file, parse_path, split_names
from imageshards.errors import UserError

_Options = TypeVar("_Options")

_COLUMN = re.compile(
    r"(?P<name>[^:]+):(?P<kind>\w+)(?P<list>\[(?P<size>\d{0,6})\])?(:(?P<scale>\w+))?", re.ASCII
)
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_SIZE = re.compile(r"(\d{1,99})(?:x(\d{1,99}))?", re.ASCII)

_EPILOG = """\
Flags that are unknown here go to Beam's PipelineOptions (--runner,
--direct_num_workers, ...); one that Beam does not know either is an error.
Exit codes: 0 done, 1 failed, 2 something to fix, 130 stopped by Ctrl-C. Run the
same command again to resume a job that was stopped or killed.

example:
  imageshards build --input photos/ --output shards/ --image_size 256
"""


def parse(argv: Sequence[str]) -> tuple[opt.BuildOptions, list[str]]:
    """Options of a build, and the flags that are left for Beam.

    Raises:
        UserError: A flag has a value that cannot be.
    """
    args, beam_args = make_parser().parse_known_args(argv)
    args.height_px, args.width_px = args.image_size
    paths, args.given = args.input, _given(argv)
    args.input = paths[0]
    args.source = _of_fields(opt.InputOptions, args)
    args.more_sources = tuple(dataclasses.replace(args.source, input=path) for path in paths[1:])
    args.image = _of_fields(opt.ImageOptions, args)
    args.plan = _of_fields(opt.PlanOptions, args)
    args.creator = tuple(args.creator)
    args.about = _of_fields(opt.AboutOptions, args)
    args.urls = _of_fields(opt.UrlOptions, args)
    return _of_fields(opt.BuildOptions, args), beam_args


def _of_fields(cls: Callable[..., _Options], args: argparse.Namespace) -> _Options:
    """Options from the flags of their fields' names."""
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    return cls(**{name: getattr(args, name) for name in names if hasattr(args, name)})


def _given(argv: Sequence[str]) -> frozenset[str]:
    """Names of the options that are among the arguments, whatever their values."""
    parser = make_parser()
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    names = set(vars(parser.parse_known_args(argv)[0]))
    return frozenset(names | {"height_px", "width_px"} if "image_size" in names else names)


def flag_names() -> list[str]:
    """All flags of `imageshards build` itself."""
    return make_parser().flags


def make_parser() -> Parser:
    """All flags of `imageshards build`."""
    parser = Parser(
        prog="imageshards build",
        usage="imageshards build --input PATH --output DIR [flags below] [Beam's flags]",
        description="Turns raw images into balanced, reproducible TFRecord shards.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"imageshards {__version__}")
    _add_input(parser.add_argument_group("input"))
    _add_images(parser.add_argument_group("images"))
    _add_urls(parser.add_argument_group("images at http:// and https:// addresses in a table"))
    _add_shards(parser.add_argument_group("splits and shards"))
    _add_output(parser.add_argument_group("output"))
    _add_about(parser.add_argument_group("what croissant.json says of the data set"))
    return parser


# One flag after the other reads as a table.
# fmt: off
def _add_input(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--input", required=True, action="append", metavar="PATH",
        type=functools.partial(parse_path, "--input"),
        help="class folders ROOT/<class>/*.jpg or ROOT/<split>/<class>/*.jpg; a flat folder or a "
        "glob with --label_regex; an image table (.csv, with commas, semicolons or tabs; .jsonl; "
        ".parquet), or a glob of such files; or a finished data set, whose records are copied; "
        "give it again for more inputs")
    add("--layout", default="auto", choices=opt.LAYOUTS,
        help="how --input is laid out (default: auto, from names)")
    add("--label_regex", metavar="REGEX",
        help="finds the label in a file name: its group named label, or its first group; groups "
        "named split and group are used too; for example '^([a-z]+)\\.' for cat.0.jpg")
    add("--class_names", type=functools.partial(names_or_file, "--class_names"),
        metavar="A,B|FILE",
        help="classes in the order of their ids, separated by commas (\\, is one in a name) or one "
        "per line of a file; another label is an error (default: sorted names; on --overwrite the "
        "old order first)")
    add("--allow_one_class", action="store_true", help="accept an input with one class only")
    add("--first_label", default=0, type=int, choices=opt.FIRST_LABELS,
        help="label of the first class in records: 1 for readers that subtract 1, with 0 for a "
        "background; imageshards train undoes it (default: 0)")
    add("--image_column", metavar="NAME",
        help="table column with the image's path, relative to the table, or its URI "
        "(default: image, path, uri, file, filename or url)")
    add("--label_column", metavar="NAME",
        help="table column with the label (default: label or class)")
    add("--key_column", metavar="NAME",
        help="table column with a unique key (default: key or id, else the image column)")
    add("--split_column", metavar="NAME", help="table column with the split (default: split)")
    add("--group_column", metavar="NAME",
        help="table column whose equal values stay in one split (default: none)")
    add("--columns", type=parse_columns, metavar="SPECS",
        help="extra columns as name:int|float|string, with [] for a variable or [N] for a fixed "
        "length and :zscore or :minmax to scale floats; for example age:float:zscore,tokens:int[] "
        "(default: every other column, typed from the first rows)")
    add("--exclude", type=functools.partial(parse_path, "--exclude"), metavar="FILE",
        help="leave out images with these keys: a text file with a key on each line, a .parquet "
        "file with a column key, or a data set or its index/ (default: none)")
    add("--class_map", type=parse_class_map, default={}, metavar="OLD=NEW,...|FILE",
        help="rename classes, or join them into one: pairs, or a .json object or a .csv file with "
        "the columns old,new (default: none)")
    add("--extensions", type=parse_extensions, default=",".join(e[1:] for e in
        opt.InputOptions.extensions), metavar="LIST",
        help="file name extensions of images (default: %(default)s)")


def _add_images(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    d = opt.ImageOptions()
    add("--image_size", type=parse_size, default="256", metavar="PX",
        help="target size in pixels, N or HEIGHTxWIDTH (default: 256)")
    add("--resize_mode", default=d.resize_mode, choices=opt.RESIZE_MODES,
        help="crop: centre crop to the aspect; stretch; pad: fit and fill with --background; "
        f"shortest: shortest side to --image_size; none (default: {d.resize_mode})")
    add("--only_shrink", action="store_true", help="never enlarge a picture")
    add("--filter", default=d.filter, choices=opt.FILTERS,
        help=f"resampling filter, antialiased (default: {d.filter})")
    add("--quality", default=d.quality, type=int, metavar="1..100",
        help=f"JPEG quality of records (default: {d.quality})")
    add("--subsampling", default=d.subsampling, choices=opt.SUBSAMPLINGS,
        help=f"chroma subsampling of records (default: {d.subsampling})")
    add("--colorspace", default=d.colorspace, choices=opt.COLORSPACES,
        help=f"3 channels or 1 (default: {d.colorspace})")
    add("--background", type=parse_color, default="ffffff", metavar="RRGGBB",
        help="under transparent pixels and around padded pictures (default: ffffff)")
    add("--check_damage", dest="damage", action="store_const", const="count", default="",
        help="count and list JPEGs that decode, but with damage that libjpeg warns about, such as "
        "shifted strips and grey blocks; costs 7 to 19 %% of the time for decoding and encoding")
    add("--reject_damaged", dest="damage", action="store_const", const="reject",
        help="look for them, too, and put them into the quarantine")
    add("--bbox_frame", default=d.bbox_frame, choices=opt.BBOX_FRAMES,
        help="whether boxes in image/object/bbox/{xmin,xmax,ymin,ymax} (0..1) are relative to the "
        f"pixels as stored or to the picture made upright by EXIF (default: {d.bbox_frame})")
    add("--max_image_mpx", dest="max_pixels", default=str(d.max_pixels / 1e6),
        type=functools.partial(parse_limit, "--max_image_mpx", 1e6), metavar="MPX",
        help=f"larger pictures are rejected undecoded, in MPX (default: {d.max_pixels / 1e6:g})")
    add("--max_image_mb", dest="max_bytes", default=str(d.max_bytes / 2**20),
        type=functools.partial(parse_limit, "--max_image_mb", 2**20), metavar="MIB",
        help=f"larger files are rejected unread, in MiB (default: {d.max_bytes / 2**20:g})")


def _add_urls(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    d = opt.UrlOptions()
    add("--url_timeouts", default="10,30,120", type=parse_timeouts, metavar="CONNECT,READ,TOTAL",
        help="seconds to connect, between two pieces of an answer, and for an image in all with "
        "redirects and retries (default: 10,30,120)")
    add("--url_retries", default=d.url_retries, type=int, metavar="N",
        help="further attempts after 429, 5xx, a time-out or a broken connection "
        f"(default: {d.url_retries})")
    add("--url_requests_per_host", default=d.url_requests_per_host, type=int, metavar="N",
        help="requests that one process sends to a host at the same time "
        f"(default: {d.url_requests_per_host})")
    add("--allow_private_hosts", action="store_true",
        help="connect to loopback, private and link-local addresses, too")


def _add_shards(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--splits", type=functools.partial(parse_pairs, "--splits", float),
        default="train=0.9,validation=0.1", metavar="NAME=F,...",
        help="fractions of images without a given split, drawn by a salted hash of the key or of "
        "--group_column, so that more images move none; records of a data set keep theirs unless "
        "this is given (default: those of a data set among the inputs, else "
        "train=0.9,validation=0.1)")
    add("--salt", default=opt.PlanOptions().salt,
        help="changes all hashes: another split, another order (default: imageshards)")
    add("--num_shards", default={}, type=parse_num_shards, metavar="NAME=N,...|N",
        help="shards of each split; with --shard_by class, of each class (default: by "
        "--shard_mb, and at least 16 for a split where each still holds 32 records or more)")
    add("--shard_mb", default=128.0, type=float, metavar="MB",
        help="target size of a shard in MB (10^6 bytes), from a sample of images (default: 128)")
    add("--shard_by", default="balanced", choices=opt.SHARD_BY,
        help="balanced: the same number of records and the same class mix in every shard, +-1; "
        "class: every shard holds one class (default: balanced)")
    add("--transform_module", metavar="FILE|MODULE",
        help="Python module with preprocessing_fn(inputs), as in TFX; its outputs replace the "
        "extra columns (default: none)")
    add("--transform_temp_dir", type=functools.partial(parse_path, "--transform_temp_dir"),
        metavar="DIR",
        help="folder that TensorFlow on every worker sees, needed for extra columns with --output "
        "s3:// on a cluster (default: below --output, or of the machine that does the work)")


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--output", required=True, metavar="DIR", type=functools.partial(parse_path, "--output"),
        help="folder of the data set, new or empty; an unfinished build there is resumed")
    add("--compression", default="none", choices=opt.COMPRESSIONS,
        help="of shards; JPEG hardly shrinks (default: none)")
    add("--max_reject_fraction", default=0.01, type=float, metavar="0..1",
        help="more rejected images than this fail the job, after all was tried (default: 0.01)")
    no_bytes = "keep reasons of rejected images, but not their bytes"
    add("--no_quarantine_bytes", dest="quarantine_bytes", action="store_false", help=no_bytes)
    add("--no_report", dest="report", action="store_false", help="do not write report/")
    add("--overwrite", action="store_true",
        help="replace a finished data set; classes keep the ids they had")
    add("--plan_only", action="store_true",
        help="list and plan, show the shards and why a build would stop (equal keys, missing or "
        "empty files), and end with its exit code; decode and write nothing")


def _add_about(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--license", metavar="URL|NAME", help="address or SPDX name of its license")
    add("--creator", default=[], action="append", metavar="NAME",
        help="a person or organisation that made it; give it again for more")
    add("--description", metavar="TEXT", help="what it is (default: its numbers of images)")
    add("--url", metavar="URL", help="address of a page about it")
    add("--date_published", metavar="YYYY-MM-DD", help="the day it is published")
# fmt: on


def parse_size(text: str) -> tuple[int, int]:
    """`N` or `HEIGHTxWIDTH` → (height, width) in pixels."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise UserError(f"--image_size received {text!r}; expected pixels as N or HEIGHTxWIDTH.")
    return int(found[1]), int(found[2] or found[1])


def parse_color(text: str) -> tuple[int, int, int]:
    """`RRGGBB` → (red, green, blue), 0..255."""
    if not re.fullmatch(r"#?[0-9a-fA-F]{6}", text):
        raise UserError(f"--background received {text!r}; expected RRGGBB, for example ffffff.")
    red, green, blue = bytes.fromhex(text.lstrip("#"))
    return red, green, blue


def parse_limit(flag: str, unit: float, text: str) -> int:
    """A limit in large units → in whole small ones, at least one."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value * unit < 1:
        raise UserError(f"{flag} received {text}; expected a number above 0.")
    return round(value * unit)


def parse_timeouts(text: str) -> tuple[float, ...]:
    """`10,30,120` → three numbers of seconds."""
    try:
        seconds = tuple(float(part) for part in text.split(","))
    except ValueError:
        seconds = ()
    if len(seconds) != 3 or not all(0 < value < 1e6 for value in seconds):
        raise UserError(
            f"--url_timeouts received {text!r}; expected three numbers of seconds above 0, to "
            "connect, between two pieces and in all, for example 10,30,120."
        )
    return seconds


def parse_pairs(flag: str, kind: type, text: str) -> dict[str, Any]:
    """`a=1,b=2` → {"a": 1, "b": 2}."""
    pairs: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            number = kind(value)
        except ValueError:
            number = None
        if not name or number is None or name in pairs:
            what = "numbers" if kind is float else "whole numbers"
            raise UserError(
                f"{flag} received {text!r}; expected names with {what}, as in name=1,other=2."
            )
        pairs[name] = number
    return pairs


def parse_num_shards(text: str) -> dict[str, int]:
    """`8` → {"*": 8}, `train=64,validation=8` → that."""
    if _NUMBER.fullmatch(text.strip()):
        return {"*": int(text)}
    if "=" not in text:
        raise UserError(
            f"--num_shards received {text!r}; expected a number, or one for each split as in "
            "train=64,validation=8."
        )
    return parse_pairs("--num_shards", int, text)


def parse_class_map(text: str) -> dict[str, str]:
    """`old=new,…`, or a file: a JSON object, or CSV with the columns old and new."""
    is_file = text.lower().endswith((".json", ".csv")) or os.path.isfile(text)
    if not is_file:
        parts = [part.partition("=") for part in split_names(text)]
        pairs = [(old.strip(), new.strip()) for old, _, new in parts]
    else:
        try:
            with open(text, encoding="utf-8-sig", newline="") as file:
                if text.lower().endswith(".json"):
                    pairs = json.load(file, object_pairs_hook=tuple)
                    if not isinstance(pairs, tuple):  # only objects are tuples
                        raise ValueError("it is no JSON object")
                else:
                    header, *rows = csv.reader(file)
                    pairs = [(row[0], row[1]) for row in rows if row]
                    if header[:2] != ["old", "new"]:
                        raise ValueError(f"its header is {','.join(header)}")
                if not pairs:
                    raise ValueError("it names no class")
        except (OSError, ValueError, IndexError) as e:
            raise UserError(
                f"--class_map {text!r} cannot be read ({e}); expected a JSON object {{old: new}}, "
                "or CSV with the header old,new and a class on each line."
            ) from e
    found: dict[str, str] = {}
    for old, new in pairs:
        if not old or not isinstance(new, str) or not new or old in found:
            raise UserError(
                f"--class_map received {text!r}, where {old!r} becomes {new!r}; expected pairs of "
                "names as in old=new,other=new, each old one once."
            )
        found[old] = new
    return found


def parse_extensions(text: str) -> tuple[str, ...]:
    """`jpg,.PNG` → (".jpg", ".png")."""
    names = [name.strip().lstrip("*").lstrip(".").lower() for name in text.split(",")]
    if not all(names):
        raise UserError(f"--extensions received {text!r}; expected a list as in jpg,png.")
    return tuple("." + name for name in names)


def parse_columns(text: str) -> tuple[opt.ColumnSpec, ...]:
    """`age:float:zscore,tokens:int[]` → specs; "" is no column at all."""
    specs = []
    for part in split_names(text):
        found = _COLUMN.fullmatch(part)
        if not found:
            raise UserError(
                f"--columns received {part!r}; expected name:int|float|string, with [] or [N] for "
                "lists and :zscore or :minmax for floats."
            )
        size = found["size"]
        shape = None if found["list"] and not size else (int(size),) if size else ()
        specs.append(opt.ColumnSpec(found["name"], found["kind"], shape, found["scale"] or "none"))
    return tuple(specs)
