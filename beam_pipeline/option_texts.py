"""Parses the texts of flags into the values of options, among them the columns of a table."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from imageshards.commands.command_line import names_or_file, split_names
from imageshards.errors import Arg, UserError
from imageshards.text import composed

COLUMN_KINDS = ("int", "float", "string")
SCALINGS = ("none", "zscore", "minmax")

# Numbers have few digits, as `int` raises ValueError for a text of more than 4,300.
_COLUMN = re.compile(
    r"(?P<name>[^:]+):(?P<kind>\w+)(?P<list>\[(?P<size>\d{0,6})\])?(:(?P<scale>\w+))?", re.ASCII
)
_SIZE = re.compile(r"(\d{1,99})(?:x(\d{1,99}))?", re.ASCII)


def invalid(argument: str | Arg, received: str, expected: str = "", remedy: str = "") -> UserError:
    return UserError(argument=argument, received=received, expected=expected, remedy=remedy)


@dataclasses.dataclass(frozen=True)
class ColumnSpec:
    """Extra column of an image table.

    Attributes:
        name: Name of the column, and of the feature in the record.
        kind: `int`, `float` or `string`; the record stores int64, float32 or bytes.
        shape: `()` for a scalar, `(k,)` for a list of fixed length, None for a list of any length.
        scale: `none`, or for floats `zscore` or `minmax`.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None = ()
    scale: str = "none"

    def __post_init__(self) -> None:
        if self.shape is not None and self.shape != () and self.shape[0] < 1:
            received = f"{self.name} with the length {self.shape[0]}"
            raise invalid("columns", received, "at least 1, or [] for a variable length")
        for received, allowed in ((self.kind, COLUMN_KINDS), (self.scale, SCALINGS)):
            if received not in allowed:
                expected = f"one of {', '.join(allowed)}"
                raise invalid("columns", f"{self.name} with {received!r}", expected)
        if self.scale != "none" and self.kind != "float":
            received = f"{self.name} with scaling {self.scale!r} for a {self.kind} column"
            raise invalid("columns", received, "a float column")

    def __str__(self) -> str:
        """Returns the column as `--columns` writes it: `age:float:zscore`."""
        size = "" if self.shape == () else f"[{self.shape[0] if self.shape else ''}]"
        scale = "" if self.scale == "none" else f":{self.scale}"
        return f"{self.name}:{self.kind}{size}{scale}"


def label_group(regex: re.Pattern[str]) -> str | int | None:
    """Returns the group of `--label_regex` that captures the label; None if there is none.

    The group is called `label`, or is the first one that is called neither `split` nor `group`.
    """
    if "label" in regex.groupindex:
        return "label"
    taken = {regex.groupindex.get("split"), regex.groupindex.get("group")}
    return next((i for i in range(1, regex.groups + 1) if i not in taken), None)


def beam_flag(name: str) -> Arg:
    """Returns a flag of Beam for the text of an error."""
    # Unlike our own options, it keeps its dashes in Python: there it is a text in `beam_args`.
    return Arg(name, python=f"--{name}")


