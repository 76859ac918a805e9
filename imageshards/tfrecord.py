"""Reads and writes TFRecord files without TensorFlow, and names each damage with its place.

A record is its length (uint64, little endian), the masked CRC32C of the length, the payload and the
masked CRC32C of the payload (https://www.tensorflow.org/tutorials/load_data/tfrecord).
"""

from __future__ import annotations

import dataclasses
import io
import os
import re
import struct
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple

import google_crc32c

from imageshards import storage
from imageshards.bounds import MAX_RECORD_BYTES

# `x.tfrecord`, `x.tfrec.gz`, `x.tfrecord-00000-of-00008`, `train-00000-of-01024`.
FILE_NAME = re.compile(
    r"(\.(tfrec|tfrecord|tfrecords|record)(-\d+-of-\d+)?|^[^.]+-\d+-of-\d+)(\.gz)?$", re.IGNORECASE
)
HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES  # all of an empty record
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<QI")


class Record(NamedTuple):
    """A record and its place in a file.

    Attributes:
        number: The number of the record in the file, from 0.
        offset_bytes: The offset of the record's header.
        payload: The bytes of the record, without framing.
    """

    number: int
    offset_bytes: int
    payload: bytes

    @property
    def next_offset_bytes(self) -> int:
        """The offset of the next record's header."""
        return self.offset_bytes + HEADER_BYTES + len(self.payload) + FOOTER_BYTES


@dataclasses.dataclass(eq=False, repr=False)
class RecordError(Exception):
    """A damaged record.

    Attributes:
        path: The file.
        number: The number of the record in the file, from 0.
        offset_bytes: The offset of the record's header.
        reason: The damage, without a full stop.
        next_offset_bytes: The offset of the next record; None if unknown: the rest is lost.
        payload: The bytes with the wrong checksum; None if they could not be read.
    """

    path: str
    number: int
    offset_bytes: int
    reason: str
    next_offset_bytes: int | None = None
    payload: bytes | None = None

    def __post_init__(self) -> None:
        # pickle makes an exception again from its `args`.
        super().__init__(*(getattr(self, field.name) for field in dataclasses.fields(self)))

    def __str__(self) -> str:
        return f"{self.path}, record {self.number} at byte {self.offset_bytes}: {self.reason}."


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Yields the records of a file, in order.

    Args:
        path: A local path or a URI of a store (`gs://`, `s3://`, …).

    Raises:
        RecordError: A record is damaged or truncated.
        OSError: The file cannot be opened or read.
    """
    for record in scan_file(storage.place("path", path)):
        if isinstance(record, RecordError):
            raise record
        yield record


def scan_file(path: str, num_bytes: int | None = None) -> Iterator[Record | RecordError]:
    """Yields the records in the first `num_bytes` of a file, with a `RecordError` for each damage.

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
    """Yields the records of a stream, with a `RecordError` in place of each damaged record.

    A damaged header or a truncated record is the last item, since the next record cannot be found.
    `path` names the file in errors. A record that would exceed `size_bytes` is not read.
    """
    number, offset = 0, 0
    while offset != size_bytes and (header := storage.read_up_to(stream, HEADER_BYTES)):
        problem, body, length = "", b"", 0
        if len(header) < HEADER_BYTES:
            problem = f"the file ends inside the header ({len(header)} of {HEADER_BYTES} bytes)"
        elif not is_header(header):
            problem = "the checksum of its length is wrong, so nothing behind it can be read"
        elif (length := _LENGTH.unpack_from(header)[0]) > MAX_RECORD_BYTES:
            problem = f"its length is absurd ({length} bytes)"
        else:
            needed = length + FOOTER_BYTES
            left = needed if size_bytes is None else size_bytes - offset - HEADER_BYTES
            if left >= needed:
                body = storage.read_up_to(stream, needed)
                left = len(body)
            if left < needed:
                problem = f"the file ends inside the record ({left} of {needed} bytes)"
        if problem:
            yield RecordError(path, number, offset, problem)
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
    """Returns the record between two offsets of a file, and reads only these bytes.

    Raises:
        RecordError: The record is damaged.
        OSError: The file cannot be read.
    """
    return record_in(storage.read_range(path, begin, end), path, number, begin, end - begin)


def record_in(data: bytes, path: str, number: int, begin: int, num_bytes: int) -> Record:
    """Returns the record that takes `num_bytes` of a file from `begin` on; `data` are these bytes.

    Raises:
        RecordError: The record is damaged, empty, or of another length than the index says.
    """
    reason = "the file is missing, or ends before it"
    if (found := next(scan_records(io.BytesIO(data), path), None)) is not None:
        if isinstance(found, RecordError):
            reason = found.reason
        elif not found.payload:
            reason = "it is empty"
        elif found.next_offset_bytes == num_bytes:
            return found._replace(number=number, offset_bytes=begin)
        else:
            reason = f"it has another length than the {num_bytes} bytes that the index says"
    raise RecordError(path, number, begin, reason)


def split_records(data: bytes) -> list[memoryview] | None:
    """Returns the payloads of consecutive records, not copied; None if any record is damaged."""
    # The trainer reads all its records here, in a third of the time that `scan_records` takes.
    payloads, at, end = [], 0, len(data)
    view = memoryview(data)
    while at < end:
        if end - at < FRAME_BYTES:
            return None
        length, checksum = _HEADER.unpack_from(data, at)
        if _masked_crc32c(data[at : at + _LENGTH.size]) != checksum:
            return None
        begin = at + HEADER_BYTES
        stop = begin + length
        at = stop + FOOTER_BYTES
        # The checksum needs bytes, whose memory the next record takes again.
        if at > end or _masked_crc32c(data[begin:stop]) != _CRC.unpack_from(data, stop)[0]:
            return None
        payloads.append(view[begin:stop])
    return payloads


def write_records(path: str | os.PathLike[str], payloads: Iterable[bytes]) -> int:
    """Writes a local file of records, whole or not at all, and returns its size in bytes."""
    with storage.open_write(storage.place("path", path)) as stored:
        stored.writelines(map(frame_record, payloads))
        return stored.tell()


def frame_record(payload: bytes) -> bytes:
    """Returns a record with its header and footer."""
    length = _LENGTH.pack(len(payload))
    header = length + _CRC.pack(_masked_crc32c(length))
    return header + payload + _CRC.pack(_masked_crc32c(payload))


def is_header(head: bytes) -> bool:
    """Returns whether 12 bytes are the header of a record: a length with its checksum."""
    return len(head) == HEADER_BYTES and _masked_crc32c(head[:8]) == _HEADER.unpack(head)[1]


def _masked_crc32c(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
