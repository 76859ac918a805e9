"""What a person is told when something cannot be written to the folder of a run."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Iterator

from imageshards import storage
from imageshards.errors import StorageError, UserError


@contextlib.contextmanager
def output_errors(
    output: str, what: str, then: str = "run the same command again"
) -> Iterator[None]:
    """Turns errors of a disk or a store into a sentence: what is written, and what to do `then`.

    Raises:
        UserError: What is inside cannot be written: no room, no rights, or the store is gone.
    """
    received = f"{output!r}, where {what} cannot be written"
    try:
        yield
    except StorageError as e:  # says itself what to do about the bucket
        reason = str(e).rstrip(".")
        raise UserError(
            argument="output", received=f"{received} ({reason})", remedy=f"then {then}"
        ) from e
    except OSError as e:
        remedy = "make room" if storage.is_local(output) else "wait for the store"
        if isinstance(e, PermissionError):
            remedy = "get the right to write there"
        elif e.errno == errno.ENOSPC and not storage.is_local(output):
            remedy = f"make room in {tempfile.gettempdir()}, or set TMPDIR to a larger folder"
        raise UserError(
            argument="output",
            received=f"{received} ({e.strerror or e})",
            remedy=f"{remedy}, then {then}",
        ) from e
