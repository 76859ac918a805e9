"""Files: local ones by Python, buckets by `trainer.dataset.stores`, others by TensorFlow.

TensorFlow is loaded when it is needed.
"""

from __future__ import annotations

import errno
import glob
import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple, cast

from trainer.config import is_remote
from trainer.dataset import stores
from trainer.imports import quiet_import

_loading = threading.Lock()


class FileStat(NamedTuple):
    """What a filesystem says of a file.

    Attributes:
        num_bytes: Its size.
        modified_nsec: When it was last changed, in nanoseconds since 1970.
    """

    num_bytes: int
    modified_nsec: int


class _TensorFlowFile(io.RawIOBase):
    """A file of a filesystem TensorFlow knows, with OSError instead of TensorFlow's errors."""

    def __init__(self, path: str):
        tf = _tensorflow()
        super().__init__()
        self._path = path
        self._file = tf.io.gfile.GFile(path, "rb")
        with _as_os_error(path):
            self._file.size()

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes, all that is left for -1."""
        with _as_os_error(self._path):
            return bytes(self._file.read(-1 if size is None else size))

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Goes to `offset`."""
        with _as_os_error(self._path):
            self._file.seek(offset, whence)
            return int(self._file.tell())

    def close(self) -> None:
        """Closes the file; may be called twice."""
        if not self.closed:
            self._file.close()
        super().close()


def check(path: str, flag: str) -> None:
    """Finds out at once whether the bucket of a remote path can be used, before long waits.

    Raises:
        UserError: It cannot; the sentence names `flag`.
    """
    if stores.is_store(path):
        stores.check_bucket(path, flag)
    elif path.startswith("gs://"):
        from trainer.dataset import gs_check

        gs_check.check(path, flag)


def open_binary(path: str) -> IO[bytes]:
    """A file to be read, which can seek.

    Raises:
        OSError: It cannot be opened; reading raises it as well.
    """
    if stores.is_store(path):
        return cast(IO[bytes], stores.StoreFile(path))
    return cast(IO[bytes], _TensorFlowFile(path)) if is_remote(path) else open(path, "rb")


def read(path: str) -> bytes:
    """A whole file.

    Raises:
        OSError: It is missing or cannot be read.
    """
    if stores.is_store(path):
        return stores.read(path)
    with open_binary(path) as file:
        return file.read()


def stat(path: str) -> FileStat:
    """Size and time of a file.

    Raises:
        OSError: It is missing or cannot be looked at.
    """
    if not is_remote(path):
        found = os.stat(path)
        return FileStat(found.st_size, found.st_mtime_ns)
    if stores.is_store(path):
        return FileStat(*stores.look(path)[1:])
    tf = _tensorflow()
    with _as_os_error(path):
        found = tf.io.gfile.stat(path)
    return FileStat(int(found.length), int(found.mtime_nsec))


def is_folder(path: str) -> bool:
    """Whether `path` is a folder."""
    if not is_remote(path):
        return os.path.isdir(path)
    if stores.is_store(path):
        return stores.is_folder(path)
    tf = _tensorflow()
    with _as_os_error(path):
        return bool(tf.io.gfile.isdir(path))


def list_folder(path: str) -> tuple[list[str], list[str]]:
    """Names of the folders and of the files in a folder, both sorted.

    Raises:
        OSError: It cannot be listed.
    """
    if stores.is_store(path):
        return stores.list_folder(path)
    if not is_remote(path):
        with os.scandir(path) as found:
            entries = sorted((entry.name, entry.is_dir()) for entry in found)
    else:
        tf = _tensorflow()
        with _as_os_error(path):
            # A store names folders with a slash at the end.
            names = sorted(str(name).rstrip("/") for name in tf.io.gfile.listdir(path))
            entries = [(name, tf.io.gfile.isdir(os.path.join(path, name))) for name in names]
    folders = [name for name, folder in entries if folder]
    return folders, [name for name, folder in entries if not folder]


def files_below(path: str) -> list[str]:
    """Every file below a folder, sorted.

    Raises:
        OSError: It cannot be listed.
    """
    if stores.is_store(path):
        return stores.files_below(path)
    if not is_remote(path):
        walk = os.walk(path)
        return sorted(os.path.join(folder, name) for folder, _, names in walk for name in names)
    folders, names = list_folder(path)
    found = [os.path.join(path, name) for name in names]
    for name in folders:
        found += files_below(os.path.join(path, name))
    return sorted(found)


def matches(pattern: str) -> list[str]:
    """The files, but no folders, a glob finds, sorted.

    Raises:
        OSError: The filesystem cannot be listed.
    """
    if stores.is_store(pattern):
        return stores.matches(pattern)
    if not is_remote(pattern):
        return sorted(path for path in glob.glob(pattern) if os.path.isfile(path))
    tf = _tensorflow()
    with _as_os_error(pattern):
        found = sorted(str(path) for path in tf.io.gfile.glob(pattern))
        return [path for path in found if not tf.io.gfile.isdir(path)]


@contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    tf = _tensorflow()
    try:
        yield
    except tf.errors.NotFoundError as e:
        raise FileNotFoundError(errno.ENOENT, "there is no such file", path) from e
    except (tf.errors.PermissionDeniedError, tf.errors.UnauthenticatedError) as e:
        reason = _first_line(e)
        if path.startswith("gs://"):
            from trainer.dataset import gs_check

            reason = gs_check.refusal()
        raise PermissionError(errno.EACCES, reason, path) from e
    except tf.errors.OpError as e:
        raise OSError(errno.EIO, _first_line(e), path) from e


def _tensorflow() -> Any:
    """TensorFlow, loaded once and without its start-up log, whichever thread comes first."""
    with _loading, quiet_import():
        import tensorflow

        return tensorflow


def _first_line(error: Any) -> str:
    """TensorFlow quotes a store's whole answer, and adds where it happened."""
    lines: list[str] = str(error.message).strip().splitlines()
    return lines[0].rstrip(". ") if lines else type(error).__name__
