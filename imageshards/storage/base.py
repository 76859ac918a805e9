"""The interface of a storage backend, its small types, and counters of requests."""

from __future__ import annotations

import abc
import contextlib
import errno
import operator
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import IO, BinaryIO, NamedTuple

# A stream of a store reads ranges of this size, so it holds at most this much in memory.
RANGE_BYTES = 8 << 20

# Folder of a store → a function that raises `LeaseLostError` once this job has lost its lease.
WRITE_GUARDS: dict[str, Callable[[], None]] = {}


def check_may_write(path: str) -> None:
    """Raises `LeaseLostError` if a path is below a folder whose lease this job has lost."""
    for folder, check in list(WRITE_GUARDS.items()):
        if path.startswith(f"{folder}/"):
            check()


class Stat(NamedTuple):
    """A file, an object or a folder; in a store, a folder is a common prefix of names.

    Attributes:
        path: Path or URI, without a slash at the end.
        size_bytes: Length; 0 for a folder.
        mtime_ns: Time of the last write, in ns since 1970; 0 if the store does not report it.
        version: Generation (gs://), etag (s3://), or size and time of a file, new with every write;
            empty if unknown.
        is_folder: Whether the entry is a folder, which has no size, time or version.
    """

    path: str
    size_bytes: int = 0
    mtime_ns: int = 0
    version: str = ""
    is_folder: bool = False

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rpartition("/")[2]


class Counts(NamedTuple):
    """Requests that this process sent to stores, and the bytes transferred.

    Attributes:
        requests: HTTP requests, retries included.
        retries: Requests repeated after a 429, a 5xx, a reset or a time-out.
        bytes_read: Bytes of objects received.
        bytes_written: Bytes of objects sent.
    """

    requests: int = 0
    retries: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def text(self) -> str:
        """Returns the counts as a line for people."""
        return (
            f"stores: {self.requests:,} requests, {self.retries:,} of them sent again; "
            f"{self.bytes_read / 1e6:,.1f} MB read, {self.bytes_written / 1e6:,.1f} MB written"
        )


_counting = threading.Lock()
_counts = _reported = Counts()


def count(*added: int, **named: int) -> None:
    """Adds to the counts of this process, by the fields of `Counts`; any thread may call it."""
    global _counts
    with _counting:
        _counts = Counts(*map(operator.add, _counts, Counts(*added, **named)))


def counts() -> Counts:
    """Returns the counts of this process so far."""
    return _counts


def unreported() -> Counts:
    """Returns the counts since the last call of this function, for a runner's metrics."""
    global _reported
    with _counting:
        found = Counts(*map(operator.sub, _counts, _reported))
        _reported = _counts
        return found


def reset_counts() -> None:
    """Sets all counts to zero, for a new job."""
    global _counting, _counts, _reported
    # In a forked child the old lock may be held for ever, by a thread that only the parent has.
    _counting = threading.Lock()
    _counts = _reported = Counts()


os.register_at_fork(after_in_child=reset_counts)


def file_version(size_bytes: int, mtime_ns: int) -> str:
    """Returns the version of a file that has no other version than its size and time."""
    return f"{size_bytes}-{mtime_ns}" if mtime_ns else ""


def replaced(path: str) -> OSError:
    """Returns the error for a file that has another version than the caller expects."""
    return OSError(errno.ESTALE, "it was replaced meanwhile", path)


