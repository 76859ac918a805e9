"""What TensorFlow reads itself: filesystems that only it knows, and `gs://` shards in place.

`imageshards.storage` asks for the first by name when a path needs them. TensorFlow is loaded then.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from imageshards import storage
from imageshards.storage.base import Entry, FolderBackend, Stat
from trainer.imports import quiet_import

# Names an emulator of gs:// to Google's libraries; TensorFlow's own client does not know it.
_EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"
# Read by TensorFlow's client: what it asks for at a time, and whether it asks for credentials
# of the machine, ten times and with growing waits.
_READ_AHEAD_VARIABLE, _READ_AHEAD_MIB = "GCS_READ_CACHE_BLOCK_SIZE_MB", "8"
_NO_METADATA_VARIABLE = "NO_GCE_CHECK"

_loading = threading.Lock()


def needs_copy(path: str) -> bool:
    """Whether TensorFlow cannot read a file where it is: on `s3://`, or in an emulator."""
    if path.startswith("gs://"):
        return bool(os.environ.get(_EMULATOR_VARIABLE))
    return path.startswith("s3://")


def check_readable(path: str, flag: str) -> None:
    """Finds out at once whether the bucket of a path can be used, before TensorFlow waits for it.

    TensorFlow's own client of `gs://` is set up on the way.

    Raises:
        UserError: It cannot; the sentence names `flag`.
    """
    storage.check_bucket(path, flag, must_list=False)
    if path.startswith("gs://") and not needs_copy(path):
        from imageshards.storage.gcs import GcsBackend

        # TensorFlow reads 64 MiB of every open file ahead, and the reader has up to 16 open.
        os.environ.setdefault(_READ_AHEAD_VARIABLE, _READ_AHEAD_MIB)
        if cast(GcsBackend, storage.backend(path)).is_anonymous:
            os.environ[_NO_METADATA_VARIABLE] = "true"


def new_backend(scheme: str) -> TensorFlowBackend | None:
    """The backend for a scheme; None if TensorFlow does not know it."""
    with _as_os_error(scheme) as tf:
        return TensorFlowBackend() if scheme in tf.io.gfile.get_registered_schemes() else None


class TensorFlowBackend(FolderBackend):
    """`tf.io.gfile`, for reading."""

    def open_read(self, path: str) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_TensorFlowFile(path), 1 << 20))

    def stat(self, path: str) -> Stat | None:
        try:
            with _as_os_error(path) as tf:
                found = tf.io.gfile.stat(path)
                # Those of some filesystems say nothing about being a folder.
                if tf.io.gfile.isdir(path):
                    return None
        except FileNotFoundError:
            return None
        return Stat(path, int(found.length), int(found.mtime_nsec), "")

    def is_folder(self, path: str) -> bool:
        with _as_os_error(path) as tf:
            return bool(tf.io.gfile.isdir(path))

    def list_folder(self, folder: str) -> list[Entry]:
        try:
            with _as_os_error(folder) as tf:
                # A store names folders with a slash at the end.
                names = sorted(str(name).rstrip("/") for name in tf.io.gfile.listdir(folder))
        except FileNotFoundError:
            return []
        return [self._entry(name, storage.join(folder, name)) for name in names]

    def _entry(self, name: str, path: str) -> Entry:
        found = self.stat(path)
        if found is None:
            return Entry(name, path, True, 0, 0)
        return Entry(name, path, False, found.size_bytes, found.mtime_ns)


class _TensorFlowFile(io.RawIOBase):
    """A file of a filesystem TensorFlow knows, with OSError instead of TensorFlow's errors."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path
        with _as_os_error(path) as tf:
            self._file = tf.io.gfile.GFile(path, "rb")
            self._file.size()  # opens it

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _as_os_error(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with _as_os_error(self._path):
            self._file.seek(offset, whence)
            return int(self._file.tell())

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextlib.contextmanager
def _as_os_error(path: str) -> Iterator[Any]:
    """Gives TensorFlow, loaded once and without its start-up log; its errors become `OSError`."""
    with _loading, quiet_import():
        import tensorflow as tf
    try:
        yield tf
    except tf.errors.NotFoundError as e:
        raise FileNotFoundError(errno.ENOENT, "no such file", path) from e
    except (tf.errors.PermissionDeniedError, tf.errors.UnauthenticatedError) as e:
        raise PermissionError(errno.EACCES, _first_line(e), path) from e
    except tf.errors.OpError as e:
        raise OSError(errno.EIO, _first_line(e), path) from e


def _first_line(error: Any) -> str:
    """TensorFlow quotes a store's whole answer, and adds where it happened."""
    lines: list[str] = str(error.message).strip().splitlines()
    return lines[0].rstrip(". ") if lines else type(error).__name__
