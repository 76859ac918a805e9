"""A file that appears in its place whole or not at all, on this machine or in a store."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid

from imageshards.storage import files
from imageshards.storage.multipart import UploadAhead


class AtomicFile:
    """What is written to `local_path` is at `path` after `commit`; left without it, it is gone.

    Args:
        path: Where the file is to be.
        aside: On this machine, what the file is beside until then, if not `path`.

    Attributes:
        path: The same.
        local_path: A name on this machine; for a path of this machine one that need only change.
    """

    def __init__(self, path: str, aside: str = ""):
        self.path = path
        self.local_path = f"{aside or path}.tmp-{uuid.uuid4().hex[:8]}"
        self._stack = contextlib.ExitStack()
        self._upload: UploadAhead | None = None

    def __enter__(self) -> AtomicFile:
        if files.is_local(self.path):
            self._stack.callback(_remove, self.local_path)
        else:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="imageshards-"))
            self.local_path = os.path.join(folder, files.name_of(self.path))
            self._upload = self._stack.enter_context(UploadAhead(self.local_path, self.path))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def note_size(self, size_bytes: int) -> None:
        """Told, now and then, how much was written: a store may be sent it already."""
        if self._upload is not None:
            self._upload.note_size(size_bytes)

    def commit(self) -> str:
        """Gives the closed file its place; returns its version in a store."""
        if self._upload is not None:
            return self._upload.finish().version
        os.replace(self.local_path, self.path)
        return ""


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # mostly, it has its name by now
        os.unlink(path)
