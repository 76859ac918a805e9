"""`tf.train.Example` read without TensorFlow, which takes seconds to load.

The wire format is https://protobuf.dev/programming-guides/encoding; the messages are
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# The field of a Feature that is set says which of the three lists it is.
_DTYPES = {1: "string", 2: "float32", 3: "int64"}


class Values(NamedTuple):
    """The values of one feature.

    Attributes:
        dtype: `int64`, `float32` or `string`; empty where the feature was written without
            any values.
        values: int, float or bytes.
    """

    dtype: str
    values: list[int] | list[float] | list[bytes]


def read_example(payload: bytes, only: Collection[str] | None = None) -> dict[str, Values]:
    """The features of a serialized `tf.train.Example`.

    Args:
        payload: The record.
        only: Names of the features that are wanted; None for all.

    Raises:
        ValueError: It is no `tf.train.Example`.
    """
    found: dict[str, Values] = {}
    for field, features in _fields(payload):
        if field == 1 and isinstance(features, bytes):
            for inner, entry in _fields(features):
                if inner == 1 and isinstance(entry, bytes):
                    name, feature = _entry(entry)
                    if only is None or name in only:
                        found[name] = _values(feature)
    return found


def _entry(entry: bytes) -> tuple[str, bytes]:
    name, feature = b"", b""
    for field, value in _fields(entry):
        if isinstance(value, bytes):
            if field == 1:
                name = value
            elif field == 2:
                feature = value
    return name.decode(), feature


def _values(feature: bytes) -> Values:
    found = Values("", [])
    for field, packed in _fields(feature):
        if field not in _DTYPES or not isinstance(packed, bytes):
            continue
        dtype = _DTYPES[field]
        pieces = [value for inner, value in _fields(packed) if inner == 1]
        if dtype == "string":
            found = Values(dtype, [value for value in pieces if isinstance(value, bytes)])
        elif dtype == "float32":
            found = Values(dtype, [x for value in pieces for x in _floats(value)])
        else:
            found = Values(dtype, [n for value in pieces for n in _integers(value)])
    return found


def _floats(value: bytes | int) -> tuple[float, ...]:
    # Packed, or one at a time: both are allowed, the latter is fixed32.
    data = value if isinstance(value, bytes) else struct.pack("<I", value & 0xFFFFFFFF)
    if len(data) % 4:
        raise ValueError(f"a list of floats has {len(data)} bytes")
    return struct.unpack(f"<{len(data) // 4}f", data)


def _integers(value: bytes | int) -> list[int]:
    if isinstance(value, int):
        return [_signed(value)]
    found, position = [], 0
    while position < len(value):
        number, position = _varint(value, position)
        found.append(_signed(number))
    return found


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Number and value of every field of a message."""
    position, end = 0, len(data)
    while position < end:
        # Nearly always one byte: a call for each would take most of the time.
        key = data[position]
        position += 1
        if key >= 0x80:
            key, position = _varint(data, position - 1)
        field, wire = key >> 3, key & 7
        value: bytes | int
        if wire == _VARINT:
            value, position = _varint(data, position)
        else:
            if wire == _BYTES:
                length, position = _varint(data, position)
            elif wire in (_FIXED64, _FIXED32):
                length = 8 if wire == _FIXED64 else 4
            else:
                raise ValueError(f"field {field} has wire type {wire}")
            value = data[position : position + length]
            position += length
            if position > end:
                raise ValueError(f"field {field} goes past the end")
            if wire != _BYTES:
                value = int.from_bytes(value, "little")
        if not field:
            raise ValueError("a field has number 0")
        yield field, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a number is not ended")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
