"""The command line of a build: flags, their units and defaults, and what they become."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from beam_pipeline import options as opt
from beam_pipeline.flag_values import (
    parse_class_names,
    parse_color,
    parse_columns,
    parse_extensions,
    parse_limit,
    parse_num_shards,
    parse_pairs,
    parse_path,
    parse_size,
)
from imageshards import __version__
from imageshards.errors import UserError

_EPILOG = """\
Flags that are unknown here go to Beam's PipelineOptions (--runner, --direct_num_workers, ...);
one that Beam does not know either is an error. Exit codes: 0 done, 1 failed, 2 something to
mend, 130 stopped by Ctrl-C. A job that was stopped or killed goes on where it was: give the
same command again.

example:
  python -m beam_pipeline --input photos/ --output shards/ --image_size 256
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UserError(f"{message}; see python -m beam_pipeline --help.")


def make_parser() -> argparse.ArgumentParser:
    """All flags of `python -m beam_pipeline`."""
    parser = _Parser(
        prog="python -m beam_pipeline",
        usage="python -m beam_pipeline --input PATH --output DIR [flags below] [Beam's flags]",
        description="Turns raw images into balanced, reproducible TFRecord shards.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"imageshards {__version__}")
    _add_input(parser.add_argument_group("input"))
    _add_images(parser.add_argument_group("images"))
    _add_shards(parser.add_argument_group("splits and shards"))
    _add_output(parser.add_argument_group("output"))
    return parser


def _add_input(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--input",
        required=True,
        metavar="PATH",
        help="class folders ROOT/<class>/*.jpg or ROOT/<split>/<class>/*.jpg; a flat folder or a "
        "glob with --label_regex; or a manifest (.csv, .jsonl, .parquet), or a glob of such files",
    )
    add(
        "--layout",
        default="auto",
        choices=opt.LAYOUTS,
        help="how --input is laid out (default: auto, from names)",
    )
    add(
        "--label_regex",
        metavar="REGEX",
        help="finds the label in a file name: its group named label, or its first group; groups "
        "named split and group are used too; for example '^([a-z]+)\\.' for cat.0.jpg",
    )
    add(
        "--class_names",
        metavar="A,B|FILE",
        help="classes in the order of their ids, separated by commas or one per line of a file; "
        "another label is an error (default: sorted names; on --overwrite the old order first)",
    )
    add("--allow_one_class", action="store_true", help="accept an input with one class only")
    add(
        "--image_column",
        metavar="NAME",
        help="manifest column with the image's path, relative to the manifest, or its URI "
        "(default: image, path, uri, file or filename)",
    )
    add(
        "--label_column",
        metavar="NAME",
        help="manifest column with the label (default: label or class)",
    )
    add(
        "--key_column",
        metavar="NAME",
        help="manifest column with a unique key (default: key or id, else the image column)",
    )
    add("--split_column", metavar="NAME", help="manifest column with the split (default: split)")
    add(
        "--group_column",
        metavar="NAME",
        help="manifest column whose equal values stay in one split (default: none)",
    )
    add(
        "--columns",
        metavar="SPECS",
        help="extra columns as name:int|float|string, with [] for a variable or [N] for a fixed "
        "length and :zscore or :minmax to scale floats; for example age:float:zscore,tokens:int[] "
        "(default: every other column, typed from the first rows)",
    )
    add(
        "--extensions",
        default=",".join(e[1:] for e in opt.InputOptions.extensions),
        metavar="LIST",
        help="file name extensions of images (default: %(default)s)",
    )


def _add_images(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    d = opt.ImageOptions()
    add(
        "--image_size",
        default="256",
        metavar="PX",
        help="target size in pixels, N or HEIGHTxWIDTH (default: 256)",
    )
    add(
        "--resize_mode",
        default=d.resize_mode,
        choices=opt.RESIZE_MODES,
        help="crop: centre crop to the aspect; stretch; pad: fit and fill with --background; "
        f"shortest: shortest side to --image_size; none (default: {d.resize_mode})",
    )
    add("--only_shrink", action="store_true", help="never enlarge a picture")
    add(
        "--filter",
        default=d.filter,
        choices=opt.FILTERS,
        help=f"resampling filter, antialiased (default: {d.filter})",
    )
    add(
        "--quality",
        default=d.quality,
        type=int,
        metavar="1..100",
        help=f"JPEG quality of records (default: {d.quality})",
    )
    add(
        "--subsampling",
        default=d.subsampling,
        choices=opt.SUBSAMPLINGS,
        help=f"chroma subsampling of records (default: {d.subsampling})",
    )
    add(
        "--colorspace",
        default=d.colorspace,
        choices=opt.COLORSPACES,
        help=f"3 channels or 1 (default: {d.colorspace})",
    )
    add(
        "--background",
        default="ffffff",
        metavar="RRGGBB",
        help="under transparent pixels and around padded pictures (default: ffffff)",
    )
    add(
        "--bbox_frame",
        default=d.bbox_frame,
        choices=opt.BBOX_FRAMES,
        help="whether boxes in image/object/bbox/{xmin,xmax,ymin,ymax} (0..1) are relative to the "
        f"pixels as stored or to the picture made upright by EXIF (default: {d.bbox_frame})",
    )
    add(
        "--max_image_mpx",
        default=d.max_pixels / 1e6,
        type=float,
        metavar="MPX",
        help=f"larger pictures are rejected undecoded, in MPX (default: {d.max_pixels / 1e6:g})",
    )
    add(
        "--max_image_mb",
        default=d.max_bytes / 2**20,
        type=float,
        metavar="MIB",
        help=f"larger files are rejected unread, in MiB (default: {d.max_bytes / 2**20:g})",
    )


def _add_shards(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--splits",
        default="train=0.9,validation=0.1",
        metavar="NAME=F,...",
        help="fractions of images without a given split, drawn by a salted hash of the key or of "
        "--group_column, so that more images move none (default: train=0.9,validation=0.1)",
    )
    add(
        "--salt",
        default=opt.PlanOptions().salt,
        help="changes all hashes: another split, another order (default: imageshards)",
    )
    add(
        "--num_shards",
        metavar="NAME=N,...|N",
        help="shards of each split; with --shard_by class, of each class (default: by "
        "--shard_mb, and at least 16 for a split where each still holds 32 records or more)",
    )
    add(
        "--shard_mb",
        default=128.0,
        type=float,
        metavar="MB",
        help="target size of a shard in MB (10^6 bytes), from a sample of images (default: 128)",
    )
    add(
        "--shard_by",
        default="balanced",
        choices=opt.SHARD_BY,
        help="balanced: the same number of records and the same class mix in every shard, +-1; "
        "class: every shard holds one class (default: balanced)",
    )
    add(
        "--transform_module",
        metavar="FILE|MODULE",
        help="Python module with preprocessing_fn(inputs), as in TFX; its outputs replace the "
        "extra columns (default: none)",
    )
    add(
        "--transform_temp_dir",
        metavar="DIR",
        help="folder that TensorFlow on every worker sees, needed for extra columns with --output "
        "s3:// on a cluster (default: below --output, or of the machine that does the work)",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--output", required=True, metavar="DIR", help="folder of the data set")
    add(
        "--compression",
        default="none",
        choices=opt.COMPRESSIONS,
        help="of shards; JPEG hardly shrinks (default: none)",
    )
    add(
        "--max_reject_fraction",
        default=0.01,
        type=float,
        metavar="0..1",
        help="more rejected images than this fail the job, after all was tried (default: 0.01)",
    )
    no_bytes = "keep reasons of rejected images, but not their bytes"
    add("--no_quarantine_bytes", action="store_true", help=no_bytes)
    add("--no_report", action="store_true", help="do not write report/")
    add(
        "--overwrite",
        action="store_true",
        help="replace a finished data set; classes keep the ids they had",
    )
    add(
        "--plan_only",
        action="store_true",
        help="list and plan, show the shards and an estimate of time and bytes, write nothing",
    )


def parse(argv: Sequence[str]) -> tuple[opt.BuildOptions, list[str]]:
    """Options of a build, and the flags that are left for Beam.

    Raises:
        UserError: A flag has a value that cannot be.
    """
    args, beam_args = make_parser().parse_known_args(argv)
    source = opt.InputOptions(
        input=parse_path("--input", args.input), layout=args.layout, label_regex=args.label_regex,
        image_column=args.image_column, key_column=args.key_column, label_column=args.label_column,
        split_column=args.split_column, group_column=args.group_column,
        columns=parse_columns(args.columns), extensions=parse_extensions(args.extensions),
    )  # fmt: skip
    height, width = parse_size(args.image_size)
    image = opt.ImageOptions(
        height_px=height, width_px=width, resize_mode=args.resize_mode, filter=args.filter,
        quality=args.quality, subsampling=args.subsampling, colorspace=args.colorspace,
        background=parse_color(args.background), only_shrink=args.only_shrink,
        max_pixels=parse_limit("--max_image_mpx", args.max_image_mpx, 1e6),
        max_bytes=parse_limit("--max_image_mb", args.max_image_mb, 2**20),
        bbox_frame=args.bbox_frame,
    )  # fmt: skip
    plan = opt.PlanOptions(
        splits=parse_pairs("--splits", args.splits, float),
        num_shards=parse_num_shards(args.num_shards), shard_mb=args.shard_mb,
        shard_by=args.shard_by, salt=args.salt, class_names=parse_class_names(args.class_names),
        allow_one_class=args.allow_one_class,
    )  # fmt: skip
    build = opt.BuildOptions(
        source=source, output=parse_path("--output", args.output), image=image, plan=plan,
        transform_module=args.transform_module,
        transform_temp_dir=None if args.transform_temp_dir is None
        else parse_path("--transform_temp_dir", args.transform_temp_dir),
        compression=args.compression,
        max_reject_fraction=args.max_reject_fraction,
        quarantine_bytes=not args.no_quarantine_bytes, report=not args.no_report,
        overwrite=args.overwrite, plan_only=args.plan_only,
    )  # fmt: skip
    return build, beam_args
