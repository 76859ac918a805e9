"""Texts of flags → values of options, among them the columns of a table."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from imageshards.commands.command_line import names_or_file, split_names
from imageshards.errors import Arg, UserError

COLUMN_KINDS = ("int", "float", "string")
SCALINGS = ("none", "zscore", "minmax")

_COLUMN = re.compile(
    r"(?P<name>[^:]+):(?P<kind>\w+)(?P<list>\[(?P<size>\d{0,6})\])?(:(?P<scale>\w+))?", re.ASCII
)
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_SIZE = re.compile(r"(\d{1,99})(?:x(\d{1,99}))?", re.ASCII)


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
                argument="columns",
                received=f"{self.name} with the length {self.shape[0]}",
                expected="at least 1, or [] for a variable length",
            )
        for received, allowed in ((self.kind, COLUMN_KINDS), (self.scale, SCALINGS)):
            if received not in allowed:
                raise UserError(
                    argument="columns",
                    received=f"{self.name} with {received!r}",
                    expected=f"one of {', '.join(allowed)}",
                )
        if self.scale != "none" and self.kind != "float":
            raise UserError(
                argument="columns",
                received=f"{self.name} with scaling {self.scale!r} for a {self.kind} column",
                expected="a float column",
            )

    def __str__(self) -> str:
        """As --columns takes it."""
        size = "" if self.shape == () else f"[{self.shape[0] if self.shape else ''}]"
        scale = "" if self.scale == "none" else f":{self.scale}"
        return f"{self.name}:{self.kind}{size}{scale}"


def beam_flag(name: str) -> Arg:
    """A flag of Beam, which has its dashes in Python, too: there it is a text of `beam_args`."""
    return Arg(name, python=f"--{name}")


def parse_size(text: str) -> tuple[int, int]:
    """`N` or `HEIGHTxWIDTH` → (height, width) in pixels."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise UserError(
            argument="image_size", received=repr(text), expected="pixels as N or HEIGHTxWIDTH"
        )
    return int(found[1]), int(found[2] or found[1])


def parse_timeouts(text: str) -> tuple[float, ...]:
    """`10,30,120` → three numbers of seconds."""
    try:
        seconds = tuple(float(part) for part in text.split(","))
    except ValueError:
        seconds = ()
    if len(seconds) != 3 or not all(0 < value < 1e6 for value in seconds):
        expected = (
            "three numbers of seconds above 0, to connect, between two pieces and in all, for "
            "example 10,30,120"
        )
        raise UserError(argument="url_timeouts", received=repr(text), expected=expected)
    return seconds


def parse_pairs(argument: str, kind: type, text: str) -> dict[str, Any]:
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
                argument=argument,
                received=repr(text),
                expected=f"names with {what}, as in name=1,other=2",
            )
        pairs[name] = number
    return pairs


def parse_num_shards(text: str) -> dict[str, int]:
    """`8` → {"*": 8}, `train=64,validation=8` → that."""
    if _NUMBER.fullmatch(text.strip()):
        return {"*": int(text.strip())}
    if "=" not in text:
        expected = "a number, or one for each split as in train=64,validation=8"
        raise UserError(argument="num_shards", received=repr(text), expected=expected)
    return parse_pairs("num_shards", int, text)


def parse_class_map(text: str) -> dict[str, str]:
    """`old=new,…`, or a file with one on each line."""
    found: dict[str, str] = {}
    for pair in names_or_file("class_map", text):
        old, _, new = map(str.strip, pair.partition("="))
        if not old or not new or old in found:
            received = f"{text!r}, where {old!r} becomes {new!r}"
            expected = "pairs of names as in old=new,other=new, each old one once"
            raise UserError(argument="class_map", received=received, expected=expected)
        found[old] = new
    return found


def parse_extensions(text: str) -> tuple[str, ...]:
    """`jpg,.PNG` → (".jpg", ".png")."""
    names = [name.strip().lstrip("*").lstrip(".").lower() for name in text.split(",")]
    if not all(names):
        raise UserError(argument="extensions", received=repr(text), expected="a list as in jpg,png")
    return tuple("." + name for name in names)


def parse_globs(text: str) -> tuple[str, ...]:
    """`*_small.jpg,cat/old` → ("*_small.jpg", "cat/old")."""
    globs = split_names(text)
    if not all(glob.strip("/") for glob in globs or [""]):
        raise UserError(
            argument="exclude_glob",
            received=repr(text),
            expected="globs as in '*_small.jpg' or 'cat/old'",
        )
    return globs


def parse_columns(text: str) -> tuple[ColumnSpec, ...]:
    """`age:float:zscore,tokens:int[]` → specs; "" is no column at all."""
    specs = []
    for part in split_names(text):
        found = _COLUMN.fullmatch(part)
        if not found:
            expected = (
                "name:int|float|string, with [] or [N] for lists and :zscore or :minmax for floats"
            )
            raise UserError(argument="columns", received=repr(part), expected=expected)
        size = found["size"]
        shape = None if found["list"] and not size else (int(size),) if size else ()
        specs.append(ColumnSpec(found["name"], found["kind"], shape, found["scale"] or "none"))
    return tuple(specs)
