"""One set of functions for local files and for objects in stores.

    from imageshards import storage

    storage.write("s3://bucket/folder/name", b"...")
    storage.read("gs://bucket/name")
    storage.list_folder("/data/photos")

The scheme of a path chooses the backend: google-cloud-storage reads `gs://`, boto3 reads `s3://`,
and programs add backends for more schemes with `extend`. A library is imported when its first path
is used. A process has a client for each scheme and settings, shared by its threads but never by a
process forked from it.

An error of one object is an `OSError`, such as `FileNotFoundError`, raised after retries. An error
of a bucket, its rights or its credentials is an `errors.StorageError`.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, Concatenate, ParamSpec, TypeVar

from imageshards.errors import StorageError, install_advice
from imageshards.storage.base import RANGE_BYTES, Backend, unfinished_file, write_whole
from imageshards.storage.base import Counts as Counts
from imageshards.storage.base import Stat as Stat
from imageshards.storage.base import count as count
from imageshards.storage.base import counts as counts
from imageshards.storage.base import read_up_to as read_up_to
from imageshards.storage.base import reset_counts as reset_counts
from imageshards.storage.base import unreported as unreported
from imageshards.storage.concurrency import in_thread as in_thread
from imageshards.storage.concurrency import map_concurrently as map_concurrently
from imageshards.storage.concurrency import map_in_processes as map_in_processes
from imageshards.storage.concurrency import run_concurrently as run_concurrently
from imageshards.storage.concurrency import shared_memory as shared_memory
from imageshards.storage.local import Entry as Entry
from imageshards.storage.local import LocalBackend
from imageshards.storage.local import delete_unfinished as delete_unfinished
from imageshards.storage.local import walk as walk
from imageshards.storage.places import absolute_place as absolute_place
from imageshards.storage.places import is_local as is_local
from imageshards.storage.places import join as join
from imageshards.storage.places import name_of as name_of
from imageshards.storage.places import parent_of as parent_of
from imageshards.storage.places import place as place

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_MAGIC = re.compile(r"[*?\[]")
_HASHED_BYTES = 1 << 20  # per read
_backends: dict[str, Backend] = {}

# Scheme → settings of its client, which come before the environment.
Settings = Mapping[str, Mapping[str, Any]]
_NONE: Settings = types.MappingProxyType({})
_settings = contextvars.ContextVar("settings of stores", default=_NONE)
_other_backend: Callable[[str], Backend | None] | None = None


def extend(new_backend: Callable[[str], Backend | None]) -> None:
    """Adds a function that returns the backend of a scheme that is unknown here, or None."""
    global _other_backend
    _other_backend = new_backend


@contextlib.contextmanager
def using(settings: Settings) -> Iterator[None]:
    """Applies client settings inside a block.

    The settings hold in this thread, and in calls made by `in_thread`, `map_concurrently` and
    `run_concurrently`. Each combination of settings has its own clients.
    """
    token = _settings.set(settings)
    try:
        yield
    finally:
        _settings.reset(token)


def settings() -> Settings:
    """Returns the settings that apply here (see `using`)."""
    return _settings.get()


def forget_clients() -> None:
    """Drops all clients, so that new ones read the environment again."""
    _backends.clear()


# A forked process must not use the connections of its parent: both would read the same answers.
os.register_at_fork(after_in_child=forget_clients)


def backend(path: str) -> Backend:
    """Returns this process's client for the storage of a path.

    Raises:
        StorageError: A package is missing, or its settings are wrong.
        OSError: No backend knows the scheme.
    """
    scheme = "" if is_local(path) else path.partition("://")[0]
    settings = _settings.get().get(scheme)
    client = f"{scheme} {settings}" if settings else scheme
    if (found := _backends.get(client)) is not None:
        return found
    # Two threads may each make a client; both then use the first one.
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

    With `must_list`, the names in the bucket must be readable, not only its objects.

    Raises:
        StorageError: The bucket, its rights, the credentials or a package is missing.
    """
    try:
        here = backend(path)
    except OSError as e:
        raise StorageError(
            argument=argument,
            received=f"{path!r}, which is on no file system that can be used here",
            expected="a path of this machine, gs://, s3:// or one that an installed library knows",
        ) from e
    here.check_bucket(path, argument, must_list)


