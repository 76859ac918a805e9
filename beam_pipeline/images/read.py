"""Reads original files ahead of the decoder.

A file that cannot be read yields an `ImageError` with a reason code instead of bytes, so that a
single image never ends the job.
"""

from __future__ import annotations

import collections
import concurrent.futures
import errno
import functools
import os
import re
import stat
from collections.abc import Generator, Sequence
from typing import Any

from beam_pipeline.images.member import WHOLE_FILE, ZIP_HEADER_BYTES, ZIP_MEMBER, read_zip_member
from beam_pipeline.options import UrlOptions
from imageshards import storage
from imageshards.errors import ImageError
from imageshards.storage import in_thread, is_local

# Number of files that are read at the same time: a local disk answers soon.
LOCAL_DEPTH = 8
# Stores answer in 20 to 100 ms, so 400 images/s per core need 8 to 40 concurrent reads.
REMOTE_DEPTH = 48
# Above this many bytes only the next `_LEAST_DEPTH` files are read ahead.
_AHEAD_BYTES = 64 << 20
_LEAST_DEPTH = 2
# Assumed size of a file of unknown size, until some files of the shard have been read.
_UNKNOWN_BYTES = 16 << 20

_URLS = UrlOptions()
_WEB = re.compile("https?://", re.IGNORECASE)

_REASONS = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EISDIR: "not_a_file",
    errno.ENXIO: "not_a_file",
    errno.ELOOP: "not_found",
}


# Yields references, in order, with their bytes or the reason why they cannot be read.
Read = Generator[tuple[Any, bytes | ImageError], None, None]


def read_images(refs: Sequence[Any], max_bytes: int, urls: UrlOptions = _URLS) -> Read:
    """Yields each reference of `refs`, in order, with its bytes or the reason why there are none.

    Files with more than `max_bytes` are not read.

    Raises:
        StorageError: A bucket cannot be used, its rights or the credentials are missing. Every
            image of the bucket would fail.
    """
    depth = LOCAL_DEPTH if all(is_local(ref.path) for ref in refs) else REMOTE_DEPTH
    reading: collections.deque[_Reading] = collections.deque()
    ahead = iter(refs)
    # Files come in the order of a hash, so the files that were read are a sample of the shard.
    # Twice their mean size leaves room for larger files.
    unknown_bytes, sampled = float(_UNKNOWN_BYTES), 1
    try:
        for ref in refs:
            ahead_bytes = sum(_bytes_of(*each, unknown_bytes) for each in reading)
            while (
                len(reading) < _LEAST_DEPTH or (len(reading) < depth and ahead_bytes < _AHEAD_BYTES)
            ) and (following := next(ahead, None)) is not None:
                future = _threads().submit(in_thread(_fetch), following, max_bytes, urls)
                reading.append((following, future))
                ahead_bytes += _bytes_of(following, future, unknown_bytes)
            data = reading.popleft()[1].result()
            sampled += 1
            unknown_bytes += (2 * _size(data) - unknown_bytes) / sampled
            yield ref, data
    finally:
        for _, future in reading:
            future.cancel()


_Reading = tuple[Any, concurrent.futures.Future[bytes | ImageError]]


def _bytes_of(
    ref: Any, future: concurrent.futures.Future[bytes | ImageError], unknown_bytes: float
) -> float:
    """Returns the bytes that a file takes, or is expected to take after it is read."""
    if future.done():
        return _size(future.result())
    return ref.size_bytes if ref.size_bytes >= 0 else unknown_bytes


def _size(data: bytes | ImageError) -> int:
    return 0 if isinstance(data, ImageError) else len(data)


def _fetch(ref: Any, max_bytes: int, urls: UrlOptions) -> bytes | ImageError:
    if ref.offset_bytes != WHOLE_FILE:
        return _read_member(ref, max_bytes)
    if is_local(ref.uri):
        return _read_local(ref.uri, max_bytes)
    if _WEB.match(ref.uri):
        from beam_pipeline.images.urls import fetch_url  # few inputs need urllib3

        return fetch_url(ref.uri, max_bytes, urls)
    if ref.size_bytes > max_bytes:
        return _too_many_bytes(ref.size_bytes, max_bytes)
    try:
        data = storage.read(ref.uri, max_bytes + 1)
    except OSError as e:
        return _read_error(e)
    return data if len(data) <= max_bytes else _too_many_bytes(len(data), max_bytes)


def _read_local(path: str, max_bytes: int) -> bytes | ImageError:
    not_a_file = ImageError("not_a_file", "a directory or special file, not a regular file")
    try:
        # Opening a device may change its state, and a pipe named x.jpg must not hang the job. The
        # file may be replaced after the first check, so the open file is checked again.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return not_a_file
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return not_a_file
            if status.st_size > max_bytes:
                return _too_many_bytes(status.st_size, max_bytes)
            return file.read(status.st_size)
    except (OSError, ValueError) as e:
        return _read_error(e)


def _read_member(ref: Any, max_bytes: int) -> bytes | ImageError:
    """Reads an image that is a range of an archive or of a spooled file."""
    if ref.size_bytes > max_bytes:
        return _too_many_bytes(ref.size_bytes, max_bytes)
    in_zip = ref.form == ZIP_MEMBER
    num_bytes = ref.size_bytes + (ZIP_HEADER_BYTES if in_zip else 0)
    try:
        # The same range of a replaced archive would be a different picture, perhaps a valid one.
        if is_local(ref.path) and not ref.spooled and os.stat(ref.path).st_mtime_ns != ref.mtime_ns:
            return ImageError("changed", "its archive was replaced after it was listed")
        data = storage.read_range(ref.path, ref.offset_bytes, ref.offset_bytes + num_bytes)
        if in_zip:
            return read_zip_member(data, ref.size_bytes, max_bytes)
    except OSError as e:
        return _read_error(e)
    except ImageError as e:
        return e
    if len(data) < num_bytes:
        return ImageError("truncated", "its archive ends before the image does")
    return data


def _too_many_bytes(size_bytes: int, max_bytes: int) -> ImageError:
    return ImageError("too_many_bytes", f"{size_bytes} bytes; the limit is {max_bytes}")


def _read_error(e: Exception) -> ImageError:
    code = _REASONS.get(getattr(e, "errno", None) or 0, "read_error")
    return ImageError(code, getattr(e, "strerror", None) or str(e))


# The threads are shared by all shards of this process: new threads would have to connect anew.
@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(REMOTE_DEPTH, "read-ahead")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a fork has no threads
