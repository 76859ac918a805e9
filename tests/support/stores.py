"""A store for tests: a folder of this machine under a scheme that makes it a remote one."""

from __future__ import annotations

import os
from typing import Any

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem
from apache_beam.io.localfilesystem import LocalFileSystem

SCHEME = "teststore"


def store_uri(path: object) -> str:
    """The URI of a path of this machine."""
    return f"{SCHEME}://{path}"


class StoreFileSystem(FileSystem):
    """Like an object store it knows files, but no folders; like hdfs it renames, once."""

    def __init__(self, pipeline_options: Any):
        super().__init__(pipeline_options)
        self._local = LocalFileSystem(pipeline_options)

    @classmethod
    def scheme(cls) -> str:
        return SCHEME

    @staticmethod
    def _path(uri: str) -> str:
        return uri.removeprefix(f"{SCHEME}://")

    def _list(self, dir_or_prefix: str) -> Any:
        for found in self._local._list(os.path.dirname(self._path(dir_or_prefix)) or "/"):
            yield FileMetadata(
                store_uri(found.path), found.size_in_bytes, found.last_updated_in_seconds
            )

    def open(
        self,
        path: str,
        mime_type: str = "application/octet-stream",
        compression_type: str = CompressionTypes.AUTO,
    ) -> Any:
        return self._local.open(self._path(path), mime_type, compression_type)

    def exists(self, path: str) -> bool:
        return self._local.exists(self._path(path))

    def has_dirs(self) -> bool:
        return False

    def join(self, basepath: str, *paths: str) -> str:
        return os.path.join(basepath, *paths)

    def split(self, path: str) -> Any:
        return os.path.split(path)

    def mkdirs(self, path: str) -> None:
        os.makedirs(self._path(path))

    def create(
        self,
        path: str,
        mime_type: str = "application/octet-stream",
        compression_type: str = CompressionTypes.AUTO,
    ) -> Any:
        return self._local.create(self._path(path), mime_type, compression_type)

    def rename(self, source_file_names: Any, destination_file_names: Any) -> None:
        for source, target in zip(source_file_names, destination_file_names, strict=True):
            if os.path.exists(self._path(target)):  # as hdfs:// does
                raise BeamIOError("the target is there", {target: FileExistsError()})
            self._local.rename([self._path(source)], [self._path(target)])

    def copy(self, source_file_names: Any, destination_file_names: Any) -> None:
        for source, target in zip(source_file_names, destination_file_names, strict=True):
            self._local.copy([self._path(source)], [self._path(target)])

    def delete(self, paths: Any) -> None:
        self._local.delete([self._path(path) for path in paths])

    def _unused(self, *args: Any) -> Any:
        raise NotImplementedError

    def metadata(self, path: str) -> FileMetadata:
        found = self._local.metadata(self._path(path))
        size_bytes = 0 if os.path.isdir(self._path(path)) else found.size_in_bytes
        return FileMetadata(path, size_bytes, found.last_updated_in_seconds)

    size = last_updated = checksum = _unused
