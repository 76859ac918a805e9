"""Texts for people: counts and names, names that look alike, and the streams that print them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

# The usual width of a terminal, which also makes a readable log.
LINE_CHARACTERS = 80

# "tch" and not "ch", as the plurals are "batches" but "epochs".
_SIBILANTS = ("s", "x", "z", "tch", "sh")


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun, for example `1 file` or `1,200 files`."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith(_SIBILANTS) else 's'}"


# Backslashes before a byte that is not UTF-8, or before the escape that `printable` makes of one.
_ESCAPED = re.compile(r"(\\+)(?=udc[89a-f][0-9a-f]|[\udc80-\udcff])")


def printable(text: str) -> str:
    """Returns a text with escapes like `\\udce9` in place of bytes that are not UTF-8."""
    # In a file name Python holds these bytes as surrogates, which no output can encode.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# Characters that move the cursor, change the order of letters, or start a command of a terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Returns a text with JSON's escapes for control characters, but tabs and ends of lines.

    A stranger's name could otherwise command the terminal that prints the name.
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def key_of(name: str) -> str:
    """Returns the key of a file or folder name: `printable`, but different for different names."""
    # A doubled backslash cannot be mistaken for the backslash of an escape.
    return printable(_ESCAPED.sub(r"\1\1", name))


def composed(name: str) -> str:
    """Returns a class name in NFC, the form in which all class names are compared and recorded."""
    # macOS and Linux write é in two forms, which would be two classes.
    return unicodedata.normalize("NFC", name)


_WHOLE_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)


def class_sort_key(name: str) -> tuple[bool, int, str]:
    """Returns the sort key of a class name: whole numbers first, by value, then texts.

    >>> sorted(["10", "cat", "2"], key=class_sort_key)
    ['2', '10', 'cat']
    """
    is_number = _WHOLE_NUMBER.fullmatch(name) is not None
    return not is_number, int(name) if is_number else 0, name


# Cyrillic and Greek letters → the Latin letters that look the same.
_LOOK_ALIKE = str.maketrans(
    "аеорсухіАВЕКМНОРСТХІαοινΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "aeopcyxiABEKMHOPCTXIaoivABEZHIKMNOPTYX",
)


def look_of(name: str) -> str:
    """Returns a form of a name that is equal for names that look alike or differ only in case."""
    seen = unicodedata.normalize("NFKC", name).translate(_LOOK_ALIKE).casefold()
    shown = (mark for mark in seen if unicodedata.category(mark) != "Cf")  # Cf: without width
    return " ".join("".join(shown).split())


def about_look_alikes(name: str, known: Iterable[str]) -> str:
    """Returns a phrase about the first known name that looks like this name; "" for none."""
    look = look_of(name)
    alike = [one for one in known if look_of(one) == look]
    if not alike:
        return ""
    return f" ({ascii(alike[0])} looks like it, but is not {ascii(name)})"


def printable_in(value: Any) -> Any:
    """Returns the value of a JSON file with all texts made `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): printable_in(each) for key, each in value.items()}
    return [*map(printable_in, value)] if isinstance(value, list | tuple) else value


def shortened(text: str, width: int) -> str:
    """Returns a text of at most `width` characters; `…` replaces the middle of a longer text."""
    if len(text) <= width:
        return text
    kept = max(0, width - 1)
    end = kept // 2
    return f"{text[: kept - end]}…{text[len(text) - end :]}"[:width]


def wrapped(text: str) -> str:
    """Breaks a long line between words and indents all lines but the first."""
    return textwrap.fill(
        text,
        LINE_CHARACTERS,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def for_output(text: str) -> str:
    """Wraps a long line for a terminal; keeps it whole in a log, which may be searched."""
    return wrapped(text) if sys.stdout.isatty() else text


class LastingStream:
    """A stream that drops all text after its first error, for example on a full disk.

    Args:
        stream: The stream that receives the text.
        raises: Whether to raise the first error.
        escapes: Whether to make control characters `visible`.

    Attributes:
        error: The first error; None without an error so far.
    """

    def __init__(self, stream: TextIO, raises: bool = False, escapes: bool = False):
        self._stream = stream
        self._raises = raises
        self._escapes = escapes
        self.error: Exception | None = None

    def write(self, text: str) -> int:
        """Writes a text."""
        # Bars of progress begin with a carriage return.
        shown = "\r".join(map(visible, text.split("\r"))) if self._escapes else text
        self._attempt(self._stream.write, shown)
        return len(text)

    def flush(self) -> None:
        """Writes the buffered text."""
        self._attempt(self._stream.flush)

    def close(self) -> None:
        """Flushes the stream and keeps it open."""
        # absl's logging closes every stream that is not `sys.stdout` or `sys.stderr`.
        self.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, write: Callable[..., object], *text: str) -> None:
        if self.error is not None:
            return
        try:
            write(*text)
        except (OSError, ValueError) as e:  # A closed stream raises ValueError.
            self.error = e
            # Python writes the rest of the buffer when it ends, which would fail again.
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as null:
                os.dup2(null.fileno(), self._stream.fileno())
            if self._raises:
                raise


@contextlib.contextmanager
def lasting_streams(raises: bool = False) -> Iterator[LastingStream]:
    """Makes standard output and standard error lasting streams, and yields standard output.

    `raises` is whether standard output raises its first error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The next file that is opened would get this number, and receive all output of C code.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w"))
    for stream in (sys.stdout, sys.stderr):
        # `reconfigure` asks for the position, which a pipe in place of a file does not have.
        with contextlib.suppress(OSError):
            if isinstance(stream, io.TextIOWrapper):
                # File names may hold characters that the encoding lacks.
                stream.reconfigure(errors="backslashreplace")
    out: Any = LastingStream(sys.stdout, raises, escapes=True)
    err: Any = LastingStream(sys.stderr, escapes=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            yield out
        finally:
            # Python itself flushes at its end, where an error would change the exit code.
            with contextlib.suppress(OSError, ValueError):
                out.flush()
