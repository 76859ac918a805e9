"""What the kinds of storage share: their small types, their counters, their interface."""

from __future__ import annotations

import abc
import os
import threading
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple


class Stat(NamedTuple):
    """One object or file.

    Attributes:
        path: Its path or URI.
        size_bytes: Its length.
        mtime_ns: When it was last written, in ns since 1970; 0 if the store does not say.
        version: What changes whenever it is written anew: the generation (gs://) or etag
            (s3://); empty on this machine.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    version: str


class Entry(NamedTuple):
    """One thing in a folder; a folder of a store is what its objects' names make it.

    Attributes:
        name: Last component of its path.
        path: Its path or URI, without a slash at the end.
        is_folder: Whether it is a folder; it then has no size and no time (0).
        size_bytes: Length of a file.
        mtime_ns: When a file was last written, in ns since 1970.
    """

    name: str
    path: str
    is_folder: bool
    size_bytes: int
    mtime_ns: int


class Counts(NamedTuple):
    """What this process asked of stores.

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

    def plus(self, other: Counts) -> Counts:
        """Field by field."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    def text(self) -> str:
        """A line for people."""
        return (
            f"stores: {self.requests:,} requests, {self.retries:,} of them sent again; "
            f"{self.bytes_read / 1e6:,.1f} MB read, {self.bytes_written / 1e6:,.1f} MB written"
        )


class Counter:
    """Counts of one process, added to by many threads."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Starts at nothing, with a lock that no other process holds."""
        self._lock = threading.Lock()
        self._counts = [0, 0, 0, 0]
        self._reported = [0, 0, 0, 0]

    def add(
        self, requests: int = 0, retries: int = 0, bytes_read: int = 0, bytes_written: int = 0
    ) -> None:
        """Adds to each count."""
        with self._lock:
            for place, amount in enumerate((requests, retries, bytes_read, bytes_written)):
                self._counts[place] += amount

    def counts(self) -> Counts:
        """The counts so far."""
        with self._lock:
            return Counts(*self._counts)

    def unreported(self) -> Counts:
        """What was added since this was last asked."""
        with self._lock:
            new = Counts(*(a - b for a, b in zip(self._counts, self._reported, strict=True)))
            self._reported = list(self._counts)
            return new


COUNTER = Counter()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=COUNTER.reset)


class Backend(abc.ABC):
    """One kind of storage: paths in, `OSError`s out. Its methods may be called by many threads.

    Raises (all methods):
        FileNotFoundError, PermissionError, OSError: About one object, after retries.
        StorageError: About the bucket or the credentials.
    """

    @abc.abstractmethod
    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """A whole object, or no more than its first `max_bytes`."""

    @abc.abstractmethod
    def write(self, path: str, data: bytes) -> Stat:
        """Writes an object that appears whole or not at all."""

    @abc.abstractmethod
    def open_read(self, path: str) -> BinaryIO:
        """A buffered stream that can seek."""

    @abc.abstractmethod
    def stat(self, path: str) -> Stat | None:
        """What is there; None if nothing, or a folder."""

    @abc.abstractmethod
    def list_folder(self, folder: str) -> list[Entry]:
        """One level of a folder, by name; empty if nothing is there."""

    #: Whether a listing may begin behind any name, as those of buckets may.
    begins_anywhere = False

    @abc.abstractmethod
    def files_from(self, prefix: str, after: str = "") -> Iterator[Stat]:
        """Every object whose path begins with a text, ordered by path.

        Those up to `after` may be left out already, and only where that is of help are.
        """

    def first_from(self, prefix: str, after: str) -> str | None:
        """The first path that begins with a text and is behind another; None: none, or unknown."""
        return None

    def files_below(self, folder: str) -> Iterator[Stat]:
        """Every object below a folder, ordered by path."""
        return self.files_from(folder.rstrip("/") + "/")

    @abc.abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Deletes objects; missing ones are fine."""

    @abc.abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copies one object within this kind of storage, over what is there."""

    @abc.abstractmethod
    def upload(self, local_path: str, path: str) -> Stat:
        """Writes an object from a file of this machine; it appears whole or not at all."""

    #: Size of the parts that `upload_stream` sends; 0 where a file is sent when it is whole.
    part_bytes = 0

    def upload_stream(self, stream: BinaryIO, path: str) -> Stat:
        """Writes an object from a stream of any length; it appears whole or not at all."""
        raise NotImplementedError

    def drop_unfinished(self, folder: str) -> None:  # noqa: B027  # most keep nothing
        """Drops what uploads that were killed have left in a folder, but not in those below it."""

    @abc.abstractmethod
    def download(self, path: str, local_path: str) -> None:
        """Writes a file of this machine from an object; it appears whole or not at all."""

    @abc.abstractmethod
    def create(self, path: str, data: bytes) -> str | None:
        """Writes an object unless there is one; its version, or None if there is one."""

    @abc.abstractmethod
    def replace_if(self, path: str, data: bytes, version: str) -> str | None:
        """Writes an object if it still has a version; its new one, or None if it changed."""

    @abc.abstractmethod
    def age_sec(self, path: str) -> float | None:
        """Seconds since an object was written, by the storage's own clock; None if missing."""

    def move(self, source: str, target: str) -> None:
        """Copies one object and deletes it."""
        self.copy(source, target)
        self.delete([source])

    def delete_folder(self, folder: str) -> None:
        """Deletes everything below a folder; a missing one is fine."""
        self.delete(found.path for found in self.files_below(folder))

    @abc.abstractmethod
    def check_bucket(self, path: str, flag: str) -> None:
        """Raises `StorageError`, naming a flag, unless the bucket of a path can be used."""


def temporary(path: str) -> str:
    """Where a file of this machine is written before it gets its name."""
    return f"{path}.tmp-{os.getpid()}-{threading.get_ident()}"
