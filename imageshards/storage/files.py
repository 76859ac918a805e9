"""Functions on paths; the scheme of a path chooses the backend.

`gs://` is read by google-cloud-storage, `s3://` by boto3, and other schemes by what was
registered for them. Libraries are imported when a path first asks for them. A process has one
client per scheme and settings, shared by its threads and never by a process forked from it.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import contextvars
import errno
import fnmatch
import functools
import glob as local_glob
import hashlib
import os
import re
import shutil
import sys
import tempfile
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, BinaryIO

from imageshards.errors import StorageError, install_advice
from imageshards.storage.base import RANGE_BYTES, Backend, Stat, write_whole
from imageshards.storage.concurrency import map_concurrently
from imageshards.storage.local import LocalBackend, temporary_folder

_MAGIC = re.compile(r"[*?\[]")
_HASHED_BYTES = 1 << 20  # at once

_backends: dict[str, Backend] = {}


# Scheme → what its client is told beside the environment.
Settings = Mapping[str, Mapping[str, Any]]
_NONE: Settings = types.MappingProxyType({})
_settings = contextvars.ContextVar("settings of stores", default=_NONE)
_other_backend: Callable[[str], Backend | None] | None = None


def extend(new_backend: Callable[[str], Backend | None]) -> None:
    """Adds the backends of another program: for a scheme that is not known here, or None."""
    global _other_backend
    _other_backend = new_backend


@contextlib.contextmanager
def using(settings: Settings) -> Iterator[None]:
    """Has clients obey settings in a block: those of this thread, and of threads that `in_thread`,
    `map_concurrently` and `run_concurrently` give work to. Clients of other settings are others.
    """
    token = _settings.set(settings)
    try:
        yield
    finally:
        _settings.reset(token)


def settings() -> Settings:
    """The settings of this block."""
    return _settings.get()


def forget_clients() -> None:
    """Drops all clients: after a fork, or when the environment changed, new ones are made."""
    _backends.clear()


# A forked process must not use the connections of its parent.
os.register_at_fork(after_in_child=forget_clients)


def is_local(path: str) -> bool:
    """Whether a path is on this machine's file system (has no scheme)."""
    return "://" not in path


def backend(path: str) -> Backend:
    """This process's client for the storage of a path.

    Raises:
        StorageError: A package is missing, or its settings are wrong.
        OSError: Nobody here knows the scheme.
    """
    scheme = "" if is_local(path) else path.partition("://")[0]
    settings = _settings.get().get(scheme)
    client = f"{scheme} {settings}" if settings else scheme
    if (found := _backends.get(client)) is not None:
        return found
    # Of two threads that make one at once, both take that of the first.
    return _backends.setdefault(client, _new_backend(scheme, path, settings or {}))


def _new_backend(scheme: str, path: str, settings: Mapping[str, Any]) -> Backend:
    if scheme == "":
        return LocalBackend()
    try:
        if scheme == "gs":
            from imageshards.storage.gcs import GcsBackend

            return GcsBackend(settings)
        if scheme == "s3":
            from imageshards.storage.s3 import S3Backend

            return S3Backend(settings)
    except ImportError as e:
        raise StorageError(
            f"{path!r} needs the package {e.name!r}, which is not installed",
            remedy=install_advice({"gs": "gcp", "s3": "aws"}[scheme]),
        ) from e
    if _other_backend and (found := _other_backend(scheme)):
        return found
    text = f"{path} is on no file system that can be used here"
    raise OSError(errno.EPROTONOSUPPORT, text, path)


def check_bucket(path: str, argument: str, must_list: bool = True) -> None:
    """Checks, with few requests, that the bucket of the path that `argument` received can be used.

    Without `must_list` its names need not be listed: its objects may still be readable.

    Raises:
        StorageError: No such bucket, no rights to it, no credentials, or a package is missing.
    """
    try:
        here = backend(path)
    except StorageError as e:
        raise StorageError(argument=argument, received=str(e)) from e
    except OSError as e:
        raise StorageError(
            argument=argument,
            received=f"{path!r}, which is on no file system that can be used here",
            expected="a path of this machine, gs://, s3:// or one that an installed library knows",
        ) from e
    here.check_bucket(path, argument, must_list)


