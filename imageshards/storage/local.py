"""The backend for local files, and functions that clean up after killed processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from imageshards.storage.base import (
    RANGE_BYTES,
    Backend,
    Stat,
    file_version,
    replaced,
    write_whole,
)

_TEMPORARY = "imageshards-tmp-"
# The suffix of an unfinished file, behind its final name.
_UNFINISHED = re.compile(r"\.tmp-[0-9a-f-]+")


class LocalBackend(Backend):
    """The local file system. Writing creates missing folders."""

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        with open(path, "rb", opener=_open_file) as file:
            return file.read(-1 if max_bytes is None else max_bytes)

    def read_range(self, path: str, start: int, end: int, version: str = "") -> bytes:
        # `open_read` has a buffer of 1 MiB, too much for a range of a few bytes.
        with _opened(path, version) as file:
            file.seek(start)
            return file.read(end - start)

    def write(self, path: str, data: bytes, version: str | None = "") -> Stat:
        with write_whole(path) as file:
            file.write(data)
        return _stat(path, os.stat(path))

    def write_new(self, path: str, data: bytes) -> bool:
        # A hard link fails where the target exists, and so it decides between several writers.
        between = f"{path}.tmp-{uuid.uuid4().hex[:8]}"
        self.write(between, data)
        try:
            os.link(between, path)
        except FileExistsError:
            return False
        except OSError:  # Some file systems have no links, or forbid them.
            if os.path.exists(path):
                return False
            os.replace(between, path)
        finally:
            self.delete([between])
        return True

    def open_read(self, path: str, version: str = "") -> BinaryIO:
        return _opened(path, version, 1 << 20)

    def stat(self, path: str) -> Stat | None:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if os.path.isdir(path) else _stat(path, status)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def list_folder(self, folder: str) -> list[Stat]:
        try:
            with os.scandir(folder) as entries:
                return sorted(filter(None, map(_entry, entries)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files_below(self, folder: str) -> Iterator[Stat]:
        # Whole paths are ordered as stores list them: "a-b" comes before "a/b".
        for entry in sorted(self.list_folder(folder), key=lambda e: e.name + "/" * e.is_folder):
            if entry.is_folder:
                yield from self.files_below(entry.path)
            else:
                yield entry

    def files_from(self, prefix: str) -> Iterator[Stat]:
        above, slash, _ = prefix.rpartition("/")
        for found in self.files_below(above or slash or "."):
            if found.path.startswith(prefix):
                yield found

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def delete_folder(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)

    def copy(self, source: str, target: str) -> None:
        with self.open_read(source) as stored, write_whole(target) as file:
            shutil.copyfileobj(stored, file, RANGE_BYTES)

    def link(self, source: str, target: str) -> None:
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        between = f"{target}.tmp-{uuid.uuid4().hex[:8]}"
        try:
            os.link(source, between)
        except FileNotFoundError:
            raise
        except OSError:  # Some file systems have no links, or forbid them.
            self.copy(source, target)
            return
        try:
            os.replace(between, target)
        finally:  # `replace` does nothing if both names are links to the same file already.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(between)

    def move(self, source: str, target: str) -> None:
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        os.replace(source, target)

    def upload(self, local_path: str, path: str, version: str | None = "") -> Stat:
        self.copy(local_path, path)
        return _stat(path, os.stat(path))


def _opened(path: str, version: str, buffering: int = -1) -> BinaryIO:
    file = open(path, "rb", buffering, opener=_open_file)
    if version and _stat(path, os.fstat(file.fileno())).version != version:
        file.close()
        raise replaced(path)
    return file


def _open_file(path: str, flags: int) -> int:
    """Opens a regular file; refuses devices and FIFOs, while Python itself refuses folders."""
    # Opening a device may change its state, and a FIFO would block until somebody writes to it. The
    # file may be replaced after the first look, so the open file is looked at again.
    if not _is_special(os.stat(path)):
        descriptor = os.open(path, flags | os.O_NONBLOCK)
        if not _is_special(os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)
    raise OSError(errno.EINVAL, "Not a regular file", path)


def _is_special(status: os.stat_result) -> bool:
    return not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode)


def _stat(path: str, status: os.stat_result) -> Stat:
    size_bytes, mtime_ns = status.st_size, status.st_mtime_ns
    return Stat(path, size_bytes, mtime_ns, file_version(size_bytes, mtime_ns))


def _entry(entry: os.DirEntry[str]) -> Stat | None:
    """Describes a folder's entry, following links; None for a dangling link or a deleted entry."""
    try:
        if entry.is_dir():
            return Stat(entry.path, is_folder=True)
        return _stat(entry.path, entry.stat())
    except OSError:
        return None


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Makes a temporary folder on this machine, and deletes it after the block.

    A killed process cannot delete its folder. So each process locks its folder, and every call
    first deletes the folders that no process locks any more.
    """
    place = tempfile.gettempdir()
    for name in os.listdir(place):
        left = os.path.join(place, name)
        # A locked folder belongs to a process that still runs.
        if name.startswith(_TEMPORARY) and (lock := _lock(left)) is not None:
            with contextlib.suppress(OSError):
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(left)
            os.close(lock)
    # The folder is locked before it gets the name by which processes find folders to delete.
    made = tempfile.mkdtemp(prefix=".imageshards-")
    folder = os.path.join(place, _TEMPORARY + uuid.uuid4().hex)
    lock = _lock(made)
    try:
        os.rename(made, folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _lock(folder: str) -> int | None:
    """Locks a folder; returns its descriptor, or None if the folder is locked or cannot be."""
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor


def delete_unfinished(folder: str, *names: str) -> None:
    """Deletes the unfinished files that killed processes left in a local folder.

    No running process may be writing these files. A store has no unfinished files.

    Args:
        folder: The folder to clean.
        *names: Globs of final file names to clean up after. A glob that matches a subfolder
            covers every file below it.
    """
    if "://" in folder:
        return
    local = LocalBackend()
    found: list[Stat] = []
    with contextlib.suppress(OSError):
        for entry in local.list_folder(folder):
            final = entry.name if entry.is_folder else _UNFINISHED.sub("", entry.name)
            if any(fnmatch.fnmatchcase(final, name) for name in names):
                found += local.files_below(entry.path) if entry.is_folder else [entry]
        local.delete(file.path for file in found if _UNFINISHED.search(file.name))


def is_at(path: str, descriptor: int) -> bool:
    """Returns whether an open file still is the file at a path."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
