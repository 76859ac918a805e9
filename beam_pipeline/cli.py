"""Parses the command line of a build, or the keywords of `ims.build`, into options."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from beam_pipeline import options as opt
from beam_pipeline.option_texts import invalid, joined_class_maps, parse_size
from imageshards import __version__
from imageshards.commands.command_line import Parser, did_you_mean, nearest_flags
from imageshards.commands.options import add_options

_Options = TypeVar("_Options")

_EPILOG = """\
All remaining flags, such as --runner and --direct_num_workers, go to Beam's
PipelineOptions. A flag that Beam does not know is an error.
Exit codes: 0 done, 1 failed, 2 something to fix, 130 stopped by Ctrl-C. To
resume a build that was stopped or killed, run the same command again.

example:
  imageshards build --input photos/ --output shards/ --image_size 256
"""


def parse(argv: Sequence[str]) -> tuple[opt.BuildOptions, list[str]]:
    args, beam_args = make_parser().parse_known_args(argv)
    return _options(vars(args)), beam_args


def options_of(keywords: Mapping[str, Any]) -> opt.BuildOptions:
    """Turns keywords with the names of flags into the options of a build.

    A value is the text of the flag, or a Python value; None if the flag is not given. Raises
    `UserError` if a keyword is unknown, or has a wrong value.
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
            raise invalid(name, f"{value!r}, no keyword of build", remedy=hint.rstrip())
        if value is None and name not in ("input", "output"):
            continue
        if action.nargs != 0:
            values[action.dest] = _value(name, value, action.type)
        elif not isinstance(value, bool):
            raise invalid(name, repr(value), "True or False")
        elif value:
            values[action.dest] = action.const
    return _options(values)


def _value(name: str, value: Any, parse: Any) -> Any:
    """Returns the value of an option; a text passes through the parser of its flag."""
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    is_pairs, is_list = isinstance(value, Mapping), isinstance(value, Iterable)
    if name in ("input", "exclude"):
        values = [value] if isinstance(value, str) or not is_list else value
        return [*map(parse, values or [""] * (name == "input"))]
    if name == "class_map" and is_list and not is_pairs and not isinstance(value, str):
        return [_value(name, each, parse) for each in value]
    if name == "output":
        return parse(value)
    if parse in (int, float) and isinstance(value, str):
        try:
            return parse(value)
        except ValueError:
            return value  # `check_options` refuses the text with a better sentence
    if parse in (None, int, float):
        return value
    if isinstance(value, str):
        text = value
    # A name of a class may have a comma in it, so a list of names must not become one text.
    elif name in ("class_names", "class_map") and is_list:
        texts = [*value, *(value.values() if is_pairs else ())]
        if is_pairs != (name == "class_map") or not all(isinstance(one, str) for one in texts):
            expected = "texts" if name == "class_names" else "a dict of texts"
            raise invalid(name, repr(value), expected)
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
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    if "class_map" in given:
        maps = given["class_map"]
        given["class_map"] = joined_class_maps(maps if isinstance(maps, tuple) else [maps])
    # One flag sets two fields.
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
