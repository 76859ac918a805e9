"""The backend for local files, and functions that clean up after killed processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import os
import pathlib
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple

from imageshards.bounds import MAX_FOLLOWED_LINKS
from imageshards.storage.base import (
    RANGE_BYTES,
    Backend,
    Stat,
    file_version,
    read_up_to,
    replaced,
    unfinished_file,
    write_whole,
)
from imageshards.storage.places import is_local

# The suffix of an unfinished file, behind its final name.
_UNFINISHED = re.compile(r"\.tmp-[0-9a-f]{8}\Z")


_MISSING = (FileNotFoundError, NotADirectoryError)


class LocalBackend(Backend):
    """The local file system. Writing creates missing folders."""

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        with open(path, "rb", opener=_open_file) as file:
            return file.read() if max_bytes is None else read_up_to(file, max_bytes)

    def read_range(self, path: str, start: int, end: int, version: str = "") -> bytes:
        # `open_read` has a buffer of 1 MiB, too much for a range of a few bytes.
        with _opened(path, version) as file:
            file.seek(start)
            return read_up_to(file, end - start)

    def write(self, path: str, data: bytes, version: str | None = "") -> Stat:
        with write_whole(path) as file:
            file.write(data)
        return _stat(path, os.stat(path))

    def write_new(self, path: str, data: bytes) -> bool:
        # A hard link fails where the target exists, and so it decides between several writers.
        with unfinished_file(path) as between:
            self.write(between, data)
            try:
                os.link(between, path)
                return True
            except FileExistsError:
                return False
            except OSError:  # Some file systems have no links, or forbid them.
                return _move_new(between, path)

    def open_read(self, path: str, version: str = "") -> BinaryIO:
        return _opened(path, version, 1 << 20)

    def stat(self, path: str) -> Stat | None:
        try:
            status = os.stat(path)
        except _MISSING:
            return None
        return None if os.path.isdir(path) else _stat(path, status)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def list_folder(self, folder: str) -> list[Stat]:
        return sorted(_stats_of(walk(folder, lambda path: False)))

    def files_below(
        self, folder: str, enters: Callable[[str], bool] | None = None
    ) -> Iterator[Stat]:
        enters = enters or (lambda path: not os.path.islink(path))
        found = _stats_of(walk(folder, enters, in_order=True))
        yield from (each for each in found if not each.is_folder)

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
        with unfinished_file(target) as between:
            try:
                os.link(source, between)
            except OSError:  # Some file systems have no links, or forbid them.
                self.copy(source, between)
            os.replace(between, target)


def _move_new(source: str, target: str) -> bool:
    """Moves a file unless the target exists; returns whether it moved."""
    turn = os.open(os.path.dirname(target) or ".", os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # A few file systems have no locks, either.
            fcntl.flock(turn, fcntl.LOCK_EX)
        if os.path.lexists(target):
            return False
        os.replace(source, target)
        return True
    finally:
        os.close(turn)


class Entry(NamedTuple):
    """An entry that `walk` met.

    Attributes:
        path: Its path.
        kind: `file`, `special` (a FIFO or device), `missing` (a broken link, or a file that was
            deleted meanwhile), `folder` (not entered), `loop` (a link to a folder above it) or
            `unreadable` (a folder that cannot be listed).
        status: The size and time of a `file` or `special`.
        error: The error of an `unreadable`.
    """

    path: str
    kind: str
    status: os.stat_result | None = None
    error: OSError | None = None


def walk(
    folder: str, enters: Callable[[str], bool] = lambda path: True, in_order: bool = False
) -> Iterator[Entry]:
    """Yields every entry below a local folder, and follows links but those to a folder above.

    Args:
        folder: The folder to list.
        enters: Whether to enter a folder, given its path.
        in_order: Whether to order the paths as stores do, where "a-b" comes before "a/b". Only then
            all entries of a folder are held in memory.
    """
    real = os.path.realpath(folder)
    above = {real, *map(str, pathlib.Path(real).parents)}
    levels = [(folder, _scan(folder, in_order), real)]
    followed = 0
    while levels:
        path, entries, real = levels[-1]
        try:
            entry = next(entries, None)
        except OSError as e:
            entry = None
            yield Entry(path, "unreadable", error=e)
        if entry is None:
            levels.pop()
            above.remove(real)
        elif not _is_folder(entry):
            yield _described(entry)
        elif not enters(entry.path):
            yield Entry(entry.path, "folder")
        elif (here := _real_path(entry, real)) in above:
            yield Entry(entry.path, "loop")
        else:
            levels.append((entry.path, _scan(entry.path, in_order), here))
            above.add(here)
            # Few links, each to a folder with the next ones, would make millions of paths.
            followed += entry.is_symlink()
            if followed > MAX_FOLLOWED_LINKS:
                error = OSError(errno.ELOOP, "too many links to folders", entry.path)
                yield Entry(entry.path, "unreadable", error=error)
                return


def _real_path(entry: os.DirEntry[str], folder: str) -> str:
    # Only a link leads out of the folder, whose real path is known.
    return os.path.realpath(entry.path) if entry.is_symlink() else os.path.join(folder, entry.name)


def _scan(folder: str, in_order: bool) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        if in_order:
            yield from sorted(found, key=lambda entry: entry.name + "/" * _is_folder(entry))
        else:
            yield from found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _described(entry: os.DirEntry[str]) -> Entry:
    try:
        status = entry.stat()
    except OSError:
        return Entry(entry.path, "missing")
    return Entry(entry.path, "file" if stat.S_ISREG(status.st_mode) else "special", status)


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


def _stats_of(entries: Iterable[Entry]) -> Iterator[Stat]:
    """Describes files and folders; leaves out broken links and what is missing meanwhile."""
    for entry in entries:
        if entry.error is not None and not isinstance(entry.error, _MISSING):
            raise entry.error
        if entry.kind == "folder":
            yield Stat(entry.path, is_folder=True)
        # A FIFO or device is listed, too: the attempt to read it gives a clear error.
        elif entry.status is not None:
            yield _stat(entry.path, entry.status)


def delete_unfinished(folder: str, *names: str) -> None:
    """Deletes the unfinished files that killed processes left in a local folder.

    No running process may be writing these files. A store has no unfinished files.

    Args:
        folder: The folder to clean.
        *names: Globs of final file names to clean up after. A glob that matches a subfolder
            covers every file below it.
    """
    if not is_local(folder):
        return
    below = len(folder.rstrip("/")) + 1

    def is_meant(path: str) -> bool:
        first = _UNFINISHED.sub("", path[below:].partition("/")[0])
        return any(fnmatch.fnmatchcase(first, name) for name in names)

    # A link may lead to files of other programs.
    for entry in walk(folder, lambda path: is_meant(path) and not os.path.islink(path)):
        if entry.kind == "file" and is_meant(entry.path) and _UNFINISHED.search(entry.path):
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


def is_at(path: str, descriptor: int) -> bool:
    """Returns whether an open file still is the file at a path."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
