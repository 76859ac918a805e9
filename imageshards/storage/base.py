"""The interface of a storage backend, its small types, and counters of requests."""

from __future__ import annotations

import abc
import contextlib
import errno
import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import IO, BinaryIO, NamedTuple

# Size of the ranges that a stream of a store is read in: what it holds in memory, at most.
RANGE_BYTES = 8 << 20


# Folder of a store → what raises once this job may write there no more (`lock.Lease`).
WRITE_GUARDS: dict[str, Callable[[], None]] = {}


def check_may_write(path: str) -> None:
    """Raises `LeaseLostError` if a path is in a folder whose lease this job has lost."""
    for folder, check in list(WRITE_GUARDS.items()):
        if path.startswith(f"{folder}/"):
            check()


class Stat(NamedTuple):
    """One object or file, or a folder; a folder of a store is what its objects' names make it.

    Attributes:
        path: Its path or URI, without a slash at the end.
        size_bytes: Its length.
        mtime_ns: When it was last written, in ns since 1970; 0 if the store does not say.
        version: What changes whenever it is written anew: the generation (gs://) or etag
            (s3://); empty on this machine.
        is_folder: Whether it is a folder, which has no size, no time and no version.
    """

    path: str
    size_bytes: int = 0
    mtime_ns: int = 0
    version: str = ""
    is_folder: bool = False

    @property
    def name(self) -> str:
        """Last component of its path."""
        return self.path.rpartition("/")[2]


class Counts(NamedTuple):
    """Requests that this process sent to stores, and bytes.

    Attributes:
        requests: HTTP requests sent, retries included.
        retries: Those sent again after 429, 5xx, a reset or a time-out.
        bytes_read: Bytes of objects received.
        bytes_written: Bytes of objects sent.
    """

    requests: int = 0
    retries: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def text(self) -> str:
        """A line for people."""
        return (
            f"stores: {self.requests:,} requests, {self.retries:,} of them sent again; "
            f"{self.bytes_read / 1e6:,.1f} MB read, {self.bytes_written / 1e6:,.1f} MB written"
        )


_counting = threading.Lock()
_counts = _reported = Counts()


def count(*added: int, **named: int) -> None:
    """Adds to what this process has asked of stores, as `Counts` takes it; of any thread."""
    global _counts
    with _counting:
        _counts = Counts(*map(operator.add, _counts, Counts(*added, **named)))


def counts() -> Counts:
    """What this process has asked of stores so far."""
    return _counts


def unreported() -> Counts:
    """What this process has asked of stores since the last call, for a runner's metrics."""
    global _reported
    with _counting:
        found = Counts(*map(operator.sub, _counts, _reported))
        _reported = _counts
        return found


def reset_counts() -> None:
    """Starts counting at zero, for a new job."""
    global _counting, _counts, _reported
    _counting = threading.Lock()  # of a parent process, another thread may have held it
    _counts = _reported = Counts()


os.register_at_fork(after_in_child=reset_counts)


class Backend(abc.ABC):
    """One kind of storage: paths in, `OSError`s out. Its methods may be called by many threads.

    What a backend can only read has no methods that write.

    Raises (all methods):
        FileNotFoundError, PermissionError, OSError: About one object, after retries.
        StorageError: About the bucket or the credentials.
    """

    @abc.abstractmethod
    def open_read(self, path: str) -> BinaryIO:
        """A buffered stream that can seek."""

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """A whole object, or no more than its first `max_bytes`."""
        with self.open_read(path) as file:
            return file.read() if max_bytes is None else file.read(max_bytes)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes `start` to before `end`; fewer at the end of the object."""
        with self.open_read(path) as file:
            file.seek(start)
            return file.read(end - start)

    @abc.abstractmethod
    def stat(self, path: str) -> Stat | None:
        """What is there; None if nothing, or a folder."""

    @abc.abstractmethod
    def files_from(self, prefix: str) -> Iterator[Stat]:
        """Every object whose path begins with a text, ordered by path."""

    def files_below(self, folder: str) -> Iterator[Stat]:
        """Every object below a folder, ordered by path."""
        return self.files_from(folder.rstrip("/") + "/")

    def is_folder(self, path: str) -> bool:
        """Whether there is anything below a path."""
        return next(self.files_below(path), None) is not None

    def list_folder(self, folder: str) -> list[Stat]:
        """One level of a folder, by name; empty if nothing is there."""
        above = folder.rstrip("/") + "/"
        entries: dict[str, Stat] = {}
        for found in self.files_below(folder):
            name, slash, _ = found.path.removeprefix(above).partition("/")
            entries[name] = Stat(above + name, is_folder=True) if slash else found
        return sorted(entries.values())

    def write(self, path: str, data: bytes) -> Stat:
        """Writes an object that appears whole or not at all."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def write_new(self, path: str, data: bytes) -> bool:
        """Writes an object unless there is one already; returns whether it wrote."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def upload(self, local_path: str, path: str) -> Stat:
        """Writes an object from a file of this machine; it appears whole or not at all."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def write_if(self, path: str, data: bytes, version: str | None) -> str | None:
        """Writes an object if it has a version (None: if there is none); its new version, or None
        if it had another."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def version_and_age(self, path: str) -> tuple[str, float] | None:
        """Version, and seconds since it was written by the storage's own clock; None if missing."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes objects; missing ones are fine."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def delete_folder(self, folder: str) -> None:
        """Deletes everything below a folder; a missing one is fine."""
        self.delete(found.path for found in self.files_below(folder))

    def copy(self, source: str, target: str) -> None:
        """Copies one object within this kind of storage, over what is there."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def link(self, source: str, target: str) -> None:
        """Gives one object a second name, over what is there; here by a copy."""
        self.copy(source, target)

    def move(self, source: str, target: str) -> None:
        """Copies one object and deletes it."""
        self.copy(source, target)
        self.delete([source])

    def check_bucket(self, path: str, argument: str, must_list: bool) -> None:  # noqa: B027
        """Raises `StorageError`, naming an argument, unless the bucket of a path can be used."""


@contextlib.contextmanager
def write_whole(path: str) -> Iterator[IO[bytes]]:
    """A file of this machine that appears whole or not at all, and survives a power cut.

    Folders above it are made.
    """
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    unfinished = f"{path}.tmp-{os.getpid()}-{threading.get_ident()}"
    try:
        with open(unfinished, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
