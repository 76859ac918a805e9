"""The common part of backends for object stores: URIs, folders made of names, and errors.

An error that concerns one object becomes an `OSError`, and the job goes on without the object. An
error that concerns the whole bucket becomes a `StorageError`, which ends the job.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import io
import itertools
import operator
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, cast

from imageshards.errors import StorageError
from imageshards.storage.base import RANGE_BYTES, Backend, Stat, check_may_write, replaced

# Enough connections for all threads of a client that read ahead and copy.
CONNECTIONS = 128
# Time-outs for a connection, and for each piece of an answer.
CONNECT_SEC = 5.0
ANSWER_SEC = 30.0
# A lease is renewed by a conditional write, which must fail early enough for a second attempt.
HASTY_SEC = 5.0
# A missing or refused object does not cause a probe of its bucket if it was probed this recently.
_TRUST_SEC = 10.0
# A stream requests this much first, which is enough for the header of an archive's member.
_FIRST_RANGE_BYTES = 64 << 10
_BUCKET = re.compile(r"[a-z0-9]([\w.:-]*[a-z0-9])?", re.ASCII | re.IGNORECASE)
_NOBODY = "nobody (no credentials were found)"


def split_uri(uri: str) -> tuple[str, str]:
    """Splits the URI of an object: `s3://bucket/a/b` → (`bucket`, `a/b`).

    Raises:
        FileNotFoundError: No bucket can have the name, for which each library has another error.
    """
    bucket, _, name = uri.partition("://")[2].partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise FileNotFoundError(errno.ENOENT, "no bucket can have this name", uri)
    return bucket, name


class StoreFailure(NamedTuple):
    """An error of a store's library, classified.

    Attributes:
        kind: `missing`, `refused`, `credentials`, `changed` (the condition of a request does not
            hold), `range` (beyond the object's end), `unreachable` or `other`.
        said: The message of the library, in any number of lines.
    """

    kind: str
    said: str

    @property
    def text(self) -> str:
        """The first line of the message, shortened, for a person."""
        return next(iter(self.said.strip().splitlines()), self.kind).rstrip(". ")[:300]


class ObjectStore(Backend):
    """A store of buckets, which turns its library's errors into `OSError` and `StorageError`.

    The abstract methods raise the library's errors.

    Attributes:
        scheme: Scheme of its URIs.
        errors: Exceptions that the library raises, after its own retries.
        page_objects: Most objects that one request lists.
        deleted_at_once: Most objects that one request deletes.
    """

    scheme: str
    errors: tuple[type[BaseException], ...]
    page_objects = 1000
    deleted_at_once = 1000

    def __init__(self) -> None:
        # Bucket → when it was last probed, and its error or None.
        self._probed: dict[str, tuple[float, StoreFailure | None]] = {}
        self._probing = threading.Lock()
        # Path of the call that a thread makes, which `_before_request` checks.
        self._call = threading.local()

    @abc.abstractmethod
    def classify_error(self, error: BaseException) -> StoreFailure:
        """Classifies an error of the library."""

    @abc.abstractmethod
    def probe(self, bucket: str, prefix: str) -> None:
        """Lists one name in a bucket, with few retries."""

    @abc.abstractmethod
    def account(self) -> str | None:
        """Describes the account in use, for messages; None without credentials."""

    @abc.abstractmethod
    def remedy(self, kind: str) -> str:
        """Returns the remedy for an error of an existing bucket, for messages."""

    @abc.abstractmethod
    def list_pages(self, bucket: str, prefix: str, delimiter: str) -> Iterator[list[Stat]]:
        """Yields pages of objects and, with a delimiter, of folders, whose paths end with a slash.

        A folder is a prefix, up to the delimiter, that several names may share.
        """

    @abc.abstractmethod
    def direct_get(self, path: str, max_bytes: int | None) -> bytes | None:
        """Reads an object by `DirectReader.get`; None where only the library can read it."""

    @abc.abstractmethod
    def get(
        self, path: str, start: int | None = None, end: int | None = None, version: str = ""
    ) -> bytes:
        """Returns an object, or its bytes from `start` to before `end`, of a version if given."""

    @abc.abstractmethod
    def delete_objects(self, bucket: str, names: Sequence[str]) -> None:
        """Deletes objects; ignores missing ones."""

    @abc.abstractmethod
    def put(
        self, path: str, body: bytes | BinaryIO, size: int, version: str | None, *, hasty: bool
    ) -> Stat:
        """Writes an object of `size` bytes; with `hasty`, time-outs are short and retries few."""

    @abc.abstractmethod
    def head(self, path: str) -> tuple[Stat, float]:
        """Describes an object; also returns the store's time in s since 1970."""

    @contextlib.contextmanager
    def translate_errors(self, path: str) -> Iterator[None]:
        """Translates the library's errors in a block, whose requests concern `path`."""
        self._call.path = path
        try:
            yield
        except self.errors as e:
            raise self._translated(path, self.classify_error(e)) from e

    def _before_request(self, method: str) -> None:
        """Raises `LeaseLostError` before an attempt to write where the job has lost its lease."""
        if method not in ("GET", "HEAD"):
            check_may_write(getattr(self._call, "path", ""))

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        try:
            data = self.direct_get(path, max_bytes)
        except FileNotFoundError as e:
            raise self._translated(path, StoreFailure("missing", "404")) from e
        if data is not None:
            return data
        if max_bytes is not None:
            return self.read_range(path, 0, max_bytes)
        with self.translate_errors(path):
            return self.get(path)

    def _translated(self, path: str, error: StoreFailure) -> Exception:
        bucket, _ = split_uri(path)
        if error.kind == "credentials":
            return self._bucket_error(f"{self.scheme}://{bucket}", "", error)
        # A missing bucket and a missing object give the same error, so the bucket is probed.
        if error.kind in ("missing", "refused", "unreachable"):
            found = self._check(bucket, "", may_trust=error.kind != "unreachable")
            if found is not None and found.kind in (error.kind, "credentials"):
                return self._bucket_error(f"{self.scheme}://{bucket}", "", found)
        if error.kind == "missing":
            return FileNotFoundError(errno.ENOENT, "no such object", path)
        if error.kind == "changed":
            return replaced(path)
        if error.kind == "refused":
            text = "access to the object is refused (403)"
            if self.account() is None:
                text += f" to {_NOBODY}; {self.remedy('refused')}"
            return PermissionError(errno.EACCES, text, path)
        return OSError(errno.EIO, error.text, path)

    def _check(self, bucket: str, prefix: str, may_trust: bool) -> StoreFailure | None:
        """Probes a bucket; returns its error, or None where it can be used."""
        # With the lock, many threads whose objects fail together cause one probe.
        with self._probing:
            asked, found = self._probed.get(bucket, (-_TRUST_SEC, None))
            if may_trust and time.monotonic() < asked + _TRUST_SEC:
                return found
            try:
                self.probe(bucket, prefix)
                found = None
            except self.errors as e:
                found = self.classify_error(e)
            self._probed[bucket] = time.monotonic(), found
            return found

    def _bucket_error(self, place: str, argument: str, error: StoreFailure) -> StorageError:
        account = self.account() or _NOBODY
        found = {
            "missing": "names a bucket that does not exist",
            "refused": f"cannot be used: access is refused (403) to {account}",
            "credentials": f"cannot be used with {account} ({error.text})",
            "unreachable": f"cannot be reached ({error.text})",
        }.get(error.kind, f"cannot be used ({error.text})")
        missing = error.kind == "missing"
        remedy = "fix the name, or create the bucket" if missing else self.remedy(error.kind)
        if not argument:
            failure = StorageError(f"{place} {found}", remedy=remedy)
            failure.of_bucket = error.kind in ("missing", "refused")
            return failure
        return StorageError(argument=argument, received=f"{place!r}, which {found}", remedy=remedy)

    def check_bucket(self, path: str, argument: str, must_list: bool) -> None:
        try:
            error = self._check(*split_uri(path), may_trust=False)
        except FileNotFoundError:
            raise StorageError(
                argument=argument,
                received=f"{path!r}, which names no bucket",
                expected=f"{self.scheme}://BUCKET/FOLDER",
            ) from None
        # Credentials that may read objects often may not list them.
        if error is not None and (must_list or error.kind not in ("refused", "other")):
            raise self._bucket_error(path, argument, error)

    def list_folder(self, folder: str) -> list[Stat]:
        return sorted(self._list(folder.rstrip("/") + "/", "/"))

    def files_from(self, prefix: str) -> Iterator[Stat]:
        return self._list(prefix, "")

    def _list(self, path: str, delimiter: str) -> Iterator[Stat]:
        pages = self.list_pages(*split_uri(path), delimiter)
        while True:
            with self.translate_errors(path):
                page = next(pages, None)
            if page is None:
                return
            for found in page:
                if found.is_folder:
                    yield found._replace(path=found.path.removesuffix("/"))
                # Consoles of stores mark an empty folder by an object whose name ends with a slash.
                elif not found.path.endswith("/"):
                    yield found

    def open_read(self, path: str, version: str = "") -> BinaryIO:
        found = self.stat(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        if version and version != found.version:
            raise replaced(path)
        return cast(BinaryIO, io.BufferedReader(_ObjectReader(self, found), _FIRST_RANGE_BYTES))

    def read_range(self, path: str, start: int, end: int, version: str = "") -> bytes:
        with self.translate_errors(path):
            try:
                data = self.get(path, start, end, version)
            except self.errors as e:
                if self.classify_error(e).kind == "range":  # A file has no bytes there, either.
                    return b""
                raise
        if len(data) > end - start:  # Some stores ignore ranges and send the whole object.
            text = f"the store sent more than the {end - start} bytes that were asked for"
            raise OSError(errno.EIO, text, path)
        return data

    def delete(self, paths: Iterable[str]) -> None:
        for bucket, found in itertools.groupby(map(split_uri, paths), operator.itemgetter(0)):
            names = [name for _, name in found]
            for start in range(0, len(names), self.deleted_at_once):
                some = names[start : start + self.deleted_at_once]
                with self.translate_errors(f"{self.scheme}://{bucket}/{some[0]}"):
                    self.delete_objects(bucket, some)

    def write(self, path: str, data: bytes, version: str | None = "") -> Stat:
        with self.translate_errors(path):
            return self.put(path, data, len(data), version, hasty=False)

    def upload(self, local_path: str, path: str, version: str | None = "") -> Stat:
        with open(local_path, "rb") as file, self.translate_errors(path):
            return self.put(path, file, os.path.getsize(local_path), version, hasty=False)

    def write_if(self, path: str, data: bytes, version: str | None) -> str | None:
        """Writes an object for a lease; returns its new version, or None if `write` would raise."""
        # The condition alone protects this write, which also renews leases.
        self._call.path = ""
        try:
            return self.put(path, data, len(data), version, hasty=True).version
        except self.errors as e:
            error = self.classify_error(e)
            if error.kind == "changed" or (error.kind == "missing" and version is not None):
                return None
            raise self._translated(path, error) from e

    def stat(self, path: str) -> Stat | None:
        found = self.described(path)
        return None if found is None else found[0]

    def described(self, path: str) -> tuple[Stat, float] | None:
        """Describes an object, and returns the store's time, as `head`; None if it is missing."""
        # A name that ends with a slash may exist as a mark of a folder.
        _, name = split_uri(path)
        if not name or name.endswith("/"):
            return None
        try:
            with self.translate_errors(path):
                return self.head(path)
        except FileNotFoundError:
            return None


class _ObjectReader(io.RawIOBase):
    """A raw stream over one version of an object, which holds the range that was read last.

    Ranges are small for single headers, and grow while neighbours are read.
    """

    def __init__(self, store: ObjectStore, found: Stat):
        self._store, self._found = store, found
        self._position = self._start = 0
        self._data = b""
        self._range_bytes = _FIRST_RANGE_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        ends = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._found.size_bytes}
        self._position = max(0, ends[whence] + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        at = self._position - self._start
        if not 0 <= at < len(self._data):
            is_near = 0 <= at < len(self._data) + self._range_bytes
            grown = min(4 * self._range_bytes, RANGE_BYTES)
            self._range_bytes = grown if is_near else _FIRST_RANGE_BYTES
            wanted = max(self._range_bytes, min(len(buffer), RANGE_BYTES))
            begin, at = self._position, 0
            end = min(begin + wanted, self._found.size_bytes)
            path, version = self._found.path, self._found.version
            self._data = b""
            if end > begin:
                self._data = self._store.read_range(path, begin, end, version)
            self._start = begin
        data = self._data[at : at + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
