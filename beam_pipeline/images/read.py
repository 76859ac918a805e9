"""Reads original files ahead of the decoder.

A file that cannot be read yields an `ImageError` with a reason code instead of bytes, so that a
single image never ends the job. The layout of a member of a zip archive follows APPNOTE.TXT of
PKWARE, sections 4.3.7 and 4.4.
"""

from __future__ import annotations

import collections
import concurrent.futures
import errno
import functools
import os
import re
import struct
import zlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from beam_pipeline.options import UrlOptions
from imageshards import storage
from imageshards.errors import ImageError, StorageError
from imageshards.storage import in_thread, is_local

# Replaces an offset if the image is a whole file.
WHOLE_FILE = -1
# The bytes of a reference are an encoded picture, a member of a zip archive behind its local
# header, or a framed record of a dataset.
PICTURE, ZIP_MEMBER, RECORD = "", "zip", "record"

# Compression methods that the build reads.
STORED, DEFLATED = 0, 8
_HEADER = struct.Struct("<4s5H3L2H")
# This flag says that the checksum is behind the data, and that the checksum in the header is 0.
_SIZES_FOLLOW = 0x08
# A checksum behind the data may come after this mark.
_DESCRIPTOR = b"PK\x07\x08"
# A local header ends with a name and an extra field, whose lengths only the header says. One read
# fetches header, data and checksum, and allows 1 KiB for both fields, enough for common archivers.
_FIELDS_BYTES = 1024
ZIP_HEADER_BYTES = _HEADER.size + _FIELDS_BYTES + len(_DESCRIPTOR) + 4


def read_zip_member(data: bytes, num_bytes: int, max_bytes: int) -> bytes:
    """Returns the content of a member of a zip archive, of at most `max_bytes`.

    `data` begins with the member's local header, and has at least `ZIP_HEADER_BYTES` more than the
    `num_bytes` of compressed data, unless the archive ends earlier. Raises `ImageError`.
    """
    if len(data) < _HEADER.size or not data.startswith(b"PK\x03\x04"):
        raise ImageError("corrupt", "no member of the zip archive begins where one was listed")
    _, _, flags, method, _, _, checksum, _, _, name, extra = _HEADER.unpack_from(data)
    begin = _HEADER.size + name + extra
    if begin > _HEADER.size + _FIELDS_BYTES:
        text = f"the zip archive has {begin:,} bytes before the image's data; pack it again"
        raise ImageError("unsupported_format", text)
    packed = data[begin : begin + num_bytes]
    if len(packed) < num_bytes:
        raise ImageError("truncated", "the zip archive ends before the image does")
    content = packed
    if method != STORED:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            # A byte more than the limit shows that the content is too large.
            content = inflate.decompress(packed, max_bytes + 1)
        except zlib.error as e:
            raise ImageError("corrupt", f"the zip archive cannot be inflated ({e})") from e
        if len(content) > max_bytes:
            raise ImageError("too_many_bytes", f"more bytes than the limit of {max_bytes}")
        if not inflate.eof:
            text = "the compressed data in the zip archive end too early"
            raise ImageError("truncated", text)
    if flags & _SIZES_FOLLOW and not checksum:
        behind = data[begin + num_bytes :].removeprefix(_DESCRIPTOR)
        checksum = int.from_bytes(behind[:4], "little")
    if zlib.crc32(content) != checksum:
        raise ImageError("corrupt", "the checksum in the zip archive is that of other bytes")
    return content


# Number of groups that are read at the same time: a local disk answers soon.
LOCAL_DEPTH = 8
# Stores answer in 20 to 100 ms, so 400 images/s per core need 8 to 40 concurrent reads.
REMOTE_DEPTH = 48
# A thread reads the files of a group one after another. To hand a file over to a thread takes as
# much CPU time as to read it from a disk, so that small local files share a group. A file that a
# request must fetch, or whose size is unknown, is a group by itself.
GROUP_FILES = 16
_GROUP_BYTES = 1 << 20
# Above this many bytes only the next `_LEAST_DEPTH` groups are read ahead.
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
    errno.EINVAL: "not_a_file",  # a device or a pipe, which `storage` refuses to open
    errno.ENXIO: "not_a_file",
    errno.ELOOP: "not_found",
    errno.ESTALE: "changed",
}


# Yields references, in order, with their bytes or the reason why they cannot be read.
Read = Generator[tuple[Any, bytes | ImageError], None, None]


