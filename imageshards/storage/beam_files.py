"""Any other file system that Beam knows (`hdfs://`, …), behind the interface stores have.

Such a file system has no atomic writes, no versions and no clock of its own, so it is made
to do with renames and without leases.
"""

from __future__ import annotations

import errno
import io
import time
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, cast

from imageshards.errors import StorageError
from imageshards.storage.base import COUNTER, Backend, Entry, Stat


class BeamBackend(Backend):
    """`apache_beam.io.filesystems.FileSystems`, one client per process where Beam keeps one."""

    def __init__(self) -> None:
        from apache_beam.io.filesystem import CompressionTypes
        from apache_beam.io.filesystems import FileSystems

        self._files: Any = FileSystems
        self._plain = CompressionTypes.UNCOMPRESSED

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        with self.open_read(path) as file:
            data = file.read() if max_bytes is None else file.read(max_bytes)
        COUNTER.add(bytes_read=len(data))
        return data

    def open_read(self, path: str) -> BinaryIO:
        COUNTER.add(requests=1)
        return cast(BinaryIO, _asked(path, self._files.open, path, compression_type=self._plain))

    def write(self, path: str, data: bytes) -> Stat:
        self._write(path, io.BytesIO(data))
        return Stat(path, len(data), time.time_ns(), "")

    def _write(self, path: str, source: BinaryIO) -> None:
        written = f"{path}.part"
        self._make_parent(path)
        with _asked(written, self._files.create, written, compression_type=self._plain) as file:
            while piece := source.read(1 << 20):
                file.write(piece)
                COUNTER.add(bytes_written=len(piece))
        self.move(written, path)

    def upload(self, local_path: str, path: str) -> Stat:
        with open(local_path, "rb") as source:
            self._write(path, source)
            return Stat(path, source.tell(), time.time_ns(), "")

    def download(self, path: str, local_path: str) -> None:
        from imageshards.storage.local import whole_file

        with self.open_read(path) as source, whole_file(local_path) as file:
            while piece := source.read(1 << 20):
                file.write(piece)
                COUNTER.add(bytes_read=len(piece))

    def stat(self, path: str) -> Stat | None:
        COUNTER.add(requests=1)
        if not _asked(path, self._files.exists, path):
            return None
        files = _asked(path, self._files.get_filesystem, path)
        try:
            found = _stat(_asked(path, files.metadata, path))
        except OSError:  # gone meanwhile, or a folder
            return None
        is_folder = not found.size_bytes and self._match(path + "/**")
        return None if is_folder else found

    def _match(self, pattern: str) -> list[Stat]:
        COUNTER.add(requests=1)
        matched = _asked(pattern, self._files.match, [pattern])[0].metadata_list
        found = [
            _stat(m)
            for m in matched
            if not m.path.endswith("/")  # stores mark folders by such objects
        ]
        return sorted(found, key=lambda s: s.path)

    def files_from(self, prefix: str, after: str = "") -> Iterator[Stat]:
        yield from self._match(prefix + "**")

    def list_folder(self, folder: str) -> list[Entry]:
        prefix = folder.rstrip("/") + "/"
        entries: dict[str, Entry] = {}
        for found in self.files_below(folder):
            name, slash, _ = found.path.removeprefix(prefix).partition("/")
            if slash:
                entries[name] = Entry(name, prefix + name, True, 0, 0)
            else:
                entries[name] = Entry(name, found.path, False, found.size_bytes, found.mtime_ns)
        return [entries[name] for name in sorted(entries)]

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self._files.exists(path):
                _asked(path, self._files.delete, [path])

    def copy(self, source: str, target: str) -> None:
        self.delete([target])
        self._make_parent(target)
        _asked(source, self._files.copy, [source], [target])

    def move(self, source: str, target: str) -> None:
        self.delete([target])  # a rename onto something is refused by some
        self._make_parent(target)
        _asked(source, self._files.rename, [source], [target])

    def _make_parent(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if not _asked(parent, self._files.exists, parent):
            _asked(parent, self._files.mkdirs, parent)

    def create(self, path: str, data: bytes) -> str | None:
        """Not atomic here: two callers at the same instant may both succeed."""
        if _asked(path, self._files.exists, path):
            return None
        self.write(path, data)
        return ""

    def replace_if(self, path: str, data: bytes, version: str) -> str | None:
        """As `write` if the file is there: it has no version to compare."""
        if not _asked(path, self._files.exists, path):
            return None
        self.write(path, data)
        return ""

    def age_sec(self, path: str) -> float | None:
        found = self.stat(path)
        return None if found is None else max(0.0, time.time() - found.mtime_ns / 1e9)

    def check_bucket(self, path: str, flag: str) -> None:
        try:
            self._files.get_filesystem(path)
        except Exception as e:  # every store has errors of its own
            raise StorageError(
                f"{flag} {path!r} is on no file system that can be used here ({e}); expected a "
                "path of this machine, gs://, s3:// or one that this Beam knows."
            ) from e


def _stat(found: Any) -> Stat:
    mtime_ns = int((found.last_updated_in_seconds or 0) * 1e9)
    return Stat(found.path, found.size_in_bytes, mtime_ns, "")


def _asked(path: str, method: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls Beam; its errors, of many kinds, become `OSError`."""
    try:
        return method(*args, **kwargs)
    except Exception as e:
        if isinstance(e, OSError) and e.errno:
            raise
        causes = getattr(e, "exception_details", None) or {}
        cause = next((c for c in causes.values() if isinstance(c, BaseException)), e)
        text = str(cause)
        is_missing = "404" in text or "not found" in text.lower() or "No such file" in text
        raise OSError(errno.ENOENT if is_missing else errno.EIO, text, path) from e
