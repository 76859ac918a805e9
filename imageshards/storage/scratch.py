"""Scratch files and folders; those that a killed process has left lack a lock of the kernel."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
from collections.abc import Callable


def hold_scratch(make: Callable[[], str]) -> tuple[str, int]:
    """Makes a file or folder, and keeps `remove_abandoned` of other processes from removing it.

    Args:
        make: Makes a new one, and returns its path.

    Returns:
        The path, and a descriptor that holds it until it is closed.
    """
    while True:
        path = make()
        try:
            lock = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another process has begun to clean up, and found it before it was locked
        # On a file system without locks nothing is ever removed.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_at(path, lock):
            return path, lock
        os.close(lock)


def remove_abandoned(pattern: str) -> None:
    """Removes what a process that is gone has held by `hold_scratch`.

    Args:
        pattern: Of paths, as `glob` takes it.
    """
    for path in glob.glob(pattern):
        with contextlib.suppress(OSError):  # held, not ours, or gone
            lock = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(path, lock) and os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
            finally:
                os.close(lock)


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
