"""The command line of a build: flags, their units and defaults, and what they become."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from beam_pipeline import options as opt
from beam_pipeline.option_texts import parse_size
from imageshards import __version__
from imageshards.commands.command_line import Parser, did_you_mean, nearest_flags
from imageshards.commands.options import add_options
from imageshards.errors import UserError

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
    return _options(vars(args)), beam_args


def options_of(keywords: Mapping[str, Any]) -> opt.BuildOptions:
    """Options of a build from keywords that are named as the flags.

    Args:
        keywords: Values as flags take them, in texts, or what these stand for; None for none.

    Raises:
        UserError: A keyword is unknown, or its value cannot be.
    """
    parser = make_parser()
    values: dict[str, Any] = {}
    for name, value in keywords.items():
        action = parser._option_string_actions.get(f"--{name}")
        if action is None or name in ("help", "version"):
            known = [flag for flag in parser.flags if flag not in ("--help", "--version")]
            names = [flag.removeprefix("--") for flag in nearest_flags(name, known)]
            hint = did_you_mean(names)
            hint = hint or f"a flag of Beam goes into beam_args, as in beam_args=['--{name}=...']"
            raise UserError(
                argument=name, received=f"{value!r}, no keyword of build", remedy=hint.rstrip()
            )
        if value is None and name not in ("input", "output"):
            continue
        if action.nargs != 0:
            values[action.dest] = _value(name, value, action.type)
        elif not isinstance(value, bool):
            raise UserError(argument=name, received=repr(value), expected="True or False")
        elif value:
            values[action.dest] = action.const
    return _options(values)


def _value(name: str, value: Any, parse: Any) -> Any:
    """The value of a keyword: texts and what is like them pass through the flag's own parser."""
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    is_pairs, is_list = isinstance(value, Mapping), isinstance(value, Iterable)
    if name == "input":
        return [*map(parse, [value] if isinstance(value, str) or not is_list else value or [""])]
    if name == "output":
        return parse(value)
    if parse in (int, float) and isinstance(value, str):
        try:
            return parse(value)
        except ValueError:
            return value  # which the check of the option refuses
    if parse in (None, int, float):
        return value
    if isinstance(value, str):
        text = value
    elif name in ("class_names", "class_map") and is_list:  # any text may be in a name
        texts = [*value, *(value.values() if is_pairs else ())]
        if is_pairs != (name == "class_map") or not all(isinstance(one, str) for one in texts):
            expected = "texts" if name == "class_names" else "a dict of texts"
            raise UserError(argument=name, received=repr(value), expected=expected)
        return dict(value) if is_pairs else tuple(texts)
    elif is_pairs:
        text = ",".join(f"{key}={each!s}" for key, each in value.items())
    elif is_list:
        separator = "x" if name == "image_size" else ","
        text = separator.join(str(one).replace(",", "\\,") for one in value)
    else:
        text = str(value)
    return parse(text)


def _options(values: dict[str, Any]) -> opt.BuildOptions:
    """Options from the values of flags, by the names of their fields."""
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    if "image_size" in given:
        given["height_px"], given["width_px"] = given["image_size"]

    def of_fields(kind: Callable[..., _Options], **more: Any) -> _Options:
        names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        return kind(**{name: given[name] for name in names & given.keys()} | more)

    source, *others = (of_fields(opt.InputOptions, input=path) for path in given["input"])
    return of_fields(
        opt.BuildOptions,
        source=source,
        more_sources=tuple(others),
        image=of_fields(opt.ImageOptions),
        plan=of_fields(opt.PlanOptions),
        urls=of_fields(opt.UrlOptions),
        given=frozenset(given),
    )


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
    add_options(parser, opt.InputOptions, title="input")
    add = parser.add_argument_group("images").add_argument
    add("--image_size", type=parse_size, default=argparse.SUPPRESS, metavar="PX",
        help="target size in pixels, N or HEIGHTxWIDTH (default: 256)")  # fmt: skip
    add_options(parser, opt.ImageOptions, title="images")
    add_options(parser, opt.UrlOptions, title="images at http:// and https:// addresses in a table")
    add_options(parser, opt.PlanOptions, title="splits and shards")
    add_options(parser, opt.BuildOptions, title="output")
    return parser
