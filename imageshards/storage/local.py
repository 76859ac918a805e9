"""Files of this machine, by the interface of all backends."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterable
from typing import BinaryIO

from imageshards.storage.base import Entry, FolderBackend, Stat, write_whole


class LocalBackend(FolderBackend):
    """This machine's file system. Folders above what is written are made."""

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        with open(path, "rb") as file:
            return file.read(-1 if max_bytes is None else max_bytes)

    def write(self, path: str, data: bytes) -> Stat:
        with write_whole(path) as file:
            file.write(data)
        return _stat(path, os.stat(path))

    def open_read(self, path: str) -> BinaryIO:
        return open(path, "rb", buffering=1 << 20)

    def stat(self, path: str) -> Stat | None:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if os.path.isdir(path) else _stat(path, status)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def list_folder(self, folder: str) -> list[Entry]:
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda e: e.name)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [entry for entry in map(_entry, found) if entry is not None]

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def delete_folder(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)

    def copy(self, source: str, target: str) -> None:
        self.download(source, target)

    def link(self, source: str, target: str) -> None:
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        between = f"{target}.tmp-{uuid.uuid4().hex[:8]}"
        try:
            os.link(source, between)
        except FileNotFoundError:
            raise
        except OSError:  # not every file system has links, or lets everybody make them
            self.copy(source, target)
            return
        try:
            os.replace(between, target)
        finally:  # of two names of one file `replace` leaves both
            with contextlib.suppress(FileNotFoundError):
                os.unlink(between)

    def move(self, source: str, target: str) -> None:
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        os.replace(source, target)

    def upload(self, local_path: str, path: str) -> Stat:
        self.copy(local_path, path)
        return _stat(path, os.stat(path))


def _stat(path: str, status: os.stat_result) -> Stat:
    return Stat(path, status.st_size, status.st_mtime_ns, "")


def _entry(entry: os.DirEntry[str]) -> Entry | None:
    """An entry with its links followed; None if it is gone or a dangling link."""
    try:
        if entry.is_dir():
            return Entry(entry.name, entry.path, True, 0, 0)
        status = entry.stat()
    except OSError:
        return None
    return Entry(entry.name, entry.path, False, status.st_size, status.st_mtime_ns)
