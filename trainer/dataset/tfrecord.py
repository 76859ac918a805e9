"""TFRecord files without TensorFlow: every record with its place, every damage with a reason.

Framing (https://www.tensorflow.org/tutorials/load_data/tfrecord): length (uint64, little
endian), masked CRC32C of the length, payload, masked CRC32C of the payload.
"""

from __future__ import annotations

import gzip
import os
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple, cast

import google_crc32c

from trainer.config import is_remote

HEADER_BYTES = 12
FOOTER_BYTES = 4
# A protobuf message ends at 2 GiB, so no length above it was written on purpose.
MAX_RECORD_BYTES = 2**31 - 1

_BUFFER_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


class Frame(NamedTuple):
    """One record as it stands in a file.

    Attributes:
        number: Of the record within the file, from 0.
        offset_bytes: Where its header starts; within the decompressed bytes for gzip.
        payload: The record itself.
    """

    number: int
    offset_bytes: int
    payload: bytes


class BrokenFrame(Exception):
    """A record that is not what was written.

    Attributes:
        number: Of the record within the file, from 0.
        offset_bytes: Where its header starts; within the decompressed bytes for gzip.
        reason: What was found, without a full stop.
        next_offset_bytes: Where the next record starts, None where nobody can tell: then
            the rest of the file is lost.
        payload: The bytes whose checksum is wrong, None where there are none.
    """

    def __init__(
        self,
        number: int,
        offset_bytes: int,
        reason: str,
        next_offset_bytes: int | None = None,
        payload: bytes | None = None,
    ):
        super().__init__(number, offset_bytes, reason, next_offset_bytes)
        self.number = number
        self.offset_bytes = offset_bytes
        self.reason = reason
        self.next_offset_bytes = next_offset_bytes
        self.payload = payload

    def __str__(self) -> str:
        return f"record {self.number} at byte {self.offset_bytes}: {self.reason}"


def scan(path: str, compression: str = "none") -> Iterator[Frame]:
    """Yields the records of a file, in order.

    Args:
        path: Local, of a bucket, or of a filesystem TensorFlow knows.
        compression: `none` or `gzip`.

    Raises:
        BrokenFrame: At the first wrong checksum, absurd length or truncated tail.
        OSError: The file cannot be opened or read.
    """
    for frame in scan_all(path, compression):
        if isinstance(frame, BrokenFrame):
            raise frame
        yield frame


def scan_all(path: str, compression: str = "none") -> Iterator[Frame | BrokenFrame]:
    """Yields records and, in their place, what is wrong with them.

    After a wrong payload checksum the next record is still known and comes next; after a
    wrong header or a truncated tail nothing does.

    Args:
        path: Local, of a bucket, or of a filesystem TensorFlow knows.
        compression: `none` or `gzip`.

    Raises:
        OSError: The file cannot be opened or read.
    """
    with open_binary(path) as stored:
        plain, size_bytes = stored, None
        if compression == "gzip":
            plain = cast(IO[bytes], gzip.GzipFile(fileobj=stored, mode="rb"))
        elif not is_remote(path):
            size_bytes = os.fstat(stored.fileno()).st_size
        number, offset = 0, 0
        while True:
            frame = _next_frame(plain, number, offset, size_bytes)
            if frame is None:
                return
            yield frame
            if isinstance(frame, BrokenFrame):
                if frame.next_offset_bytes is None:
                    return
                offset = frame.next_offset_bytes
            else:
                offset += HEADER_BYTES + len(frame.payload) + FOOTER_BYTES
            number += 1


def write(path: str, payloads: Iterable[bytes], compression: str = "none") -> int:
    """Writes a local file of records, which appears whole or not at all.

    Args:
        path: Local.
        payloads: The records.
        compression: `none` or `gzip`.

    Returns:
        The size of the file in bytes.
    """
    descriptor, unfinished = tempfile.mkstemp(dir=os.path.dirname(path) or ".", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb", _BUFFER_BYTES) as stored:
            if compression == "gzip":
                # Neither a name nor a time: equal records make equal files.
                with gzip.GzipFile("", "wb", fileobj=stored, mtime=0) as packed:
                    packed.writelines(map(framed, payloads))
            else:
                stored.writelines(map(framed, payloads))
        size_bytes = os.stat(unfinished).st_size
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise
    return size_bytes


def framed(payload: bytes) -> bytes:
    """One record with its header and footer."""
    length = struct.pack("<Q", len(payload))
    header = length + _FOOTER.pack(_masked_crc32c(length))
    return header + payload + _FOOTER.pack(_masked_crc32c(payload))


def compression_of(head: bytes) -> str | None:
    """`none` or `gzip` from the first 12 bytes of a file; None if it holds no TFRecords.

    The checksum comes first: the length of a record may look like gzip's magic number.
    """
    if not head:
        return "none"
    if len(head) >= HEADER_BYTES:
        if _masked_crc32c(head[:8]) == _HEADER.unpack_from(head)[1]:
            return "none"
    return "gzip" if head.startswith(_GZIP_MAGIC) else None


def open_binary(path: str) -> IO[bytes]:
    """A file to be read, whatever filesystem it lies on.

    Raises:
        OSError: It cannot be opened; reading raises it as well.
    """
    if not is_remote(path):
        return open(path, "rb", buffering=_BUFFER_BYTES)
    from trainer.dataset import remote

    return remote.open_binary(path)


def _next_frame(
    plain: IO[bytes], number: int, offset: int, size_bytes: int | None
) -> Frame | BrokenFrame | None:
    try:
        header = _read(plain, HEADER_BYTES)
        if not header:
            return None
        problem, length = _check_header(header, offset, size_bytes)
        if problem:
            return BrokenFrame(number, offset, problem)
        body = _read(plain, length + FOOTER_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        return BrokenFrame(number, offset, f"the gzip stream is damaged from here on ({e})")
    if len(body) < length + FOOTER_BYTES:
        return BrokenFrame(number, offset, _truncated(length, len(body)))
    payload = body[:length]
    if _masked_crc32c(payload) == _FOOTER.unpack_from(body, length)[0]:
        return Frame(number, offset, payload)
    after = offset + HEADER_BYTES + length + FOOTER_BYTES
    return BrokenFrame(number, offset, "the payload's checksum is wrong", after, payload)


def _read(stream: IO[bytes], count: int) -> bytes:
    """`count` bytes, fewer only at the end: a remote stream may give less per call."""
    data = stream.read(count)
    if len(data) == count or not data:
        return data
    pieces = [data]
    missing = count - len(data)
    while missing and (data := stream.read(missing)):
        pieces.append(data)
        missing -= len(data)
    return b"".join(pieces)


def _check_header(header: bytes, offset: int, size_bytes: int | None) -> tuple[str, int]:
    if len(header) < HEADER_BYTES:
        return f"the file ends inside the header ({len(header)} of {HEADER_BYTES} bytes)", 0
    length, crc = _HEADER.unpack(header)
    if _masked_crc32c(header[:8]) != crc:
        return "the checksum of its length is wrong, so nothing behind it can be read", 0
    if length > MAX_RECORD_BYTES:
        return f"its length is absurd ({length} bytes)", 0
    if size_bytes is not None and offset + HEADER_BYTES + length + FOOTER_BYTES > size_bytes:
        return _truncated(length, size_bytes - offset - HEADER_BYTES), 0
    return "", length


def _truncated(length: int, left: int) -> str:
    return f"the file ends inside the record ({left} of {length + FOOTER_BYTES} bytes)"


def _masked_crc32c(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
