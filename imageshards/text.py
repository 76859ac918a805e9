"""Counts and long names as people read them, in sentences and tables."""

from __future__ import annotations

import re
import sys
import textwrap
import unicodedata
from collections.abc import Iterable
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


def composed(name: str) -> str:
    """A class name in NFC, the form in which all class names are compared and recorded.

    One name in two forms of Unicode, as macOS and Linux write é, would be two classes.
    """
    return unicodedata.normalize("NFC", name)


_WHOLE_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)


def class_sort_key(name: str) -> tuple[bool, int, str]:
    """The sort key of a class name: whole numbers come first, as numbers; then code points.

    >>> sorted(["10", "cat", "2"], key=class_sort_key)
    ['2', '10', 'cat']
    """
    is_number = _WHOLE_NUMBER.fullmatch(name) is not None
    return not is_number, int(name) if is_number else 0, name


# Letters of other alphabets that look as Latin ones do.
_LOOK_ALIKE = str.maketrans(
    "аеорсухіАВЕКМНОРСТХІαοινΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",  # Cyrillic and Greek
    "aeopcyxiABEKMHOPCTXIaoivABEZHIKMNOPTYX",
)


def look_of(name: str) -> str:
    """What a person sees of a name: equal for names that look alike, or differ in case alone."""
    seen = unicodedata.normalize("NFKC", name).translate(_LOOK_ALIKE).casefold()
    shown = (mark for mark in seen if unicodedata.category(mark) != "Cf")  # of no width
    return " ".join("".join(shown).split())


def about_look_alikes(name: str, known: Iterable[str]) -> str:
    """A phrase that shows how a name differs from a known one that looks like it; "" for none."""
    look = look_of(name)
    alike = [one for one in known if look_of(one) == look]
    if not alike:
        return ""
    return f" ({ascii(alike[0])} looks like it, but is not {ascii(name)})"


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
