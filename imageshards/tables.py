"""Reads the rows of a table from CSV, JSON Lines or Parquet, each with its location.

Python's own parsers read CSV and JSON Lines. The parsers of pyarrow do not name the row of an
error. Its CSV parser takes everything behind an unclosed quote as one cell. Its JSON parser refuses
`3` and `"007"` in one column and turns texts into dates.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from imageshards import storage
from imageshards.errors import Arg, UserError, unreadable_input, wrong_input
from imageshards.storage.base import RANGE_BYTES
from imageshards.text import counted, printable

# `FILE line N` or `FILE row N`, and the row's cells by column name.
Row = tuple[str, dict[str, Any]]

# The csv module's default of 128 KiB is too small for long captions and many boxes. A larger cell
# than this is most likely an unclosed quote.
_MAX_CELL_CHARACTERS = 16 * 1024 * 1024
# Columns in which pandas stores its row index.
_INDEX_COLUMNS = ("", "__index_level_0__")
# Separators between the cells of a CSV file, the most common first.
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_QUOTED = re.compile('"[^"]*"')
# Rows that are decompressed at the same time: at most so many, and about so many bytes.
_BATCH_ROWS = 1000
_BATCH_BYTES = 8 << 20
# Limits of a part of a Parquet file: rows of a second of work, bytes of spooled pictures.
_PART_ROWS = 100_000
_PART_BYTES = 128 << 20


class Part(NamedTuple):
    """Row groups of a Parquet file that one worker reads."""

    row_groups: range
    version: str  # of the file; another one may have other rows in these row groups


def read_rows(
    path: str, columns: Sequence[str] | None = None, part: Part | None = None
) -> Iterator[Row]:
    """Yields the rows of a file in order. The file's name decides the format; the default is CSV.

    Columns without a name and the row index of pandas are left out. `columns` saves time with
    Parquet files only. `part` is one of `parts(path)` of a Parquet file; None means all.
    Raises `UserError` if the file cannot be read, lacks a column, or a row is damaged.
    """
    if is_parquet(path):
        return _parquet_rows(path, columns, part)
    if path.lower().endswith((".jsonl", ".ndjson")):
        return _json_rows(path)
    return _csv_rows(path, columns)


def is_parquet(path: str) -> bool:
    return path.lower().endswith((".parquet", ".pq"))


def parts(path: str) -> list[Part | None]:
    """Returns the row groups that each worker reads; [None], the whole, for a file of text."""
    if not is_parquet(path):
        return [None]
    found = storage.stat(path)
    version = found.version if found else ""
    with open_parquet(path, version) as file:
        groups, rows = file.num_row_groups, file.metadata.num_rows
        num_bytes = sum(file.metadata.row_group(i).total_byte_size for i in range(groups))
    by_rows = groups * _PART_ROWS // max(1, rows)
    step = max(1, min(by_rows, groups * _PART_BYTES // max(1, num_bytes)))
    starts = range(0, groups, step)
    return [Part(range(at, min(at + step, groups)), version) for at in starts] or [None]


def parquet_schema(path: str) -> pa.Schema:
    """Returns column names and types of a Parquet file; raises `UserError` for equal names."""
    with open_parquet(path) as file:
        schema = file.schema_arrow
    _check_unique(path, schema.names)
    for name in set(_INDEX_COLUMNS).intersection(schema.names):
        schema = schema.remove(schema.get_field_index(name))
    return schema


def _lines(path: str) -> Iterator[str]:
    """Yields the lines of a text file with their ends: LF, CRLF or CR."""
    try:
        with storage.open_read(path) as file:
            # Bytes that are not UTF-8 become surrogates, so that the error can name their line.
            text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
            for number, line in enumerate(text, start=1):
                if not line.isascii() and printable(line) != line:
                    problem = f"whose line {number} is not UTF-8 text"
                    raise wrong_input(path, problem, remedy="save the file as UTF-8")
                yield line
    except OSError as e:
        raise unreadable_input(path, e) from e


def _csv_rows(path: str, columns: Sequence[str] | None) -> Iterator[Row]:
    csv.field_size_limit(_MAX_CELL_CHARACTERS)
    lines = _lines(path)
    first = next(lines, "")
    # The most frequent separator of the header outside of quotes; the first of equals.
    separator = max(_SEPARATORS, key=_QUOTED.sub("", first).count)
    reader = csv.reader(itertools.chain([first], lines), strict=True, delimiter=separator)
    line = 1
    try:
        header = next(reader, [])
        _check_unique(f"{path} line {line}", header)
        _check_present(path, columns, header)
        # Cells may contain line breaks, so a row begins behind the last line of the row before.
        line = reader.line_num + 1
        for cells in reader:
            if cells and len(cells) != len(header):
                separators = _SEPARATORS[separator]
                raise UserError(
                    f"{path} line {line} has {counted(len(cells), 'cell')}",
                    expected=f"{len(header)} as in its header, separated by {separators}",
                    remedy=f"fix the row, or put quotes around text with {separators}",
                )
            if cells:
                yield f"{path} line {line}", {n: c for n, c in zip(header, cells, strict=True) if n}
            line = reader.line_num + 1
    except csv.Error as e:
        raise UserError(f"{path} line {line} is not CSV ({e})", remedy="fix its quotes") from e


def _check_unique(where: str, names: Sequence[str]) -> None:
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise UserError(f"{where} names the column {twice[0]!r} twice", remedy="rename one")


def _check_present(path: str, columns: Sequence[str] | None, names: Sequence[str]) -> None:
    # The columns come from the first file, and all files must have them.
    absent = [name for name in columns or () if name not in names]
    if absent:
        raise UserError(
            f"{path} has no column {absent[0]!r}, which the first file of " + Arg("input") + " has",
            expected="the same columns in every file",
        )


def _json_rows(path: str) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as e:
            reason = f"{e.msg} at column {e.colno}" if isinstance(e, json.JSONDecodeError) else e
            raise UserError(
                f"{where} is not JSON ({reason})", expected="one object on each line"
            ) from e
        if not isinstance(row, dict):
            raise UserError(
                f"{where} is not a JSON object", expected="{column: value} on each line"
            )
        yield where, row


def _parquet_rows(path: str, columns: Sequence[str] | None, part: Part | None) -> Iterator[Row]:
    """Yields the rows of some row groups, which are read in batches of about `_BATCH_BYTES`."""
    wanted = list(parquet_schema(path).names if columns is None else columns)
    with open_parquet(path, part.version if part else "") as file:
        _check_present(path, columns, file.schema_arrow.names)
        groups = part.row_groups if part else range(file.num_row_groups)
        number = sum(file.metadata.row_group(i).num_rows for i in range(groups.start))
        for group in groups:
            found = file.metadata.row_group(group)
            fitting = _BATCH_BYTES * found.num_rows // max(1, found.total_byte_size)
            at_once = max(1, min(_BATCH_ROWS, fitting))
            for batch in file.iter_batches(at_once, row_groups=[group], columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", row


@contextlib.contextmanager
def open_parquet(path: str, version: str = "") -> Iterator[parquet.ParquetFile]:
    """Opens a Parquet file that must have a version; raises `UserError` if it cannot be read."""
    try:
        with storage.open_read(path, version) as file:
            # Without a buffer, pyarrow holds whole column chunks, which pictures may make large.
            yield parquet.ParquetFile(file, buffer_size=RANGE_BYTES, pre_buffer=False)
    except (OSError, ValueError, pa.ArrowException) as e:
        raise unreadable_input(path, e) from e
