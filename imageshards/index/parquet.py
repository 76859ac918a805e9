"""Reads columns of a Parquet file that may come from a stranger, within bounds of memory.

A few bytes of such a file may stand for billions of values. So the headers of its pages are checked
first (https://parquet.apache.org/docs/file-format), and texts that repeat are read as numbers of a
dictionary.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from imageshards import bounds

# Fields of a page's header: sizes, and for each kind of page its number of values and its encoding.
_UNCOMPRESSED_BYTES, _COMPRESSED_BYTES = 2, 3
_KINDS = {5: (1, 2), 7: (1, 2), 8: (1, 4)}
_DICTIONARY = 7
# Plain values, run lengths, bits, numbers of a dictionary. Further encodings share parts of texts.
_ENCODINGS = {0, 2, 3, 4, 8}
_MAX_LEVELS = 8  # of a header; a page has three


class Most(NamedTuple):
    """The most values and bytes that a column may have."""

    values: int
    num_bytes: int


def most_in(
    schema: pa.Schema, rows: int, num_bytes: int, labels: Collection[str]
) -> dict[str, Most]:
    """Returns the bounds of the columns of a file of `num_bytes` for so many rows.

    `labels` are the columns of labels, whose lists may be longer.
    """
    if rows > num_bytes * bounds.MAX_ROWS_PER_BYTE:
        raise ValueError(f"{num_bytes} bytes cannot hold {rows} rows")
    found = {}
    for field in schema:
        cell = bounds.MAX_NUMBER_CELL
        if pa.types.is_string(field.type):
            cell = bounds.MAX_TEXT_CELL
        elif pa.types.is_list(field.type):
            cell = bounds.MAX_LABELS_CELL if field.name in labels else bounds.MAX_LIST_CELL
        values, size_bytes = (rows * most for most in cell)
        found[field.name] = Most(values, size_bytes + bounds.MAX_COLUMN_OVERHEAD_BYTES)
    return found


def read_columns(data: bytes, schema: pa.Schema, most: Mapping[str, Most]) -> pa.Table:
    """Returns the columns of a schema; `most` has the bounds of each column.

    Raises:
        ValueError: A column is larger than its bounds, or has an unusual encoding.
        KeyError, pa.ArrowException: A column is missing, or the file is damaged.
    """
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    found: dict[str, Most] = dict.fromkeys(most, Most(0, 0))
    repeated = []
    numbers = itertools.product(range(metadata.num_row_groups), range(metadata.num_columns))
    for group, number in numbers:
        chunk = metadata.row_group(group).column(number)
        path = chunk.path_in_schema
        name = path if path in most else path.rpartition(".list.")[0]
        for page in _pages(data, chunk) if name in most else ():
            if page.encoding not in _ENCODINGS:
                raise ValueError(f"{name} has the encoding {page.encoding}")
            if page.is_dictionary and chunk.physical_type == "BYTE_ARRAY":
                repeated.append(path)
            values = found[name].values + page.values * (not page.is_dictionary)
            found[name] = Most(values, found[name].num_bytes + page.num_bytes)
            _check(name, found[name], most[name])
    file = pq.ParquetFile(pa.BufferReader(data), metadata=metadata, read_dictionary=repeated)
    # The threads of the callers already read several files at the same time.
    table = file.read(schema.names, use_threads=False).select(schema.names)
    for name in schema.names:
        _check(name, Most(0, _text_bytes(table[name])), most[name])
    table = table.cast(schema)
    table.validate(full=True)  # Texts may be damaged, too.
    return table


def _check(name: str, found: Most, most: Most) -> None:
    if found.values > most.values or found.num_bytes > most.num_bytes:
        raise ValueError(f"{name} is too large for the number of rows")


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Returns the bytes that the texts of a column take without a dictionary."""
    total = 0
    for chunk in column.chunks:
        values = chunk.flatten() if pa.types.is_list(chunk.type) else chunk
        if pa.types.is_dictionary(values.type):
            lengths = pc.take(pc.binary_length(values.dictionary), values.indices)
            total += pc.sum(lengths).as_py() or 0
    return total


class _Page(NamedTuple):
    values: int
    num_bytes: int  # without compression
    encoding: int
    is_dictionary: bool


def _pages(data: bytes, chunk: Any) -> Iterator[_Page]:
    """Yields the pages of a column, by their headers."""
    starts = (chunk.dictionary_page_offset, chunk.data_page_offset)
    at = min((start for start in starts if start), default=0)
    end = at + chunk.total_compressed_size * bool(chunk.num_values)
    while at < end:
        try:
            header, at = _struct(data, at)
            (kind,) = header.keys() & _KINDS.keys()
            values, encoding = (int(header[kind][field]) for field in _KINDS[kind])
            sizes = int(header[_UNCOMPRESSED_BYTES]), int(header[_COMPRESSED_BYTES])
        except (LookupError, TypeError):
            raise ValueError("a page has a wrong header") from None
        if min(values, *sizes) < 0:
            raise ValueError("a page has a negative size")
        yield _Page(values, sizes[0], encoding, kind == _DICTIONARY)
        at += sizes[1]


def _struct(data: bytes, at: int, level: int = 0) -> tuple[dict[int, Any], int]:
    """Reads a struct of Thrift's compact protocol; returns its fields and where it ends.

    https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
    """
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if step := head >> 4:
            number += step
        else:
            number, at = _signed(data, at)
        match head & 15:
            case 1 | 2 as kind:
                fields[number] = kind == 1
            case 3:
                at += 1
            case 4 | 5 | 6:
                fields[number], at = _signed(data, at)
            case 7:
                at += 8
            case 8:
                length, at = _unsigned(data, at)
                at += length
            case 12 if level < _MAX_LEVELS:
                fields[number], at = _struct(data, at, level + 1)
            case kind:
                raise ValueError(f"a page's header has a field of type {kind}")
    return fields, at + 1


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("a page's header has a number of more than 64 bits")


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return value >> 1 ^ -(value & 1), at
