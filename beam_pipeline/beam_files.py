"""Beam's file systems (`hdfs://`, …) as a backend of `imageshards.storage`.

It asks for them by name when a path needs one, so that it need not know Beam, and this module
loads Beam only then.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, cast

from imageshards.storage.base import COUNTER, Backend, Stat

_PIECE_BYTES = 1 << 20

# Beam's flags that were given to this process by the one that started it.
_given: Mapping[str, Any] = {}


def pipeline_flags() -> Mapping[str, Any]:
    """Beam's flags that were given, for a process that this one starts, which may have no Beam."""
    options = _beam_options()
    return _given if options is None else _flags_of(options)


def use_flags(flags: Mapping[str, Any]) -> None:
    """Makes `pipeline_flags` of another process those of this one."""
    global _given
    _given = flags


def _beam_options() -> Any:
    # Set by Beam's pipelines and workers; not worth importing Beam for.
    module = sys.modules.get("apache_beam.io.filesystems")
    return getattr(getattr(module, "FileSystems", None), "_pipeline_options", None)


@functools.lru_cache(maxsize=1)
def _flags_of(options: Any) -> dict[str, Any]:
    kinds = (str, int, float, bool, list, dict)
    found = options.get_all_options(drop_default=True)
    return {flag: value for flag, value in found.items() if isinstance(value, kinds)}


def new_backend(scheme: str) -> Backend | None:
    """The backend for a scheme; None if Beam does not know it."""
    from apache_beam.io.filesystems import FileSystems

    try:
        FileSystems.get_filesystem(f"{scheme}://")
    except Exception:  # noqa: BLE001  # each file system has errors of its own
        return None
    return BeamBackend()


class BeamBackend(Backend):
    """`apache_beam.io.filesystems.FileSystems`, one client per process where Beam keeps one.

    Such a file system has no atomic writes, no versions and no clock of its own: files are
    written under another name and renamed, and a lock is not quite safe.
    """

    def __init__(self) -> None:
        from apache_beam.io.filesystem import CompressionTypes
        from apache_beam.io.filesystems import FileSystems

        if _given and _beam_options() is None:
            from apache_beam.options.pipeline_options import PipelineOptions

            FileSystems.set_options(PipelineOptions.from_dictionary(dict(_given)))
        self._files: Any = FileSystems
        self._plain = {"compression_type": CompressionTypes.UNCOMPRESSED}

    def open_read(self, path: str) -> BinaryIO:
        COUNTER.add(requests=1)
        with _as_os_error(path):
            return cast(BinaryIO, self._files.open(path, **self._plain))

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        data = super().read(path, max_bytes)
        COUNTER.add(bytes_read=len(data))
        return data

    def stat(self, path: str) -> Stat | None:
        COUNTER.add(requests=1)
        with _as_os_error(path):
            if not self._files.exists(path):
                return None
            files = self._files.get_filesystem(path)
        try:
            with _as_os_error(path):
                found = _stat(files.metadata(path))
        except OSError:  # gone meanwhile, or a folder
            return None
        is_folder = not found.size_bytes and self.is_folder(path)
        return None if is_folder else found

    def files_from(self, prefix: str) -> Iterator[Stat]:
        COUNTER.add(requests=1)
        with _as_os_error(prefix):
            matched = self._files.match([prefix + "**"])[0].metadata_list
        # Stores mark folders by objects whose names end with a slash.
        found = [_stat(m) for m in matched if not m.path.endswith("/")]
        yield from sorted(found, key=lambda s: s.path)

    def write(self, path: str, data: bytes) -> Stat:
        return self._write(path, io.BytesIO(data))

    def upload(self, local_path: str, path: str) -> Stat:
        with open(local_path, "rb") as source:
            return self._write(path, source)

    def _write(self, path: str, source: BinaryIO) -> Stat:
        unfinished = f"{path}.part"
        self._make_parent(path)
        with _as_os_error(unfinished), self._files.create(unfinished, **self._plain) as file:
            while piece := source.read(_PIECE_BYTES):
                file.write(piece)
                COUNTER.add(bytes_written=len(piece))
        self.move(unfinished, path)
        return Stat(path, source.tell(), time.time_ns(), "")

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with _as_os_error(path):
                if self._files.exists(path):
                    self._files.delete([path])

    def copy(self, source: str, target: str) -> None:
        self._replace(self._files.copy, source, target)

    def move(self, source: str, target: str) -> None:
        self._replace(self._files.rename, source, target)

    def _replace(self, method: Any, source: str, target: str) -> None:
        self.delete([target])  # a rename onto something is refused by some
        self._make_parent(target)
        with _as_os_error(source):
            method([source], [target])

    def _make_parent(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        with _as_os_error(parent):
            if not self._files.exists(parent):
                self._files.mkdirs(parent)

    def write_if(self, path: str, data: bytes, version: str | None) -> str | None:
        """Not atomic here, and of versions only whether there is one: two callers at the same
        instant may both succeed."""
        with _as_os_error(path):
            is_there = bool(self._files.exists(path))
        return self.write(path, data).version if is_there == (version is not None) else None

    def version_and_age(self, path: str) -> tuple[str, float] | None:
        found = self.stat(path)
        return found and (found.version, max(0.0, time.time() - found.mtime_ns / 1e9))


def _stat(found: Any) -> Stat:
    mtime_ns = int((found.last_updated_in_seconds or 0) * 1e9)
    return Stat(found.path, found.size_in_bytes, mtime_ns, "")


@contextlib.contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Beam's errors, of many kinds, become `OSError`."""
    try:
        yield
    except Exception as e:
        if isinstance(e, OSError) and e.errno:
            raise
        causes = getattr(e, "exception_details", None) or {}
        cause = next((c for c in causes.values() if isinstance(c, BaseException)), e)
        text = str(cause)
        is_missing = "404" in text or "not found" in text.lower() or "No such file" in text
        raise OSError(errno.ENOENT if is_missing else errno.EIO, text, path) from e
