"""A store for tests: a folder of this machine under a scheme that makes it a remote one."""

import os
from typing import Any

from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.localfilesystem import LocalFileSystem

import beam_pipeline  # noqa: F401  # tells storage of Beam's file systems

SCHEME = "teststore"


def store_uri(path: object, scheme: str = SCHEME) -> str:
    return f"{scheme}://{path}"


def _local(uri: str) -> str:
    return uri.rpartition("://")[2]


class StoreFileSystem(LocalFileSystem):
    """Like an object store it knows files, but no folders."""

    @classmethod
    def scheme(cls) -> str:
        return SCHEME

    def has_dirs(self) -> bool:
        return False

    def _list(self, dir_or_prefix: str) -> Any:
        for found in super()._list(os.path.dirname(_local(dir_or_prefix)) or "/"):
            path, size_bytes = store_uri(found.path, self.scheme()), found.size_in_bytes
            yield FileMetadata(path, size_bytes, found.last_updated_in_seconds)

    def open(self, path: str, *more: Any, **named: Any) -> Any:
        return super().open(_local(path), *more, **named)

    def exists(self, path: str) -> bool:
        return bool(super().exists(_local(path)))

    def metadata(self, path: str) -> FileMetadata:
        found = super().metadata(_local(path))
        size_bytes = 0 if os.path.isdir(_local(path)) else found.size_in_bytes
        return FileMetadata(path, size_bytes, found.last_updated_in_seconds)