def _on_path(
    method: Callable[Concatenate[Backend, str, _Parameters], _Result],
) -> Callable[Concatenate[str, _Parameters], _Result]:
    """Returns a function that calls this method of the backend of its first argument, a path."""

    @functools.wraps(method)
    def call(path: str, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        result: _Result = getattr(backend(path), method.__name__)(path, *args, **kwargs)
        return result

    # pickle looks a function up by these names.
    call.__module__, call.__qualname__ = __name__, method.__name__
    return call


# `Backend` describes these functions and their arguments.
open_read = _on_path(Backend.open_read)
read = _on_path(Backend.read)
read_range = _on_path(Backend.read_range)
stat = _on_path(Backend.stat)
is_folder = _on_path(Backend.is_folder)
list_folder = _on_path(Backend.list_folder)
files_below = _on_path(Backend.files_below)
files_from = _on_path(Backend.files_from)
link = _on_path(Backend.link)
delete_folder = _on_path(Backend.delete_folder)


def sha256_of(path: str, num_bytes: int | None = None) -> tuple[int, str]:
    """Returns the size and the SHA-256 of a file.

    At most `num_bytes` + 1 bytes are read, so a larger file returns the size `num_bytes` + 1.
    """
    read, digest = 0, hashlib.sha256()
    left = sys.maxsize if num_bytes is None else num_bytes + 1
    with open_read(path) as file:
        while data := file.read(min(left - read, _HASHED_BYTES)):
            digest.update(data)
            read += len(data)
    return read, digest.hexdigest()


def write(path: str, data: bytes | str) -> Stat:
    """Writes a file that appears whole or not at all; creates missing folders."""
    return backend(path).write(path, data.encode() if isinstance(data, str) else data)


def write_new(path: str, data: bytes | str) -> bool:
    """Writes a file as `write` does, unless the path exists already; returns whether it wrote.

    If several processes call this at the same time, exactly one writes. The answer to a request
    may get lost and its repetition fail, so False may also mean that this process wrote the file.
    """
    return backend(path).write_new(path, data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def open_write(path: str) -> Iterator[IO[bytes]]:
    """Opens a seekable file to write, which appears at its path at the end of the block.

    After an error nothing has changed at the path. Missing folders are created.
    """
    if is_local(path):
        with write_whole(path) as file:
            yield file
        return
    with AtomicFile(path) as whole, open(whole.local_path, "wb") as file:
        yield file
        # `commit` opens the file again, and would miss what is still in this buffer.
        file.flush()
        whole.commit()


class AtomicFile:
    """A file that is written at `local_path` and appears at `path` on `commit`, else is deleted.

    For a local `path` the file is in the same folder, or beside the path `beside`. For a store it
    is an unnamed temporary file, which the kernel deletes however the process ends.
    """

    def __init__(self, path: str, beside: str = ""):
        self.path = path
        self.local_path = ""
        self._beside = beside or path
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> AtomicFile:
        if is_local(self.path):
            self.local_path = self._stack.enter_context(unfinished_file(self._beside))
        else:
            # The link in /proc opens the file, although it has no name.
            unnamed = self._stack.enter_context(tempfile.TemporaryFile())
            self.local_path = f"/proc/self/fd/{unnamed.fileno()}"
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._stack.close()

    def commit(self, version: str | None = "") -> str:
        """Moves or uploads the closed file to `path`; returns its new version.

        A store raises `OSError` with the code `ESTALE` if the object there has not this `version`.
        None means that there must be no object.
        """
        if is_local(self.path):
            os.replace(self.local_path, self.path)
            found = stat(self.path)
            return found.version if found else ""
        return backend(self.path).upload(self.local_path, self.path, version).version


def local_copy(path: str) -> str:
    """Returns the path of a local copy of a file or folder in a store; a local path as it is.

    A changed file or folder is copied again. Copies are deleted when the process ends.
    """
    if is_local(path):
        return path
    # The versions of all files decide whether there is a copy already.
    return _copy_of(path, stat(path) or (*files_below(path),))


@functools.cache
def _copy_of(path: str, versions: Stat | tuple[Stat, ...]) -> str:
    target = os.path.join(tempfile.mkdtemp(dir=_copies().name), name_of(path))
    (copy if isinstance(versions, Stat) else copy_folder)(path, target)
    return target


@functools.cache
def _copies() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()  # Python deletes the folder when the process ends.


def exists(path: str) -> bool:
    """Returns whether a path is a file, and not a folder."""
    return stat(path) is not None


def glob(pattern: str) -> list[str]:
    """Returns the files, sorted, that match a pattern; `*` does not match a slash."""
    if is_local(pattern):
        return sorted(path for path in local_glob.glob(pattern) if os.path.isfile(path))
    # A store lists by prefix only: the text before the first wildcard.
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
    """Deletes files of one kind of storage; ignores missing ones."""
    paths = list(paths)
    if paths:
        backend(paths[0]).delete(paths)


def copy(source: str, target: str) -> None:
    """Copies a file; within a store, the store itself copies the bytes."""
    here, there = backend(source), backend(target)
    if here is there:
        here.copy(source, target)
    elif is_local(source):
        there.upload(source, target)
    else:  # Between two stores, or from a store to this machine.
        with here.open_read(source) as stored, open_write(target) as file:
            shutil.copyfileobj(stored, file, RANGE_BYTES)


def move(source: str, target: str) -> None:
    """Moves a file: by a rename between local paths, else by a copy."""
    if is_local(source) and is_local(target):
        os.makedirs(parent_of(target) or ".", exist_ok=True)
        os.replace(source, target)
    else:
        copy(source, target)
        delete([source])


def sync(*paths: str) -> None:
    """Flushes local files, and the names in local folders, to disk; a store needs no flush."""
    for path in filter(is_local, paths):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def copy_folder(source: str, target: str) -> None:
    """Copies every file below a folder, several at the same time."""
    _to_folder(copy, source, target)


def link_folder(source: str, target: str) -> set[str]:
    """Links every file below a folder (see `link`); returns their paths below the folder."""
    return _to_folder(link, source, target)


def _to_folder(put: Callable[[str, str], None], source: str, target: str) -> set[str]:
    prefix = len(source.rstrip("/")) + 1
    names = [file.path[prefix:] for file in files_below(source)]
    done = map_concurrently(lambda name: put(join(source, name), join(target, name)), names)
    collections.deque(done, maxlen=0)
    return set(names)
