"""Sends a file to a store while it is still being written.

A shard is sent about as fast as several processes can encode: one that is sent only when it is
whole keeps its process waiting for that time.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import os
import threading
from typing import BinaryIO, cast

from imageshards.storage import files
from imageshards.storage.base import Stat

# How long what was begun in vain is given to be taken back.
_ABANDON_SEC = 5.0


class UploadAhead:
    """One file of this machine that becomes an object when it is finished, and not before.

    Sending ahead may fail where sending the whole file does not (rights, a store that is only
    similar to the real one): then the whole file is sent. To be closed: left without `finish`,
    there is no object.

    Args:
        local_path: The file. It is written from its beginning to its end, by another.
        path: Where it goes; for a path of this machine nothing is done ahead.
    """

    def __init__(self, local_path: str, path: str):
        self._local_path = local_path
        self._path = path
        self._part_bytes = files.part_bytes(path)
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._file: _GrowingFile | None = None
        self._sent: concurrent.futures.Future[Stat] | None = None

    def __enter__(self) -> UploadAhead:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None and self._sent is not None:
            self._file.abandon()
            concurrent.futures.wait([self._sent], _ABANDON_SEC)
        self._thread.shutdown(wait=False)

    def note_size(self, size_bytes: int) -> None:
        """Told, now and then, how much was written; some of it may not be in the file yet."""
        known = 0 if self._file is None else self._file.size_bytes
        if not self._part_bytes or size_bytes - known < self._part_bytes:
            return
        in_file = os.stat(self._local_path).st_size
        if in_file - known < self._part_bytes:
            return
        if self._file is None:
            self._file = _GrowingFile(self._local_path)
            self._sent = self._thread.submit(self._send, self._file)
        self._file.grow(in_file)

    def finish(self) -> Stat:
        """Sends what is left of the file, which is whole now.

        Raises:
            OSError, StorageError: It cannot be sent.
        """
        if self._file is not None and self._sent is not None:
            self._file.end(os.stat(self._local_path).st_size)
            with contextlib.suppress(OSError):
                return self._sent.result()
        return files.upload(self._local_path, self._path)

    def _send(self, file: _GrowingFile) -> Stat:
        with file:
            return files.upload_stream(cast(BinaryIO, file), self._path)


class _GrowingFile(io.RawIOBase):
    """A file to read while it is written: `read` waits until there is enough, or no more."""

    def __init__(self, path: str):
        self._file = open(path, "rb", buffering=0)
        self._changed = threading.Condition()
        self._ended = False
        self._abandoned = False
        self.size_bytes = 0

    def grow(self, size_bytes: int) -> None:
        """There are so many bytes now."""
        with self._changed:
            self.size_bytes = size_bytes
            self._changed.notify()

    def end(self, size_bytes: int) -> None:
        """There will be no more."""
        with self._changed:
            self.size_bytes, self._ended = size_bytes, True
            self._changed.notify()

    def abandon(self) -> None:
        """Nobody wants it: `read` fails."""
        with self._changed:
            self._abandoned = True
            self._changed.notify()

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int | None = -1) -> bytes:
        wanted = float("inf") if size is None or size < 0 else size
        at = self._file.tell()
        with self._changed:
            self._changed.wait_for(
                lambda: self._abandoned or self._ended or wanted <= self.size_bytes - at
            )
            if self._abandoned:
                raise OSError("the file was given up")
            left = int(min(wanted, self.size_bytes - at))
        blocks = []
        while left and (block := self._file.read(left)):
            blocks.append(block)
            left -= len(block)
        return b"".join(blocks)

    def close(self) -> None:
        self._file.close()
        super().close()
