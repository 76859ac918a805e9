"""One job per output folder."""

from __future__ import annotations

import fcntl
import os
from typing import Any

from imageshards import storage
from imageshards.errors import OutputError, UserError
from imageshards.storage.lease import StorageLock


def output_lock(path: str) -> Lock:
    """The lock for an output: the kernel's on this machine, a lease in a store."""
    return OutputLock(path) if storage.is_local(path) else StorageLock(path)


class OutputLock:
    """Holds `path` for this process; the kernel lets go when the process ends, however.

    `path` is a file in a folder of its own below the output folder; both are made.

    Raises:
        UserError: Another job holds it.
        OutputError: The file cannot be made or locked.
    """

    def __init__(self, path: str):
        self._path = path
        self._output = os.path.dirname(os.path.dirname(path))
        self._file: Any = None

    def __enter__(self) -> OutputLock:
        try:
            self._open()
            # Who holds the lock may remove its folder when it ends: a lock on a file that is
            # no longer there would keep nobody out.
            while not self._is_at_path():
                self._file.close()
                self._open()
            # A child that outlives this process must not hold its lock.
            os.register_at_fork(after_in_child=self.__exit__)
            self._file.truncate(0)
            self._file.write(str(os.getpid()).encode())
        except OSError as e:
            self.__exit__()
            raise OutputError(
                f"--output {self._output!r} cannot be written ({e.strerror}); choose another "
                "folder, make room or fix its permissions."
            ) from e
        return self

    def renew(self) -> None:
        """Nothing to do: the kernel knows that this process lives."""

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._file = open(self._path, "a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().decode() or "unknown"
            self._file.close()
            raise UserError(
                f"--output {self._output!r} is in use by another job (process {holder}); wait for "
                "it to end, or choose another folder."
            ) from None

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()


Lock = OutputLock | StorageLock
