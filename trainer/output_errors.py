"""Turns errors of writing to a run's folder into a `UserError` that says what to do."""

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
    """Turns errors of a disk or a store into a `UserError`: `what` cannot be written to `output`.

    `then` says what the user does after the remedy.

    Raises:
        UserError: The disk is full, the user may not write, or the store cannot be reached.
    """
    received = f"{output!r}, where {what} cannot be written"
    try:
        yield
    except StorageError as e:
        # Its message already says what to do about the bucket.
        reason = str(e).rstrip(".")
        raise UserError(
            argument="output", received=f"{received} ({reason})", remedy=f"then {then}"
        ) from e
    except OSError as e:
        remedy = "make room" if storage.is_local(output) else "wait for the store"
        if isinstance(e, PermissionError):
            remedy = "get the right to write there"
        elif e.errno == errno.ENOSPC and not storage.is_local(output):
            # A store has no limit: the full disk is the one from which the file is uploaded.
            remedy = f"make room in {tempfile.gettempdir()}, or set TMPDIR to a larger folder"
        raise UserError(
            argument="output",
            received=f"{received} ({e.strerror or e})",
            remedy=f"{remedy}, then {then}",
        ) from e
