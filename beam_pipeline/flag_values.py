"""What the text of a flag stands for; a value that cannot be is one sentence with the flag."""

from __future__ import annotations

import math
import os
import re
import urllib.parse
from typing import Any

from beam_pipeline.options import ColumnSpec
from imageshards.errors import UserError

_COLUMN = re.compile(
    r"(?P<name>[^:]+):(?P<kind>\w+)(?P<list>\[(?P<size>\d{0,6})\])?(:(?P<scale>\w+))?", re.ASCII
)
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_SIZE = re.compile(r"(\d{1,9})(?:x(\d{1,9}))?", re.ASCII)


def runner_name(text: str | None) -> str:
    """A --runner as Beam reads it, `portable` or `flink`: in any case, as a class or a word."""
    return (text or "DirectRunner").rpartition(".")[2].lower().removesuffix("runner")


def parse_path(flag: str, text: str) -> str:
    """An absolute path, or the URI of a store, without a slash at the end."""
    if not text.strip():
        raise UserError(f"{flag} received {text!r}; expected a path.")
    if text.startswith("file:///"):  # Beam has no file system of that name
        return urllib.parse.unquote(text.removeprefix("file://"))
    scheme, separator, rest = text.partition("://")
    if separator:
        return scheme + separator + rest.rstrip("/")
    return os.path.abspath(os.path.expanduser(text))


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


def parse_limit(flag: str, value: float, unit: float) -> int:
    """A limit in large units → in whole small ones, at least one."""
    if not math.isfinite(value) or value * unit < 1:
        raise UserError(f"{flag} received {value:g}; expected a number above 0.")
    return round(value * unit)


def parse_pairs(flag: str, text: str, kind: type) -> dict[str, Any]:
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


def parse_num_shards(text: str | None) -> dict[str, int]:
    """None → {}, `8` → {"*": 8}, `train=64,validation=8` → that."""
    if text is None:
        return {}
    if _NUMBER.fullmatch(text.strip()):
        return {"*": int(text)}
    if "=" not in text:
        raise UserError(
            f"--num_shards received {text!r}; expected a number, or one for each split as in "
            "train=64,validation=8."
        )
    return parse_pairs("--num_shards", text, int)


def parse_class_names(text: str | None) -> tuple[str, ...] | None:
    """Names separated by commas, or the lines of a file of that name."""
    if text is None:
        return None
    if not os.path.isfile(text):
        if "," not in text and (os.sep in text or text.endswith(".txt")):
            raise UserError(
                f"--class_names received {text!r}, which is no file; expected names separated by "
                "commas, or a file with one on each line."
            )
        names = tuple(name.strip() for name in text.split(",") if name.strip())
    else:
        try:
            with open(text, encoding="utf-8-sig") as file:
                names = tuple(line.strip() for line in file if line.strip())
        except (OSError, UnicodeDecodeError) as e:
            raise UserError(
                f"--class_names {text!r} cannot be read ({e}); expected one class per line."
            ) from e
    if not names:
        raise UserError(f"--class_names received {text!r}; expected at least one name.")
    return names


def parse_extensions(text: str) -> tuple[str, ...]:
    """`jpg,.PNG` → (".jpg", ".png")."""
    names = [name.strip().lstrip("*").lstrip(".").lower() for name in text.split(",")]
    if not all(names):
        raise UserError(f"--extensions received {text!r}; expected a list as in jpg,png.")
    return tuple("." + name for name in names)


def parse_columns(text: str | None) -> tuple[ColumnSpec, ...] | None:
    """`age:float:zscore,tokens:int[]` → specs; None stays None, "" is no column at all."""
    if text is None:
        return None
    specs = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        found = _COLUMN.fullmatch(part)
        if not found:
            raise UserError(
                f"--columns received {part!r}; expected name:int|float|string, with [] or [N] for "
                "lists and :zscore or :minmax for floats."
            )
        size = found["size"]
        shape = None if found["list"] and not size else (int(size),) if size else ()
        specs.append(ColumnSpec(found["name"], found["kind"], shape, found["scale"] or "none"))
    return tuple(specs)
