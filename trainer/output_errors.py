"""Turns errors of writing to a run's folder into a `UserError` that says what to do."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Iterator

from imageshards import storage
from imageshards.errors import StorageError, UserError


@contextlib.contextmanager
def output_errors(output: str, what: str) -> Iterator[None]:
    """Turns errors of a disk or a store into a `UserError`: `what` cannot be written to `output`.

    Raises:
        UserError: The disk is full, the user may not write, or the store cannot be reached.
    """
    try:
        yield
    except (StorageError, OSError) as e:
        # A store has no limit: the full disk is the one from which a file is uploaded.
        full = output if storage.is_local(output) else f"{tempfile.gettempdir()} (TMPDIR)"
        remedy = f"make room in {full}, " if getattr(e, "errno", 0) == errno.ENOSPC else ""
        raise UserError(
            argument="output",
            received=f"{output!r}, where {what} cannot be written "
            f"({getattr(e, 'strerror', None) or str(e).rstrip('.')})",
            expected="a place with free space and the right to write there",
            remedy=f"{remedy}then run the same command again",
        ) from e
