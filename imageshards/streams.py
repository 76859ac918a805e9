"""Standard output and standard error that no job depends on."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO


class LastingStream:
    """A stream that drops all text after its first error, for example on a full disk.

    Args:
        stream: What is written to.
        raises: Whether the first error is raised, too.

    Attributes:
        error: The first error; None while there was none.
    """

    def __init__(self, stream: TextIO, raises: bool = False):
        self._stream = stream
        self._raises = raises
        self.error: Exception | None = None

    def write(self, text: str) -> int:
        """Writes a text."""
        self._attempt(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Writes what is buffered."""
        self._attempt(self._stream.flush)

    def close(self) -> None:
        """Keeps the stream open: absl's logging closes every stream but the process's own."""
        self.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, write: Callable[..., object], *text: str) -> None:
        if self.error is not None:
            return
        try:
            write(*text)
        except (OSError, ValueError) as e:  # ValueError: somebody has closed it
            self.error = e
            # Python writes what is still buffered when it ends.
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as null:
                os.dup2(null.fileno(), self._stream.fileno())
            if self._raises:
                raise


@contextlib.contextmanager
def lasting_streams(raises: bool = False) -> Iterator[LastingStream]:
    """Makes standard output and error lasting ones; yields the first, which `raises` if asked to.

    Characters that their encoding does not have are escaped, as file names may hold any.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The next file to be opened would get this number, and all that native code prints.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w"))
    for stream in (sys.stdout, sys.stderr):
        # Python asks for the position, which there is none of where a pipe has replaced a file.
        with contextlib.suppress(OSError):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
    out: Any = LastingStream(sys.stdout, raises)
    err: Any = LastingStream(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            yield out
        finally:  # what Python itself writes at its end may fail, too
            with contextlib.suppress(OSError, ValueError):
                out.flush()
