"""Files and objects, on this machine and in stores, by one set of functions.

`gs://` is read by google-cloud-storage, `s3://` by boto3, any other scheme by Beam's
`FileSystems`; they are imported when a path first asks for them. A process has one client
per store, shared by its threads and never by a process forked from it.

Errors of one object are `FileNotFoundError`, `PermissionError` or another `OSError`, after
retries; of a bucket, its rights or the credentials: `errors.StorageError`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from imageshards.errors import StorageError
from imageshards.storage.base import COUNTER, Backend, Counts, Entry, Stat

# How many objects of a folder are copied at once.
_COPIES = 16

_lock = threading.Lock()
_backends: dict[str, Backend] = {}


def forget_clients() -> None:
    """Makes new clients when they are next needed, as other settings or a fork ask for."""
    global _lock
    _lock = threading.Lock()
    _backends.clear()


if hasattr(os, "register_at_fork"):
    # Connections of the parent are the parent's.
    os.register_at_fork(after_in_child=forget_clients)


def is_local(path: str) -> bool:
    """Whether a path is on this machine's file system (has no scheme)."""
    return "://" not in path


def backend(path: str) -> Backend:
    """This process's client for the storage of a path."""
    scheme = "" if is_local(path) else path.partition("://")[0]
    found = _backends.get(scheme)
    if found is None:
        with _lock:
            found = _backends.get(scheme)
            if found is None:
                found = _backends[scheme] = _new_backend(scheme)
    return found


def _new_backend(scheme: str) -> Backend:
    if scheme == "":
        from imageshards.storage.local import LocalBackend

        return LocalBackend()
    if scheme == "gs":
        with _extra("gs://", "gcp"):
            from imageshards.storage.gcs import GcsBackend
        return GcsBackend()
    if scheme == "s3":
        with _extra("s3://", "aws"):
            from imageshards.storage.s3 import S3Backend
        return S3Backend()
    from imageshards.storage.beam_files import BeamBackend

    return BeamBackend()


@contextlib.contextmanager
def _extra(scheme: str, name: str) -> Iterator[None]:
    try:
        yield
    except ImportError as e:
        raise StorageError(
            f"a {scheme} path needs the package {e.name!r}, which is not installed; install it by "
            f"pip install 'imageshards[{name}]'."
        ) from e


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


def write(path: str, data: bytes | str) -> Stat:
    """Writes a file that appears whole or not at all; folders above it are made."""
    return backend(path).write(path, data.encode() if isinstance(data, str) else data)


def upload(local_path: str, path: str) -> Stat:
    """Writes a file from one of this machine; it appears whole or not at all."""
    return backend(path).upload(local_path, path)


def part_bytes(path: str) -> int:
    """Size of the parts that `upload_stream` sends; 0 where a file is sent when it is whole."""
    return backend(path).part_bytes


def upload_stream(stream: BinaryIO, path: str) -> Stat:
    """Writes a file from a stream of any length, part by part; it appears whole or not at all."""
    return backend(path).upload_stream(stream, path)


def drop_unfinished(folder: str) -> None:
    """Drops what uploads that were killed have left in a folder, where a store keeps it."""
    backend(folder).drop_unfinished(folder)


def download(path: str, local_path: str) -> None:
    """Writes a file of this machine; it appears whole or not at all."""
    backend(path).download(path, local_path)


def open_read(path: str) -> BinaryIO:
    """A buffered stream that can seek; stores are read in ranges of some MiB."""
    return backend(path).open_read(path)


def stat(path: str) -> Stat | None:
    """Size, time and version of a file; None if there is none, or a folder."""
    return backend(path).stat(path)


def exists(path: str) -> bool:
    """Whether there is a file of this name; not a folder."""
    return stat(path) is not None


def list_folder(folder: str) -> list[Entry]:
    """One level of a folder, by name; empty if nothing is there."""
    return backend(folder).list_folder(folder)


def files_below(folder: str) -> Iterator[Stat]:
    """Every file below a folder, ordered by path."""
    return backend(folder).files_below(folder)


def files_from(prefix: str, after: str = "", until: str = "") -> Iterator[Stat]:
    """Every file whose path begins with a text, ordered by path.

    Args:
        prefix: The text.
        after: Only those behind this path.
        until: Only those up to this path; all if empty.
    """
    for file in backend(prefix).files_from(prefix, after):
        if until and file.path > until:
            return
        if file.path > after:  # stores that are only similar may begin before it
            yield file


def begins_anywhere(path: str) -> bool:
    """Whether a listing there may begin behind any name at no price."""
    return backend(path).begins_anywhere


def first_from(prefix: str, after: str) -> str | None:
    """The first path that begins with a text and is behind another; None: none, or unknown."""
    return backend(prefix).first_from(prefix, after)


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
    elif is_local(target):
        here.download(source, target)
    else:
        with tempfile.TemporaryDirectory(prefix="imageshards-") as folder:
            between = os.path.join(folder, "copy")
            here.download(source, between)
            there.upload(between, target)


def move(source: str, target: str) -> None:
    """Renames a file; in stores, which cannot: copies it there, and deletes it."""
    if backend(source) is backend(target):
        backend(source).move(source, target)
    else:
        copy(source, target)
        delete([source])


def copy_folder(source: str, target: str) -> None:
    """Copies every file below a folder, several at once."""
    prefix = len(source.rstrip("/")) + 1
    with concurrent.futures.ThreadPoolExecutor(_COPIES) as threads:
        found = [
            threads.submit(copy, file.path, join(target, file.path[prefix:]))
            for file in files_below(source)
        ]
    for copied in found:
        copied.result()


def create(path: str, data: bytes | str) -> str | None:
    """Writes a file unless there is one; its version, or None if there is one."""
    return backend(path).create(path, data.encode() if isinstance(data, str) else data)


def replace_if(path: str, data: bytes | str, version: str) -> str | None:
    """Writes a file if it still has a version; its new one, or None if it has changed.

    Files of this machine have no versions: there it only has to exist.
    """
    return backend(path).replace_if(path, data.encode() if isinstance(data, str) else data, version)


def age_sec(path: str) -> float | None:
    """Seconds since a file was written, by its storage's own clock; None if missing."""
    return backend(path).age_sec(path)


def counts() -> Counts:
    """What this process asked of stores so far."""
    return COUNTER.counts()


def unreported() -> Counts:
    """What this process asked of stores since this was last asked, for a runner's metrics."""
    return COUNTER.unreported()


def reset_counts() -> None:
    """Counts anew, as a new job does."""
    COUNTER.reset()


def check_bucket(path: str, flag: str) -> None:
    """Finds out at once, with few requests, whether the bucket of a path can be used.

    Args:
        path: A path in it.
        flag: The flag that gave the path, for the message.

    Raises:
        StorageError: No such bucket, no rights to it, no credentials, or an extra is missing.
    """
    backend(path).check_bucket(path, flag)
