"""TFRecord files read with offsets, and with every checksum looked at.

Framing (https://www.tensorflow.org/tutorials/load_data/tfrecord): length (uint64, little
endian), masked CRC32C of the length, payload, masked CRC32C of the payload.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from collections.abc import Iterator
from typing import IO, NamedTuple, cast

import google_crc32c

from imageshards import storage

HEADER_BYTES = 12
FOOTER_BYTES = 4
# A protobuf message ends at 2 GiB, so no length above it was written on purpose.
MAX_RECORD_BYTES = 2**31 - 1

_BUFFER_BYTES = 1 << 20
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


class Record(NamedTuple):
    """One record as it stands in a file.

    Attributes:
        number: Of the record within the file, from 0.
        offset_bytes: Where its header starts; within the decompressed bytes for gzip.
        payload: The record itself.
    """

    number: int
    offset_bytes: int
    payload: bytes


class RecordError(Exception):
    """A record that is not what was written.

    Attributes:
        path: The file.
        number: Of the record within the file, from 0.
        offset_bytes: Where its header starts; within the decompressed bytes for gzip.
        what: What was found, without a full stop.
    """

    def __init__(self, path: str, number: int, offset_bytes: int, what: str):
        super().__init__(path, number, offset_bytes, what)
        self.path = path
        self.number = number
        self.offset_bytes = offset_bytes
        self.what = what

    def __str__(self) -> str:
        return f"{self.path}, record {self.number} at byte {self.offset_bytes}: {self.what}."


def read_records(path: str, compression: str = "none") -> Iterator[Record]:
    """Yields the records of a file, in order.

    Args:
        path: A local path, or one of a store (`gs://`, `s3://`, …).
        compression: `none` or `gzip`.

    Raises:
        RecordError: At the first wrong checksum, absurd length or truncated tail.
        OSError: The file cannot be opened or read.
    """
    with _open(path) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size if storage.is_local(path) else None
        for record in scan_records(stream, path, compression, size_bytes):
            if isinstance(record, RecordError):
                raise record
            yield record


def scan_records(
    stream: IO[bytes], path: str, compression: str = "none", size_bytes: int | None = None
) -> Iterator[Record | RecordError]:
    """Yields records and, in their place, what is wrong with them.

    After a wrong payload checksum the next record is still known and comes next; after a
    wrong header or a truncated tail nothing does.

    Args:
        stream: The bytes as stored, buffered.
        path: Name of the file in errors.
        compression: `none` or `gzip`.
        size_bytes: Size of the stored file if known; an uncompressed record that goes past
            it is not read at all.
    """
    plain = stream
    if compression == "gzip":
        plain = cast(IO[bytes], gzip.GzipFile(fileobj=stream, mode="rb"))
        size_bytes = None
    number, offset = 0, 0
    while True:
        try:
            header = _read(plain, HEADER_BYTES)
            if not header:
                return
            problem, length = _check_header(header, offset, size_bytes)
            if problem:
                yield RecordError(path, number, offset, problem)
                return
            body = _read(plain, length + FOOTER_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error) as e:
            yield RecordError(path, number, offset, f"the gzip stream is damaged ({e})".rstrip("."))
            return
        if len(body) < length + FOOTER_BYTES:
            yield RecordError(path, number, offset, _truncated(length, len(body)))
            return
        payload = body[:length]
        if _masked_crc32c(payload) == _FOOTER.unpack_from(body, length)[0]:
            yield Record(number, offset, payload)
        else:
            yield RecordError(path, number, offset, "the payload's CRC is wrong")
        number += 1
        offset += HEADER_BYTES + length + FOOTER_BYTES


def _open(path: str) -> IO[bytes]:
    if storage.is_local(path):
        return open(path, "rb", buffering=_BUFFER_BYTES)
    return storage.open_read(path)


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
        return f"the CRC of the length is wrong (length read as {length} bytes)", 0
    if length > MAX_RECORD_BYTES:
        return f"the length is absurd ({length} bytes)", 0
    if size_bytes is not None and offset + HEADER_BYTES + length + FOOTER_BYTES > size_bytes:
        return _truncated(length, size_bytes - offset - HEADER_BYTES), 0
    return "", length


def _truncated(length: int, left: int) -> str:
    return f"the file ends inside the record ({left} of {length + FOOTER_BYTES} bytes)"


def _masked_crc32c(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
