"""Counts and long names as people read them, in sentences and tables."""

from __future__ import annotations

import sys
import textwrap

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


def printable(text: str) -> str:
    """File names may hold bytes that are not text; keys and labels are text."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


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
