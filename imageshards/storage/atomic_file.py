"""Atomic writes: a file appears at its path whole or not at all, here or in a store.

To a store it is sent in parts while it is still being written. A shard is sent about as fast as
several processes can encode: one sent only when it is whole would keep its process waiting.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import os
import tempfile
import threading
import uuid
from typing import BinaryIO, cast

from imageshards.storage import files
from imageshards.storage.base import Stat

# How long an abandoned upload may take to delete its parts.
_ABANDON_SEC = 5.0


class AtomicFile:
    """What is written to `local_path` is at `path` after `commit`; without `commit` it is deleted.

    Where a store refuses parts (rights, a store that is only similar to the real one), the
    whole file is sent by `commit`.

    Args:
        path: Where the file is to be.
        beside: On this machine, what the file is beside until then, if not `path`.

    Attributes:
        path: The same.
        local_path: A name on this machine, to be written from its beginning to its end.
    """

    def __init__(self, path: str, beside: str = ""):
        self.path = path
        self.local_path = f"{beside or path}.tmp-{uuid.uuid4().hex[:8]}"
        self._stack = contextlib.ExitStack()
        self._part_bytes = files.backend(path).part_bytes
        self._growing: _GrowingFile | None = None
        self._sent: concurrent.futures.Future[Stat] | None = None

    def __enter__(self) -> AtomicFile:
        if files.is_local(self.path):
            self._stack.callback(_remove, self.local_path)
        else:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="imageshards-"))
            self.local_path = os.path.join(folder, files.name_of(self.path))
        return self

    def __exit__(self, *error: object) -> None:
        if self._growing is not None and self._sent is not None:
            self._growing.abandon()
            concurrent.futures.wait([self._sent], _ABANDON_SEC)
        self._stack.close()

    def note_size(self, size_bytes: int) -> None:
        """Call it now and then with the bytes written so far; some may not be in the file yet."""
        sent_bytes = 0 if self._growing is None else self._growing.size_bytes
        if not self._part_bytes or size_bytes - sent_bytes < self._part_bytes:
            return
        in_file_bytes = os.stat(self.local_path).st_size
        if in_file_bytes - sent_bytes < self._part_bytes:
            return
        if self._growing is None:
            self._growing = _GrowingFile(self.local_path)
            thread = concurrent.futures.ThreadPoolExecutor(1)
            self._sent = thread.submit(self._send, self._growing)
            thread.shutdown(wait=False)  # it ends when the file is sent
        self._growing.grow(in_file_bytes)

    def commit(self) -> str:
        """Moves or sends the closed file to `path`; returns its version in a store.

        Raises:
            OSError, StorageError: It cannot be written there.
        """
        if files.is_local(self.path):
            os.replace(self.local_path, self.path)
            return ""
        if self._growing is not None and self._sent is not None:
            self._growing.grow(os.stat(self.local_path).st_size, is_whole=True)
            with contextlib.suppress(OSError):
                return self._sent.result().version
        return files.upload(self.local_path, self.path).version

    def _send(self, file: _GrowingFile) -> Stat:
        with file:
            return files.backend(self.path).upload_stream(cast(BinaryIO, file), self.path)


class _GrowingFile(io.RawIOBase):
    """A file that is read while it is written: `read` waits for enough bytes, or the end."""

    def __init__(self, path: str):
        self._file = open(path, "rb", buffering=0)
        self._changed = threading.Condition()
        self._is_whole = False
        self._is_abandoned = False
        self.size_bytes = 0

    def grow(self, size_bytes: int, is_whole: bool = False) -> None:
        """The file has so many bytes now."""
        with self._changed:
            self.size_bytes, self._is_whole = size_bytes, is_whole
            self._changed.notify()

    def abandon(self) -> None:
        """Makes `read` fail: the upload is not wanted any more."""
        with self._changed:
            self._is_abandoned = True
            self._changed.notify()

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int | None = -1) -> bytes:
        wanted = float("inf") if size is None or size < 0 else size
        start = self._file.tell()
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_abandoned or self._is_whole or wanted <= self.size_bytes - start
            )
            if self._is_abandoned:
                raise OSError("the file was given up")
            left = int(min(wanted, self.size_bytes - start))
        blocks = []
        while left and (block := self._file.read(left)):
            blocks.append(block)
            left -= len(block)
        return b"".join(blocks)

    def close(self) -> None:
        self._file.close()
        super().close()


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # mostly, it has its final name by now
        os.unlink(path)