def join(folder: str, *names: str) -> str:
    """A path below a folder."""
    if is_local(folder):
        return os.path.join(folder, *names)
    return "/".join([folder.rstrip("/"), *(name.strip("/") for name in names)])


def name_of(path: str) -> str:
    """The last component of a path."""
    return path.rstrip("/").rpartition("/")[2]


def parent_of(path: str) -> str:
    """The folder that a path is in."""
    return os.path.dirname(path) if is_local(path) else path.rstrip("/").rpartition("/")[0]


def read(path: str, max_bytes: int | None = None) -> bytes:
    """A whole file, or no more than its first `max_bytes`."""
    return backend(path).read(path, max_bytes)


def read_range(path: str, start: int, end: int) -> bytes:
    """Bytes `start` to before `end` of a file; fewer at its end."""
    return backend(path).read_range(path, start, end)


def sha256_of(path: str, num_bytes: int | None = None) -> tuple[int, str]:
    """The size of a file and its SHA-256. Of a file that is larger than `num_bytes`, one byte
    more than these is read, and the size that is returned is `num_bytes` + 1.
    """
    read, digest = 0, hashlib.sha256()
    left = sys.maxsize if num_bytes is None else num_bytes + 1
    with open_read(path) as file:
        while data := file.read(min(left - read, _HASHED_BYTES)):
            digest.update(data)
            read += len(data)
    return read, digest.hexdigest()


def open_read(path: str) -> BinaryIO:
    """A buffered stream that can seek; stores are read in ranges of some MiB."""
    return backend(path).open_read(path)


def write(path: str, data: bytes | str) -> Stat:
    """Writes a file that appears whole or not at all; folders above it are made."""
    return backend(path).write(path, data.encode() if isinstance(data, str) else data)