def parse_size(text: str) -> tuple[int, int]:
    """Parses `N` or `HEIGHTxWIDTH` into (height, width) in pixels."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise invalid("image_size", repr(text), "pixels as N or HEIGHTxWIDTH")
    return int(found[1]), int(found[2] or found[1])


def parse_timeouts(text: str) -> tuple[float, ...]:
    """Parses `10,30,120` into three numbers of seconds."""
    try:
        seconds = tuple(float(part) for part in text.split(","))
    except ValueError:
        seconds = ()
    if len(seconds) != 3 or not all(0 < value < 1e6 for value in seconds):
        expected = (
            "three numbers of seconds above 0, to connect, between two pieces and in all, for "
            "example 10,30,120"
        )
        raise invalid("url_timeouts", repr(text), expected)
    return seconds


def parse_pairs(argument: str, kind: type, text: str) -> dict[str, Any]:
    """Parses `a=1,b=2` into a dict of numbers of a kind, `int` or `float`."""
    pairs: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            number = kind(value)
        except ValueError:
            number = None
        if not name or number is None or name in pairs:
            numbers = "numbers" if kind is float else "whole numbers"
            raise invalid(argument, repr(text), f"names with {numbers}, as in name=1,other=2")
        pairs[name] = number
    return pairs


def parse_num_shards(text: str) -> dict[str, int]:
    """Parses `8` into {"*": 8}, and `train=64,validation=8` into a number for each split."""
    return parse_pairs("num_shards", int, text if "=" in text else f"*={text}")


def parse_class_map(text: str) -> dict[str, str]:
    """Parses `old=new,…`, or a file with one pair on each line."""
    found: dict[str, str] = {}
    for pair in names_or_file("class_map", text):
        old, _, new = map(str.strip, pair.partition("="))
        if not old or not new or old in found:
            expected = "pairs of names as in old=new,other=new, each old one once"
            raise invalid("class_map", f"{text!r}, where {old!r} becomes {new!r}", expected)
        found[old] = new
    return found


def joined_class_maps(maps: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Returns the pairs of several class maps; raises `UserError` if one renames a class anew."""
    found: dict[str, str] = {}
    for old, new in (pair for each in maps for pair in each.items()):
        if found.setdefault(old, new) != new:
            received = f"{old}={found[old]} and {old}={new}"
            raise invalid("class_map", received, "each old name once")
    return found


def checked_class_map(class_map: Mapping[str, str]) -> dict[str, str]:
    """Returns a class map in composed Unicode; raises `UserError` for chains and equal names."""
    renamed = {composed(old): composed(new) for old, new in class_map.items()}
    for old, new in renamed.items():
        if old == new:
            raise invalid("class_map", f"{old}={new}", "a class and another name for it")
        # A chain such as a=b,b=c would depend on the order in which names are looked up.
        if new in renamed:
            received = f"{old}={new} and {new}={renamed[new]}"
            remedy = "rename what is swapped in two builds"
            raise invalid("class_map", received, "each class on one side only", remedy)
    return renamed


def parse_extensions(text: str) -> tuple[str, ...]:
    """Parses `jpg,.PNG` into (".jpg", ".png")."""
    names = [name.strip().lstrip("*").lstrip(".").lower() for name in text.split(",")]
    if not all(names):
        raise invalid("extensions", repr(text), "a list as in jpg,png")
    return tuple("." + name for name in names)


def parse_names(text: str) -> tuple[str, ...]:
    """Parses `city,zip` into the names of columns."""
    if not (names := split_names(text)):
        raise invalid("drop_column", repr(text), "names of columns, as in city,zip")
    return names


def parse_globs(text: str) -> tuple[str, ...]:
    """Parses `*_small.jpg,cat/old` into ("*_small.jpg", "cat/old")."""
    globs = split_names(text)
    # A glob of slashes alone would match nothing, or the whole input.
    if not all(glob.strip("/") for glob in globs or [""]):
        raise invalid("exclude_glob", repr(text), "globs as in '*_small.jpg' or 'cat/old'")
    return globs


def parse_columns(text: str) -> tuple[ColumnSpec, ...]:
    """Parses `age:float:zscore,tokens:int[]` into columns; "" means no column at all."""
    specs = []
    for part in split_names(text):
        found = _COLUMN.fullmatch(part)
        if not found:
            expected = (
                "name:int|float|string, with [] or [N] for lists and :zscore or :minmax for floats"
            )
            raise invalid("columns", repr(part), expected)
        size = found["size"]
        shape = None if found["list"] and not size else (int(size),) if size else ()
        specs.append(ColumnSpec(found["name"], found["kind"], shape, found["scale"] or "none"))
    return tuple(specs)
