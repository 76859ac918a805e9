"""Files wherever they lie: local ones by Python, all others by TensorFlow, loaded when needed."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from trainer.config import is_remote


class FileStat(NamedTuple):
    """What a filesystem says of a file.

    Attributes:
        num_bytes: Its size.
        modified_nsec: When it was last changed, in nanoseconds since 1970.
    """

    num_bytes: int
    modified_nsec: int


class RemoteFile(io.RawIOBase):
    """A file of a filesystem TensorFlow knows, with OSError instead of TensorFlow's errors."""

    def __init__(self, path: str):
        import tensorflow as tf

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


def stat(path: str) -> FileStat:
    """Size and time of a file.

    Raises:
        OSError: It is missing or cannot be looked at.
    """
    if not is_remote(path):
        found = os.stat(path)
        return FileStat(found.st_size, found.st_mtime_ns)
    import tensorflow as tf

    with _as_os_error(path):
        found = tf.io.gfile.stat(path)
    return FileStat(int(found.length), int(found.mtime_nsec))


def is_folder(path: str) -> bool:
    """Whether `path` is a folder."""
    if not is_remote(path):
        return os.path.isdir(path)
    import tensorflow as tf

    with _as_os_error(path):
        return bool(tf.io.gfile.isdir(path))


def list_folder(path: str) -> tuple[list[str], list[str]]:
    """Names of the folders and of the files in a folder, both sorted.

    Raises:
        OSError: It cannot be listed.
    """
    if not is_remote(path):
        with os.scandir(path) as found:
            entries = sorted((entry.name, entry.is_dir()) for entry in found)
    else:
        import tensorflow as tf

        with _as_os_error(path):
            # A store names folders with a slash at the end.
            names = sorted(str(name).rstrip("/") for name in tf.io.gfile.listdir(path))
            entries = [(name, tf.io.gfile.isdir(os.path.join(path, name))) for name in names]
    folders = [name for name, folder in entries if folder]
    return folders, [name for name, folder in entries if not folder]


def matches(pattern: str) -> list[str]:
    """The files, but no folders, a glob finds, sorted.

    Raises:
        OSError: The filesystem cannot be listed.
    """
    if not is_remote(pattern):
        return sorted(path for path in glob.glob(pattern) if os.path.isfile(path))
    import tensorflow as tf

    with _as_os_error(pattern):
        found = sorted(str(path) for path in tf.io.gfile.glob(pattern))
        return [path for path in found if not tf.io.gfile.isdir(path)]


@contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    import tensorflow as tf

    try:
        yield
    except tf.errors.NotFoundError as e:
        raise FileNotFoundError(2, "there is no such file", path) from e
    except tf.errors.OpError as e:
        raise OSError(5, e.message, path) from e