class Backend(abc.ABC):
    """One kind of storage. Many threads may call its methods at the same time.

    A backend that can only read inherits the methods that write, which raise `OSError`. Methods
    with a `version` raise `replaced` if the file has another version; "" means any version. Writing
    with the version None raises if the file exists. Local files are written without this check.

    Raises (all methods):
        FileNotFoundError, PermissionError, OSError: An error of one object, after retries.
        StorageError: An error of the bucket or the credentials.
    """

    @abc.abstractmethod
    def open_read(self, path: str, version: str = "") -> BinaryIO:
        """Opens a buffered stream that can seek, in which all bytes are of one version.

        A store's object is read in ranges of up to 8 MiB.
        """

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Returns a whole object, or at most its first `max_bytes`."""
        with self.open_read(path) as file:
            return file.read() if max_bytes is None else read_up_to(file, max_bytes)

    def read_range(self, path: str, start: int, end: int, version: str = "") -> bytes:
        """Returns the bytes from `start` to before `end`; fewer at the end of the object."""
        with self.open_read(path, version) as file:
            file.seek(start)
            return read_up_to(file, end - start)

    @abc.abstractmethod
    def stat(self, path: str) -> Stat | None:
        """Returns size, time and version of an object; None for a missing object or a folder."""

    def files_from(self, prefix: str) -> Iterator[Stat]:
        """Yields every object of a store whose path begins with `prefix`, ordered by path."""
        raise NotImplementedError

    def files_below(
        self, folder: str, enters: Callable[[str], bool] | None = None
    ) -> Iterator[Stat]:
        """Yields every object below a folder, ordered by path.

        `enters` says of the path of each local folder whether to enter it, also behind a link.
        Without it, no links are followed. A store has no links and lists every object.
        """
        return self.files_from(folder.rstrip("/") + "/")

    def is_folder(self, path: str) -> bool:
        """Returns whether a path is a folder: in a store, whether any object is below it."""
        return next(self.files_below(path), None) is not None

    def list_folder(self, folder: str) -> list[Stat]:
        """Returns one level of a folder, ordered by name; empty for a missing folder."""
        above = folder.rstrip("/") + "/"
        entries: dict[str, Stat] = {}
        for found in self.files_below(folder):
            name, slash, _ = found.path.removeprefix(above).partition("/")
            entries[name] = Stat(above + name, is_folder=True) if slash else found
        return sorted(entries.values())

    def write(self, path: str, data: bytes, version: str | None = "") -> Stat:
        """Writes an object that appears whole or not at all."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def write_new(self, path: str, data: bytes) -> bool:
        """Writes an object unless the path exists already; returns whether it wrote."""
        try:
            self.write(path, data, None)
        except OSError as e:
            if e.errno != errno.ESTALE:
                raise
            return False
        return True

    def upload(self, local_path: str, path: str, version: str | None = "") -> Stat:
        """Writes an object from a local file; the object appears whole or not at all."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes objects; ignores missing ones."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def delete_folder(self, folder: str) -> None:
        """Deletes every object below a folder; ignores a missing folder."""
        self.delete(found.path for found in self.files_below(folder))

    def copy(self, source: str, target: str) -> None:
        """Copies an object within this kind of storage, replacing the target."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def link(self, source: str, target: str) -> None:
        """Gives an object a second name on the same storage, replacing the target.

        The second name is a hard link where the file system has links, else a copy. Methods replace
        files and never change them, so the second name keeps its content.
        """
        self.copy(source, target)

    def check_bucket(self, path: str, argument: str, must_list: bool) -> None:  # noqa: B027
        """Raises `StorageError`, naming `argument`, unless the bucket of a path can be used."""


def read_up_to(stream: IO[bytes], num_bytes: int) -> bytes:
    """Returns the next bytes of a stream; fewer only at its end.

    Python takes memory for all bytes that a call of `read` asks for, and a number in a file may ask
    for any. A remote stream may return fewer bytes than a call asks for, even before its end.
    """
    pieces = []
    while num_bytes > 0 and (piece := stream.read(min(num_bytes, RANGE_BYTES))):
        pieces.append(piece)
        num_bytes -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@contextlib.contextmanager
def unfinished_file(path: str) -> Iterator[str]:
    """Yields a new path for a file that is moved to its final `path` when it is whole.

    The block moves the file, else it is deleted. Missing folders are created. Only this process
    knows the new path, which `delete_unfinished` recognises.
    """
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    unfinished = f"{path}.tmp-{uuid.uuid4().hex[:8]}"
    try:
        yield unfinished
    finally:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)


@contextlib.contextmanager
def write_whole(path: str) -> Iterator[IO[bytes]]:
    """Opens a local file to write, which appears whole or not at all; creates its folders.

    The bytes are on disk before the name is, so a power cut leaves no half-written file.
    """
    with unfinished_file(path) as unfinished:
        with open(unfinished, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