def write_new(path: str, data: bytes | str) -> bool:
    """Writes a file as `write` does, unless there is one already; returns whether it wrote.

    Of several processes that do so at once, one writes. A process whose first attempt had arrived
    without an answer is told False, too: the file that is there may be its own.
    """
    return backend(path).write_new(path, data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def open_write(path: str) -> Iterator[IO[bytes]]:
    """A file to write, which can seek; at the end of the block it is at its path, whole.

    Until then it is beside its path, or without a name in the temporary folder of this machine for
    a store; after an error nothing has changed at its path. Folders above it are made.
    """
    if is_local(path):
        with write_whole(path) as file:
            yield file
        return
    with AtomicFile(path) as whole, open(whole.local_path, "wb") as file:
        yield file
        file.flush()
        whole.commit()


class AtomicFile:
    """What is written to `local_path` is at `path` after `commit`; without `commit` it is deleted.

    On this machine the file is beside `path` until then, or beside another one. For a store it has
    no name in the temporary folder: the kernel deletes it with any end of the process.
    """

    def __init__(self, path: str, beside: str = ""):
        self.path = path
        self.local_path = f"{beside or path}.tmp-{uuid.uuid4().hex[:8]}"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> AtomicFile:
        if is_local(self.path):
            # Mostly, it has its final name by then.
            self._stack.callback(LocalBackend().delete, [self.local_path])
        else:
            unnamed = self._stack.enter_context(tempfile.TemporaryFile())
            self.local_path = f"/proc/self/fd/{unnamed.fileno()}"
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._stack.close()

    def commit(self) -> str:
        """Moves or sends the closed file to `path`; returns its version in a store.

        Raises:
            OSError, StorageError: It cannot be written there.
        """
        if is_local(self.path):
            os.replace(self.local_path, self.path)
            return ""
        return upload(self.local_path, self.path).version


def upload(local_path: str, path: str) -> Stat:
    """Writes a file from one of this machine; it appears whole or not at all."""
    return backend(path).upload(local_path, path)


def local_copy(path: str) -> str:
    """A path of this machine with the same contents: of what is in a store, file or folder, a copy.

    A file is copied again when it has changed. Copies are in a `temporary_folder`.
    """
    if is_local(path):
        return path
    found = stat(path)
    inside = hashlib.sha256(f"{path} {found}".encode()).hexdigest()
    copied = os.path.join(_copies(), inside, name_of(path))
    if not os.path.exists(copied):
        if found is None:
            copy_folder(path, copied)
        else:
            copy(path, copied)
    return copied


@functools.cache
def _copies() -> str:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(temporary_folder())


def stat(path: str) -> Stat | None:
    """Size, time and version of a file; None if there is none, or a folder."""
    return backend(path).stat(path)


def exists(path: str) -> bool:
    """Whether there is a file of this name; not a folder."""
    return stat(path) is not None


def is_folder(path: str) -> bool:
    """Whether there is a folder of this name: in a store, anything below it."""
    return backend(path).is_folder(path)


def list_folder(folder: str) -> list[Stat]:
    """One level of a folder, by name; empty if nothing is there."""
    return backend(folder).list_folder(folder)


def files_below(folder: str) -> Iterator[Stat]:
    """Every file below a folder, ordered by path."""
    yield from backend(folder).files_below(folder)


def files_from(prefix: str) -> Iterator[Stat]:
    """Every file whose path begins with a text, ordered by path."""
    yield from backend(prefix).files_from(prefix)


def glob(pattern: str) -> list[str]:
    """The files, but no folders, that match a pattern, sorted; `*` does not cross a slash."""
    if is_local(pattern):
        return sorted(path for path in local_glob.glob(pattern) if os.path.isfile(path))
    wanted = pattern.split("/")
    magic = _MAGIC.search(pattern)
    found = files_from(pattern[: magic.start()] if magic else pattern)
    names = ((file.path, file.path.split("/")) for file in found)
    return [
        path
        for path, parts in names
        if len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
    ]


def delete(paths: Iterable[str]) -> None:
    """Deletes files, all on one kind of storage; missing ones are fine."""
    paths = list(paths)
    if paths:
        backend(paths[0]).delete(paths)


def delete_folder(folder: str) -> None:
    """Deletes everything below a folder; a missing one is fine."""
    backend(folder).delete_folder(folder)


def copy(source: str, target: str) -> None:
    """Copies a file, within a store without its bytes passing here."""
    here, there = backend(source), backend(target)
    if here is there:
        here.copy(source, target)
    elif is_local(source):
        there.upload(source, target)
    else:
        with here.open_read(source) as stored, open_write(target) as file:
            shutil.copyfileobj(stored, file, RANGE_BYTES)


def link(source: str, target: str) -> None:
    """Gives a file a second name on its own storage, over what is there.

    A hard link; a copy in a store, and on file systems without links. Files that are written by
    these functions are replaced, never changed, so neither name sees what becomes of the other.
    """
    backend(source).link(source, target)


def move(source: str, target: str) -> None:
    """Renames a file; in stores, which cannot: copies it there, and deletes it."""
    if backend(source) is backend(target):
        backend(source).move(source, target)
    else:
        copy(source, target)
        delete([source])


def sync(*paths: str) -> None:
    """Returns when files, and the names in folders, would survive a power cut of this machine.

    What is in a store always would.
    """
    for path in filter(is_local, paths):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def copy_folder(source: str, target: str) -> None:
    """Copies every file below a folder, several at once."""
    _to_folder(copy, source, target)


def link_folder(source: str, target: str) -> set[str]:
    """Gives every file below a folder a second name (`link`); returns their paths below it."""
    return _to_folder(link, source, target)


def _to_folder(put: Callable[[str, str], None], source: str, target: str) -> set[str]:
    prefix = len(source.rstrip("/")) + 1
    names = [file.path[prefix:] for file in files_below(source)]
    done = map_concurrently(lambda name: put(join(source, name), join(target, name)), names)
    collections.deque(done, maxlen=0)
    return set(names)