def read_images(refs: Sequence[Any], max_bytes: int, urls: UrlOptions = _URLS) -> Read:
    """Yields each reference of `refs`, in order, with its bytes or the reason why there are none.

    Files with more than `max_bytes` are not read. Raises `StorageError` if every image of a store
    would fail: its credentials are missing, or it cannot be reached.
    """
    depth = LOCAL_DEPTH if all(is_local(ref.path) for ref in refs) else REMOTE_DEPTH
    reading: collections.deque[_Reading] = collections.deque()
    ahead = _groups(refs)
    # Files come in the order of a hash, so the files that were read are a sample of the shard.
    # Twice their mean size leaves room for larger files.
    unknown_bytes, sampled = float(_UNKNOWN_BYTES), 1
    try:
        while True:
            ahead_bytes = sum(_bytes_of(*each, unknown_bytes) for each in reading)
            while (
                len(reading) < _LEAST_DEPTH or (len(reading) < depth and ahead_bytes < _AHEAD_BYTES)
            ) and (group := next(ahead, None)) is not None:
                future = _threads().submit(in_thread(_fetch_group), group, max_bytes, urls)
                reading.append((group, future))
                ahead_bytes += _bytes_of(group, future, unknown_bytes)
            if not reading:
                return
            group, future = reading.popleft()
            for ref, data in zip(group, future.result(), strict=True):
                sampled += 1
                unknown_bytes += (2 * _size(data) - unknown_bytes) / sampled
                yield ref, data
    finally:
        for _, future in reading:
            future.cancel()


_Reading = tuple[list[Any], concurrent.futures.Future[list[bytes | ImageError]]]


def _groups(refs: Sequence[Any]) -> Iterator[list[Any]]:
    group: list[Any] = []
    group_bytes = 0
    for ref in refs:
        # A file that was listed while it was being copied has a size of 0.
        is_small = ref.size_bytes > 0 and is_local(ref.path)
        size_bytes = ref.size_bytes if is_small else _GROUP_BYTES
        if group and (len(group) == GROUP_FILES or group_bytes + size_bytes > _GROUP_BYTES):
            yield group
            group, group_bytes = [], 0
        group.append(ref)
        group_bytes += size_bytes
    if group:
        yield group


def _bytes_of(
    group: list[Any], future: concurrent.futures.Future[list[bytes | ImageError]],
    unknown_bytes: float,
) -> float:  # fmt: skip
    """Returns the bytes that files take, or are expected to take after they are read."""
    if future.done():
        return sum(map(_size, future.result()))
    sizes = [ref.size_bytes if ref.size_bytes >= 0 else unknown_bytes for ref in group]
    return sum(sizes)


def _size(data: bytes | ImageError) -> int:
    return 0 if isinstance(data, ImageError) else len(data)


def _fetch_group(group: list[Any], max_bytes: int, urls: UrlOptions) -> list[bytes | ImageError]:
    return [_fetch(ref, max_bytes, urls) for ref in group]


def _fetch(ref: Any, max_bytes: int, urls: UrlOptions) -> bytes | ImageError:
    try:
        if ref.offset_bytes != WHOLE_FILE:
            return _read_member(ref, max_bytes)
        if _WEB.match(ref.uri):
            from beam_pipeline.images.urls import fetch_url  # few inputs need urllib3

            return fetch_url(ref.uri, max_bytes, urls)
        _check_size(ref.size_bytes, max_bytes)
        data = storage.read(ref.uri, max_bytes + 1)
        _check_size(len(data), max_bytes)
        return data
    except ImageError as e:
        return e
    except StorageError as e:
        if not e.of_bucket:
            raise
        return ImageError("bucket_unusable", str(e))
    except (OSError, ValueError) as e:
        return read_error(e)


def read_error(e: Exception) -> ImageError:
    """Returns the reason why an image cannot be read, for an error of its file."""
    code = _REASONS.get(getattr(e, "errno", None) or 0, "read_error")
    return ImageError(code, getattr(e, "strerror", None) or str(e))


def _read_member(ref: Any, max_bytes: int) -> bytes:
    """Reads an image that is a range of an archive or of a spooled file."""
    _check_size(ref.size_bytes, max_bytes)
    in_zip = ref.form == ZIP_MEMBER
    num_bytes = ref.size_bytes + (ZIP_HEADER_BYTES if in_zip else 0)
    if not num_bytes:  # a store would send the whole object for an empty range
        return b""
    # The same range of a replaced archive would be a different picture, perhaps a valid one. A
    # spooled file never changes.
    version = "" if ref.spooled else ref.version
    end = ref.offset_bytes + num_bytes
    data = storage.read_range(ref.path, ref.offset_bytes, end, version)
    if in_zip:
        return read_zip_member(data, ref.size_bytes, max_bytes)
    if len(data) < num_bytes:
        raise ImageError("truncated", "its archive ends before the image does")
    return data


def _check_size(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise ImageError("too_many_bytes", f"{size_bytes} bytes; the limit is {max_bytes}")


# The threads are shared by all shards of this process: new threads would have to connect anew.
@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(REMOTE_DEPTH, "read-ahead")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a fork has no threads
