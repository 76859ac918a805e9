"""Atomic writes: a file appears at its path whole or not at all, here or in a store."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid

from imageshards.storage import files


class AtomicFile:
    """What is written to `local_path` is at `path` after `commit`; without `commit` it is deleted.

    Args:
        path: Where the file is to be.
        beside: On this machine, what the file is beside until then, if not `path`.

    Attributes:
        path: The same.
        local_path: A name on this machine.
    """

    def __init__(self, path: str, beside: str = ""):
        self.path = path
        self.local_path = f"{beside or path}.tmp-{uuid.uuid4().hex[:8]}"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> AtomicFile:
        if files.is_local(self.path):
            self._stack.callback(_remove, self.local_path)
        else:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="imageshards-"))
            self.local_path = os.path.join(folder, files.name_of(self.path))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def commit(self) -> str:
        """Moves or sends the closed file to `path`; returns its version in a store.

        Raises:
            OSError, StorageError: It cannot be written there.
        """
        if files.is_local(self.path):
            os.replace(self.local_path, self.path)
            return ""
        return files.upload(self.local_path, self.path).version


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # mostly, it has its final name by now
        os.unlink(path)
