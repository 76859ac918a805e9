"""Buckets that TensorFlow cannot read itself: `s3://`, and `gs://` in an emulator.

Their libraries are imported when a path first asks for them. A process has one client per
store, shared by its threads and by no process forked from it.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import io
import itertools
import os
import threading
from collections.abc import Callable

from trainer.dataset.store_base import EMULATOR_VARIABLE, Found, Store, split_uri

# Files are read in ranges that grow while they are read on: a look at both ends of a file is
# no download, and a file that is read whole is asked for few times.
_FIRST_RANGE_BYTES = 64 * 1024
_LARGEST_RANGE_BYTES = 8 * 1024 * 1024

_lock = threading.Lock()
_clients: dict[str, Store] = {}


def is_store(path: str) -> bool:
    """Whether `path` is read by a client of ours instead of TensorFlow."""
    if path.startswith("gs://"):
        return bool(os.environ.get(EMULATOR_VARIABLE))
    return path.startswith("s3://")


def forget_clients() -> None:
    """Makes new clients when they are next needed, as other settings or a fork ask for."""
    global _lock
    _lock = threading.Lock()
    _clients.clear()


if hasattr(os, "register_at_fork"):
    # Connections of the parent are the parent's.
    os.register_at_fork(after_in_child=forget_clients)


def check_bucket(uri: str, flag: str) -> None:
    """Finds out at once whether the bucket of a path can be used.

    Raises:
        UserError: No such bucket, wrong credentials, no answer, or a package is missing.
    """
    _client(uri).check(uri, flag)


def look(uri: str) -> Found:
    """Size and time of an object.

    Raises:
        OSError: It is missing or cannot be looked at.
        UserError: That is the bucket's fault.
    """
    client, (bucket, name) = _client(uri), split_uri(uri)
    if not name or name.endswith("/"):
        raise FileNotFoundError(errno.ENOENT, "there is no such object", uri)
    return client.asked(uri, lambda: client.look(bucket, name))


def read(uri: str, start: int = 0, end: int | None = None) -> bytes:
    """Bytes `start` to before `end` of an object, or all from there.

    Raises:
        OSError, UserError: As of `look`.
    """
    client, (bucket, name) = _client(uri), split_uri(uri)
    return client.asked(uri, lambda: client.read(bucket, name, start, end))


def is_folder(uri: str) -> bool:
    """Whether any object's name begins with `uri` and a slash."""
    return bool(_names(_folder(uri), "/", 1))


def list_folder(uri: str) -> tuple[list[str], list[str]]:
    """Names of the folders and of the files in a folder, both sorted.

    Raises:
        OSError, UserError: As of `look`.
    """
    above = split_uri(_folder(uri))[1]
    folders, files = [], []
    for found in _names(_folder(uri), "/"):
        name = found.name[len(above) :]
        # Some tools mark an empty folder by an object with the folder's own name.
        if name.endswith("/"):
            folders.append(name.rstrip("/"))
        elif name:
            files.append(name)
    return sorted(folders), sorted(files)


def files_below(uri: str) -> list[str]:
    """Every object below a folder, sorted.

    Raises:
        OSError, UserError: As of `look`.
    """
    bucket = uri[: len(uri) - len(split_uri(uri)[1])]
    found = _names(_folder(uri), "")
    return sorted(bucket + one.name for one in found if not one.name.endswith("/"))


def matches(pattern: str) -> list[str]:
    """The objects a glob finds, sorted; `*` does not cross a slash.

    Raises:
        OSError, UserError: As of `look`.
    """
    parts = pattern.split("/")
    first = next(i for i, part in enumerate(parts) if any(c in part for c in "*?["))
    found = ["/".join(parts[:first])]
    for depth, part in enumerate(parts[first:], first):
        below = []
        for folder in found:
            names = list_folder(folder)[depth == len(parts) - 1]
            below += [f"{folder}/{name}" for name in names if fnmatch.fnmatchcase(name, part)]
        found = below
    return sorted(found)


def download(uri: str, path: str, go_on: Callable[[], bool] = lambda: True) -> str:
    """Copies an object to a local file.

    Args:
        uri: The object.
        path: An existing file is written over.
        go_on: Asked between parts; False gives up.

    Returns:
        SHA-256 of what was copied, 64 hexadecimal digits.

    Raises:
        OSError, UserError: As of `look`.
        InterruptedError: `go_on` said no.
    """
    digest = hashlib.sha256()
    num_bytes = look(uri).num_bytes
    with open(path, "wb") as file:
        for start in range(0, num_bytes, _LARGEST_RANGE_BYTES):
            if not go_on():
                raise InterruptedError(errno.EINTR, "was given up", uri)
            part = read(uri, start, min(num_bytes, start + _LARGEST_RANGE_BYTES))
            digest.update(part)
            file.write(part)
    return digest.hexdigest()


class StoreFile(io.RawIOBase):
    """An object as a file.

    Raises:
        OSError, UserError: As of `look`.
    """

    def __init__(self, uri: str):
        super().__init__()
        self._uri = uri
        self._num_bytes = look(uri).num_bytes
        self._at, self._kept_at, self._kept = 0, 0, b""
        self._next_range_bytes = _FIRST_RANGE_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes, fewer only at the end; all that is left for -1."""
        left = self._num_bytes - self._at
        size = left if size is None or size < 0 else min(size, left)
        pieces = []
        while size > 0:
            offset = self._at - self._kept_at
            piece = self._kept[offset : offset + size]
            if not piece and not self._fetch(size):
                break
            pieces.append(piece)
            self._at += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _fetch(self, size: int) -> bool:
        wanted = max(size, self._next_range_bytes)
        end = min(self._num_bytes, self._at + min(wanted, _LARGEST_RANGE_BYTES))
        self._kept, self._kept_at = read(self._uri, self._at, end), self._at
        self._next_range_bytes = min(2 * wanted, _LARGEST_RANGE_BYTES)
        return bool(self._kept)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Goes to `offset`."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._num_bytes}[whence]
        self._at = max(0, base + offset)
        self._kept, self._kept_at = b"", self._at
        self._next_range_bytes = _FIRST_RANGE_BYTES
        return self._at

    def tell(self) -> int:
        return self._at


def _folder(uri: str) -> str:
    """With one slash at its end."""
    return uri.rstrip("/") + "/"


def _names(folder: str, delimiter: str, limit: int | None = None) -> list[Found]:
    client, (bucket, prefix) = _client(folder), split_uri(folder)
    # From its beginning if a page fails: what goes on behind an error has a gap.
    return client.asked(
        folder, lambda: list(itertools.islice(client.names(bucket, prefix, delimiter), limit))
    )


def _client(uri: str) -> Store:
    scheme = uri.partition("://")[0]
    with _lock:
        if scheme not in _clients:
            _clients[scheme] = _new_client(scheme)
        return _clients[scheme]


def _new_client(scheme: str) -> Store:
    if scheme == "s3":
        from trainer.dataset.store_s3 import S3Store

        return S3Store()
    from trainer.dataset.store_gcs import GcsStore

    return GcsStore()
