"""Keeps a job alive when its standard output or standard error cannot be written."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from imageshards.text import visible


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
