"""Files of this machine, behind the interface that stores have."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from typing import IO, BinaryIO

from imageshards.storage.base import Backend, Entry, Stat, temporary


class LocalBackend(Backend):
    """This machine's file system. Parent folders of what is written are made."""

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        with open(path, "rb") as file:
            return file.read(-1 if max_bytes is None else max_bytes)

    def write(self, path: str, data: bytes) -> Stat:
        with whole_file(path) as file:
            file.write(data)
        return Stat(path, len(data), os.stat(path).st_mtime_ns, "")

    def open_read(self, path: str) -> BinaryIO:
        return open(path, "rb", buffering=1 << 20)

    def stat(self, path: str) -> Stat | None:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if os.path.isdir(path):
            return None
        return Stat(path, status.st_size, status.st_mtime_ns, "")

    def list_folder(self, folder: str) -> list[Entry]:
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda e: e.name)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [entry for entry in map(_entry, found) if entry is not None]

    def files_below(self, folder: str) -> Iterator[Stat]:
        entries = self.list_folder(folder)
        # The order of whole paths, as stores list them: "a-b" comes before "a/b".
        for entry in sorted(entries, key=lambda e: e.name + "/" * e.is_folder):
            if entry.is_folder:
                yield from self.files_below(entry.path)
            else:
                yield Stat(entry.path, entry.size_bytes, entry.mtime_ns, "")

    def files_from(self, prefix: str, after: str = "") -> Iterator[Stat]:
        for found in self.files_below(os.path.dirname(prefix) or "."):
            if found.path.startswith(prefix):
                yield found

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def delete_folder(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)

    def copy(self, source: str, target: str) -> None:
        with open(source, "rb") as data, whole_file(target) as file:
            shutil.copyfileobj(data, file, 1 << 20)

    def move(self, source: str, target: str) -> None:
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        os.replace(source, target)

    def upload(self, local_path: str, path: str) -> Stat:
        self.copy(local_path, path)
        status = os.stat(path)
        return Stat(path, status.st_size, status.st_mtime_ns, "")

    def download(self, path: str, local_path: str) -> None:
        self.copy(path, local_path)

    def create(self, path: str, data: bytes) -> str | None:
        written = temporary(path)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        try:
            _write_through(written, data)
            os.link(written, path)  # unlike a rename, refuses when the name is taken
        except FileExistsError:
            return None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(written)
        return ""

    def replace_if(self, path: str, data: bytes, version: str) -> str | None:
        """As `write` if the file is there: files have no versions to compare."""
        if not os.path.exists(path):
            return None
        self.write(path, data)
        return ""

    def age_sec(self, path: str) -> float | None:
        try:
            return max(0.0, time.time() - os.stat(path).st_mtime)
        except FileNotFoundError:
            return None

    def check_bucket(self, path: str, flag: str) -> None:
        """There is no bucket to look at."""


def _entry(entry: os.DirEntry[str]) -> Entry | None:
    """What a name stands for, behind links; None if it is gone or leads nowhere."""
    try:
        if entry.is_dir():
            return Entry(entry.name, entry.path, True, 0, 0)
        status = entry.stat()
    except OSError:
        return None
    return Entry(entry.name, entry.path, False, status.st_size, status.st_mtime_ns)


def _write_through(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def whole_file(path: str) -> Iterator[IO[bytes]]:
    """A file that appears whole or not at all, and survives a power cut."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    written = temporary(path)
    try:
        with open(written, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(written)
        raise
