"""The command line of a build: flags, their units and defaults, and what they become."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from beam_pipeline import options as opt
from beam_pipeline.option_texts import parse_size
from imageshards import __version__
from imageshards.commands.command_line import Parser, parse_path
from imageshards.commands.options import add_options

_Options = TypeVar("_Options")

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
    if "image_size" in args:
        args.height_px, args.width_px = args.image_size
    args.given = frozenset(vars(args))
    source, *others = (_of_fields(opt.InputOptions, args, input=path) for path in args.input)
    options = _of_fields(
        opt.BuildOptions,
        args,
        source=source,
        more_sources=tuple(others),
        image=_of_fields(opt.ImageOptions, args),
        plan=_of_fields(opt.PlanOptions, args),
        urls=_of_fields(opt.UrlOptions, args),
    )
    return options, beam_args


def _of_fields(kind: Callable[..., _Options], args: argparse.Namespace, **more: Any) -> _Options:
    """Options from the flags of their fields' names."""
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in vars(args).items()}
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: given[name] for name in names & given.keys()} | more)


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
    add = parser.add_argument_group("input").add_argument
    add("--input", required=True, action="append", metavar="PATH",
        type=functools.partial(parse_path, "--input"),
        help="class folders ROOT/<class>/*.jpg or ROOT/<split>/<class>/*.jpg; a flat folder or a "
        "glob with --label_regex; an image table (.csv, with commas, semicolons or tabs; .jsonl; "
        ".parquet), or a glob of such files; or a finished data set, whose records are copied; "
        "give it again for more inputs")  # fmt: skip
    add_options(parser, opt.InputOptions, title="input")
    add = parser.add_argument_group("images").add_argument
    add("--image_size", type=parse_size, default=argparse.SUPPRESS, metavar="PX",
        help="target size in pixels, N or HEIGHTxWIDTH (default: 256)")  # fmt: skip
    add_options(parser, opt.ImageOptions, title="images")
    add("--check_damage", dest="damage", action="store_const", const="count",
        default=argparse.SUPPRESS,
        help="count and list JPEGs that decode, but with damage that libjpeg warns about, such as "
        "shifted strips and grey blocks; costs 7 to 19 %% of the time for decoding and "
        "encoding")  # fmt: skip
    add("--reject_damaged", dest="damage", action="store_const", const="reject",
        default=argparse.SUPPRESS,
        help="look for them, too, and put them into the quarantine")  # fmt: skip
    add_options(parser, opt.UrlOptions, title="images at http:// and https:// addresses in a table")
    add_options(parser, opt.PlanOptions, title="splits and shards")
    add_options(parser, opt.BuildOptions, title="output")
    return parser
