"""Counts and long names as people read them, in sentences and tables."""

from __future__ import annotations

import re
import sys
import textwrap
from typing import Any

# Of a terminal that nobody has widened, and of a log that is pleasant to read.
LINE_CHARACTERS = 80

# "tch", not "ch": batches, but epochs.
_SIBILANTS = ("s", "x", "z", "tch", "sh")


def counted(count: int, noun: str) -> str:
    """`1 file`, `1,200 files`, `3 classes`: the last word of the noun takes the plural."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith(_SIBILANTS) else 's'}"


# Backslashes before a byte that is no text, or before what `printable` makes of one.
_ESCAPED = re.compile(r"(\\+)(?=udc[89a-f][0-9a-f]|[\udc80-\udcff])")


def printable(text: str) -> str:
    """A text that can be written and shown: bytes of a file name that are no UTF-8, which Python
    holds as surrogates, become `\\udce9`.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def key_of(name: str) -> str:
    """The key of a file or folder name: as `printable`, but different names have different keys.

    So backslashes are doubled in front of what may be read as an escaped byte.
    """
    return printable(_ESCAPED.sub(r"\1\1", name))


def printable_in(value: Any) -> Any:
    """The value of a JSON file with all texts `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): printable_in(each) for key, each in value.items()}
    return [*map(printable_in, value)] if isinstance(value, list | tuple) else value


def shortened(text: str, width: int) -> str:
    """At most `width` characters of a text: the middle of a longer one becomes `…`."""
    if len(text) <= width:
        return text
    kept = max(0, width - 1)
    end = kept // 2
    return f"{text[: kept - end]}…{text[len(text) - end :]}"[:width]


def wrapped(text: str) -> str:
    """A long line as several, those after the first indented; words stay whole."""
    return textwrap.fill(
        text,
        LINE_CHARACTERS,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def for_output(text: str) -> str:
    """A long line for standard output: wrapped on a terminal, whole in a log that is searched."""
    return wrapped(text) if sys.stdout.isatty() else text
