"""TFRecord files: framing, checksums, every record with its place, every damage with a reason.

Framing (https://www.tensorflow.org/tutorials/load_data/tfrecord): length (uint64, little
endian), masked CRC32C of the length, payload, masked CRC32C of the payload. TensorFlow, which
takes seconds to import, is not needed to read or write it.
"""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple

import google_crc32c

from imageshards import storage

# `x.tfrecord`, `x.tfrec.gz`, `x.tfrecord-00000-of-00008`, `train-00000-of-01024`.
FILE_NAME = re.compile(
    r"(\.(tfrec|tfrecord|tfrecords|record)(-\d+-of-\d+)?|^[^.]+-\d+-of-\d+)(\.gz)?$", re.IGNORECASE
)
HEADER_BYTES = 12
FOOTER_BYTES = 4
# A protobuf message ends at 2 GiB, so no length above it was written on purpose.
MAX_RECORD_BYTES = 2**31 - 1

# Asked for at once: a length may lie where the size of the file is not known.
_MAX_READ_BYTES = 16 << 20
_NOTHING = "the file ends before it"
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<QI")


class Record(NamedTuple):
    """One record as it stands in a file.

    Attributes:
        number: Of the record within the file, from 0.
        offset_bytes: Where its header starts.
        payload: The record itself.
    """

    number: int
    offset_bytes: int
    payload: bytes

    @property
    def next_offset_bytes(self) -> int:
        """Where the next record starts."""
        return self.offset_bytes + HEADER_BYTES + len(self.payload) + FOOTER_BYTES


class RecordError(Exception):
    """A record that is not what was written.

    Attributes:
        path: The file.
        number: Of the record within the file, from 0.
        offset_bytes: Where its header starts.
        reason: What was found, without a full stop.
        next_offset_bytes: Where the next record starts; None where nobody can tell: then the
            rest of the file is lost.
        payload: The bytes whose checksum is wrong; None where there are none.
    """

    def __init__(
        self,
        path: str,
        number: int,
        offset_bytes: int,
        reason: str,
        next_offset_bytes: int | None = None,
        payload: bytes | None = None,
    ):
        super().__init__(path, number, offset_bytes, reason, next_offset_bytes, payload)
        self.path = path
        self.number = number
        self.offset_bytes = offset_bytes
        self.reason = reason
        self.next_offset_bytes = next_offset_bytes
        self.payload = payload

    def __str__(self) -> str:
        return f"{self.path}, record {self.number} at byte {self.offset_bytes}: {self.reason}."


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Yields the records of a file, in order.

    Args:
        path: A local path, or one of a store (`gs://`, `s3://`, …).

    Raises:
        RecordError: At the first wrong checksum, absurd length or truncated tail.
        OSError: The file cannot be opened or read.
    """
    for record in scan_file(storage.place("path", path)):
        if isinstance(record, RecordError):
            raise record
        yield record


def scan_file(path: str, num_bytes: int | None = None) -> Iterator[Record | RecordError]:
    """Yields the records of a file and, in their place, what is wrong with them.

    Args:
        path: A local path, or one of a store (`gs://`, `s3://`, …).
        num_bytes: The size that the file should have: bytes behind these are not read.

    Raises:
        OSError: The file cannot be opened or read.
    """
    with storage.open_read(path) as stream:
        found = os.fstat(stream.fileno()).st_size if storage.is_local(path) else None
        sizes = [size for size in (found, num_bytes) if size is not None]
        yield from scan_records(stream, path, min(sizes, default=None))


def scan_records(
    stream: IO[bytes], path: str, size_bytes: int | None = None
) -> Iterator[Record | RecordError]:
    """Yields the records of a stream and, in their place, what is wrong with them.

    After a wrong payload checksum the next record is still known and comes next; after a
    wrong header or a truncated tail nothing does.

    Args:
        stream: The bytes as stored, buffered.
        path: Name of the file in errors.
        size_bytes: Size of the file if known; a record that goes past it is not read at all.
    """
    number, offset = 0, 0
    while offset != size_bytes and (header := _read(stream, HEADER_BYTES)):
        problem, length = _check_header(header, offset, size_bytes)
        if problem:
            yield RecordError(path, number, offset, problem)
            return
        body = _read(stream, length + FOOTER_BYTES)
        if len(body) < length + FOOTER_BYTES:
            yield RecordError(path, number, offset, _truncated(length, len(body)))
            return
        payload = body[:length]
        after = offset + HEADER_BYTES + length + FOOTER_BYTES
        if _masked_crc32c(payload) == _CRC.unpack_from(body, length)[0]:
            yield Record(number, offset, payload)
        else:
            problem = "the payload's checksum is wrong"
            yield RecordError(path, number, offset, problem, after, payload)
        number += 1
        offset = after


def read_record(path: str, number: int, begin: int, end: int) -> Record:
    """One record of a file, by one read of its bytes alone.

    Args:
        path: A local path, or one of a store.
        number: Of the record within the file.
        begin, end: Where its header starts, and where the next one would.

    Raises:
        RecordError: It is damaged.
        OSError: The file cannot be read.
    """
    data = storage.read_range(path, begin, end)
    found = next(scan_records(io.BytesIO(data), path), None)
    if found is None or isinstance(found, RecordError):
        raise RecordError(path, number, begin, found.reason if found else _NOTHING)
    return found._replace(number=number, offset_bytes=begin)


def split_records(data: bytes) -> list[bytes] | None:
    """The payloads of whole records, one behind the other; None where anything is wrong.

    `scan_records` in a third of the time: the trainer reads all of its records by it.
    """
    payloads, at, end = [], 0, len(data)
    view = memoryview(data)
    while at < end:
        if end - at < HEADER_BYTES + FOOTER_BYTES or not is_header(data[at : at + HEADER_BYTES]):
            return None
        start = at + HEADER_BYTES
        at = start + _LENGTH.unpack_from(data, at)[0]
        payload = bytes(view[start:at])
        at += FOOTER_BYTES
        if at > end or _masked_crc32c(payload) != _CRC.unpack_from(data, at - FOOTER_BYTES)[0]:
            return None
        payloads.append(payload)
    return payloads


def write_records(path: str | os.PathLike[str], payloads: Iterable[bytes]) -> int:
    """Writes a local file of records, which appears whole or not at all.

    Args:
        path: Local.
        payloads: The records.

    Returns:
        The size of the file in bytes.
    """
    with storage.open_write(storage.place("path", path)) as stored:
        stored.writelines(map(frame_record, payloads))
        return stored.tell()


def frame_record(payload: bytes) -> bytes:
    """One record with its header and footer."""
    length = _LENGTH.pack(len(payload))
    header = length + _CRC.pack(_masked_crc32c(length))
    return header + payload + _CRC.pack(_masked_crc32c(payload))


def is_header(head: bytes) -> bool:
    """Whether these 12 bytes are the header of a record, by its checksum."""
    return len(head) == HEADER_BYTES and _masked_crc32c(head[:8]) == _HEADER.unpack(head)[1]


def _read(stream: IO[bytes], count: int) -> bytes:
    """`count` bytes, fewer only at the end: a remote stream may give less per call."""
    data = stream.read(min(count, _MAX_READ_BYTES))
    while len(data) < count and (more := stream.read(min(count - len(data), _MAX_READ_BYTES))):
        data += more
    return data


def _check_header(header: bytes, offset: int, size_bytes: int | None) -> tuple[str, int]:
    """What is wrong with a header, empty if nothing is, and the length of its payload."""
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
