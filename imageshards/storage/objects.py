"""What buckets have in common: URIs, and which of their errors is about how much."""

from __future__ import annotations

import abc
import errno
import io
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TypeVar, cast

from imageshards.errors import StorageError
from imageshards.storage.base import Backend, Entry, Stat
from imageshards.storage.http import Getter
from imageshards.storage.local import whole_file

# Streams are read in ranges of this size.
RANGE_BYTES = 4 << 20
# Threads that share a client: what reading ahead and copying need.
CONNECTIONS = 128
# Objects that are refused one after another do not each ask what the bucket is like.
_TRUST_SEC = 10.0

_T = TypeVar("_T")


def split_uri(uri: str) -> tuple[str, str]:
    """Bucket and name of an object."""
    bucket, _, name = uri.partition("://")[2].partition("/")
    return bucket, name


class Trouble(Exception):
    """What a store said, sorted.

    Attributes:
        kind: `missing`, `refused`, `credentials`, `changed`, `range`, `unreachable` or `other`.
        text: What it said, for a person.
    """

    def __init__(self, kind: str, text: str):
        super().__init__(kind, text)
        self.kind = kind
        self.text = text.rstrip(". ")


class ObjectStore(Backend):
    """A store of buckets. What the client library raises becomes `OSError` or `StorageError`."""

    scheme: str
    #: What the library raises.
    errors: tuple[type[BaseException], ...]
    #: How many objects are listed by one request, at most.
    page_objects = 1000
    begins_anywhere = True
    part_bytes = 8 << 20  # s3:// takes no fewer than 5 MiB, gs:// multiples of 256 KiB

    def __init__(self) -> None:
        self._sound: dict[str, float] = {}
        self._probing = threading.Lock()

    @abc.abstractmethod
    def sort_error(self, error: BaseException) -> Trouble:
        """What kind of error it is."""

    @abc.abstractmethod
    def probe(self, bucket: str, prefix: str) -> None:
        """Asks for one name in a bucket, without patience; raises the library's errors."""

    @abc.abstractmethod
    def who(self) -> str:
        """The credentials in use, for messages."""

    @abc.abstractmethod
    def remedy(self, kind: str) -> str:
        """What to do about an error of a bucket."""

    @abc.abstractmethod
    def page(
        self, bucket: str, prefix: str, delimiter: str, after: str = "", most: int = 0
    ) -> Iterator[Stat | str]:
        """Objects and, where there is a delimiter, names that end with it, page by page.

        Args:
            bucket, prefix, delimiter: Where.
            after: An object to begin at, or just behind it.
            most: How many to ask for at once.
        """

    @abc.abstractmethod
    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes `start` to before `end`; fewer at the end."""

    def asked(self, path: str, ask: Callable[[], _T]) -> _T:
        """Calls the library; its errors become ours."""
        try:
            return ask()
        except self.errors as e:
            raise self._error(path, self.sort_error(e)) from e

    def straight(
        self,
        path: str,
        getter: Getter,
        target: str,
        headers: Mapping[str, str],
        max_bytes: int | None,
    ) -> bytes | None:
        """Reads without the library; None if that has to be asked."""
        try:
            return getter.get(target, headers, max_bytes)
        except FileNotFoundError as e:
            raise self._error(path, Trouble("missing", "404")) from e

    def _error(self, path: str, trouble: Trouble) -> Exception:
        bucket, _ = split_uri(path)
        if trouble.kind == "credentials":
            return self._bucket_error(f"{self.scheme}://{bucket}", trouble)
        if trouble.kind in ("missing", "refused", "unreachable"):
            found = self._probed(bucket, "", may_trust=trouble.kind != "unreachable")
            if found is not None and (found.kind == trouble.kind or found.kind == "credentials"):
                return self._bucket_error(f"{self.scheme}://{bucket}", found)
        if trouble.kind == "missing":
            return FileNotFoundError(errno.ENOENT, "no such object", path)
        if trouble.kind == "refused":
            return PermissionError(errno.EACCES, "access to the object is refused (403)", path)
        return OSError(errno.EIO, trouble.text, path)

    def _probed(self, bucket: str, prefix: str, may_trust: bool) -> Trouble | None:
        """What is wrong with a bucket; one that answered just now is trusted."""
        with self._probing:
            if may_trust and time.monotonic() < self._sound.get(bucket, -_TRUST_SEC) + _TRUST_SEC:
                return None
            try:
                self.probe(bucket, prefix)
            except self.errors as e:
                return self.sort_error(e)
            self._sound[bucket] = time.monotonic()
            return None

    def _bucket_error(self, what: str, trouble: Trouble) -> StorageError:
        found = {
            "missing": "names a bucket that does not exist",
            "refused": f"cannot be used: access is refused (403) to {self.who()}",
            "credentials": f"cannot be used with {self.who()} ({trouble.text})",
            "unreachable": f"cannot be reached ({trouble.text})",
        }.get(trouble.kind, f"cannot be used ({trouble.text})")
        return StorageError(f"{what} {found}; {self.remedy(trouble.kind)}.")

    def check_bucket(self, path: str, flag: str) -> None:
        bucket, name = split_uri(path)
        if not bucket:
            raise StorageError(
                f"{flag} {path!r} names no bucket; expected {self.scheme}://BUCKET/FOLDER."
            )
        found = self._probed(bucket, name, may_trust=False)
        if found is not None:
            raise self._bucket_error(f"{flag} {path!r}", found)

    def list_folder(self, folder: str) -> list[Entry]:
        bucket, name = split_uri(folder)
        prefix = name.rstrip("/") + "/" if name.strip("/") else ""
        above = f"{self.scheme}://{bucket}/{prefix}"
        entries = []
        for found in self._pages(folder, bucket, prefix, "/"):
            if isinstance(found, str):
                below = found[len(prefix) : -1]
                entries.append(Entry(below, above + below, True, 0, 0))
            else:
                below = found.path[len(above) :]
                entries.append(Entry(below, found.path, False, found.size_bytes, found.mtime_ns))
        return sorted(entries)

    def files_from(self, prefix: str, after: str = "") -> Iterator[Stat]:
        bucket, name = split_uri(prefix)
        for found in self._pages(prefix, bucket, name, "", split_uri(after)[1]):
            if not isinstance(found, str):
                yield found

    def first_from(self, prefix: str, after: str) -> str | None:
        bucket, name = split_uri(prefix)
        # Two: some stores begin with the name itself. No more, also if they do not begin there.
        pages = self.page(bucket, name, "", split_uri(after)[1], most=2)
        for found in self.asked(prefix, lambda: list(itertools.islice(pages, 2))):
            if not isinstance(found, str) and found.path > after:
                return found.path
        return None

    def _pages(
        self, path: str, bucket: str, prefix: str, delimiter: str, after: str = ""
    ) -> Iterator[Stat | str]:
        pages = self.page(bucket, prefix, delimiter, after)
        while (found := self.asked(path, lambda: next(pages, None))) is not None:
            # Stores mark folders by objects whose names end with a slash.
            if isinstance(found, str) or not found.path.endswith("/"):
                yield found

    def open_read(self, path: str) -> BinaryIO:
        found = self.stat(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        ranges = _Ranges(self, path, found.size_bytes)
        return cast(BinaryIO, io.BufferedReader(ranges, RANGE_BYTES))

    def download(self, path: str, local_path: str) -> None:
        with self.open_read(path) as source, whole_file(local_path) as file:
            while data := source.read(RANGE_BYTES):
                file.write(data)

    def agreed(self, path: str, data: bytes, retries: int) -> bool:
        """Whether a refused conditional write was ours: its answer lost, then sent again."""
        return retries > 0 and self.read(path) == data


class _Ranges(io.RawIOBase):
    """An object as a file: each read asks for a range."""

    def __init__(self, store: ObjectStore, path: str, size_bytes: int):
        self._store = store
        self._path = path
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size_bytes)
        if end <= self._at:
            return 0
        data = self._store.read_range(self._path, self._at, end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
