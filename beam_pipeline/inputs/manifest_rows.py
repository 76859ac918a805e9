"""The rows of a manifest file, each with the line it is on: CSV, JSON Lines or Parquet.

A long file is read in spans, by several workers: JSON Lines and Parquet, but not CSV, where only
what comes before tells whether the end of a line is the end of a row.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imageshards import storage
from imageshards.errors import UserError
from imageshards.text import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

# The location of a row, as text only when an error message needs it; its cells by column name.
Row = tuple[object, dict[str, Any]]

# The default limit of the csv module, 128 KiB, is too small for long captions and many boxes. A
# cell larger than this is most likely a quote that was never closed.
_MAX_CELL_CHARACTERS = 16 * 1024 * 1024
# Columns in which pandas stores its row index.
_INDEX_COLUMNS = ("", "__index_level_0__")
# Between the cells of a CSV file, the likeliest first.
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
# What Excel writes before the header, and a cell in quotes.
_SEPARATOR_LINE = re.compile(r'"?sep=([^"\r\n])"?[,;\t]*\r?\n?', re.IGNORECASE)
_QUOTED_CELL = re.compile(r'(?:^|(?<=[,;\t]))"(?:[^"]|"")*(?:"|$)')
_BARE_CR = re.compile("(?<=\r)(?!\n)(?!$)")
_BATCH_ROWS = 1000
# One span is about a second of work.
SPAN_BYTES = 32 << 20
SPAN_ROWS = 100_000


class Span(NamedTuple):
    """A part of a manifest: a range of bytes (JSON Lines) or of row groups (Parquet).

    A line belongs to the span in which its first byte is.

    Attributes:
        begin: First byte or row group.
        end: One after the last; None for the end of the file.
    """

    begin: int = 0
    end: int | None = None


WHOLE = Span()


@dataclasses.dataclass(frozen=True)
class _LineOfSpan:
    """Line number in the file; lines before the span are counted only if it is printed."""

    path: str
    begin: int
    number: int

    def __str__(self) -> str:
        # The line that reaches into the span ends in it or just before it: it counts as one.
        before, left = 1, self.begin - 1
        try:
            with storage.open_read(self.path) as file:
                while left and (block := file.read(min(left, 1 << 20))):
                    before += block.count(b"\n")
                    left -= len(block)
        except OSError:
            return f"line {self.number} behind byte {self.begin}"
        return f"line {before + self.number}"


def spans(path: str) -> list[Span]:
    """The spans of a manifest, in order; each can be read by another worker.

    Raises:
        UserError: The file cannot be read.
    """
    if is_parquet(path):
        with _parquet_file(path) as file:
            rows = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        return _spans_of_groups(rows)
    if not _is_json(path):
        return [WHOLE]
    try:
        found = storage.stat(path)
    except OSError as e:
        raise _unreadable(path, e) from e
    size_bytes = found.size_bytes if found else 0
    begins = range(0, max(1, size_bytes), SPAN_BYTES)
    # The last span is open-ended, so that rows appended meanwhile are read, too.
    return [Span(at, at + SPAN_BYTES) for at in begins[:-1]] + [Span(begins[-1])]


def _spans_of_groups(rows: Sequence[int]) -> list[Span]:
    """Consecutive row groups, joined until a span has `SPAN_ROWS` rows."""
    found, begin, count = [], 0, 0
    for group, in_group in enumerate(rows):
        count += in_group
        if count >= SPAN_ROWS or group == len(rows) - 1:
            found.append(Span(begin, group + 1))
            begin, count = group + 1, 0
    return found or [WHOLE]


def read_rows(path: str, columns: Sequence[str] | None = None, span: Span = WHOLE) -> Iterator[Row]:
    """Reads the rows of a manifest in order; the file name tells the format, CSV by default.

    Columns without a name and the row index of pandas are left out.

    Args:
        path: The manifest, on this machine or in a store.
        columns: Columns to read; default: all. Only a Parquet file saves time by it.
        span: One of `spans(path)`, or all.

    Raises:
        UserError: The file cannot be read, lacks a column, or a row is damaged; the message
            gives the line.
    """
    if is_parquet(path):
        return _parquet_rows(path, columns, span)
    if _is_json(path):
        return _json_rows(path, span)
    return _csv_rows(path, columns)


def _is_json(path: str) -> bool:
    return path.lower().endswith((".jsonl", ".ndjson"))


def is_parquet(path: str) -> bool:
    """Whether it is a Parquet file, whose columns have types."""
    return path.lower().endswith((".parquet", ".pq"))


def parquet_schema(path: str) -> pa.Schema:
    """Column names and types of a Parquet file.

    Raises:
        UserError: It cannot be read, or names a column twice.
    """
    with _parquet_file(path) as file:
        schema = file.schema_arrow
    _check_unique(f"--input {path!r}", schema.names)
    for name in set(_INDEX_COLUMNS).intersection(schema.names):
        schema = schema.remove(schema.get_field_index(name))
    return schema


def _unreadable(path: str, e: Exception) -> UserError:
    reason = getattr(e, "strerror", None) or next(iter(str(e).splitlines()), type(e).__name__)
    return UserError(
        f"--input {path!r} cannot be read ({reason}); fix the path or its permissions."
    )


def _lines(path: str, span: Span = WHOLE) -> Iterator[str]:
    """The lines that begin in a span, with their ends: LF, CRLF or CR."""
    number, at = 0, span.begin
    try:
        with storage.open_read(path) as file:
            if at:
                file.seek(at - 1)
                # Skip the rest of the line before; if that is the whole span, no line begins here.
                most = -1 if span.end is None else span.end - at + 1
                at += len(file.readline(most)) - 1
                if span.end is not None and at >= span.end:
                    return
            for line in file:
                if span.end is not None and at >= span.end:
                    return
                number += 1
                text = line.decode("utf-8-sig" if at == 0 else "utf-8")
                at += len(line)
                if "\r" in text[:-2]:
                    yield from _BARE_CR.split(text)
                else:
                    yield text
    except UnicodeDecodeError as e:
        where = _location(path, span, number or 1)
        raise UserError(
            f"--input {path!r} {where} is not UTF-8 text ({e.reason}); save the file as UTF-8."
        ) from e
    except OSError as e:
        raise _unreadable(path, e) from e


def _location(path: str, span: Span, number: int) -> object:
    """`line N` of the file, for the Nth line of a span."""
    return _LineOfSpan(path, span.begin, number) if span.begin else f"line {number}"


def _csv_rows(path: str, columns: Sequence[str] | None) -> Iterator[Row]:
    csv.field_size_limit(_MAX_CELL_CHARACTERS)
    lines = _lines(path)
    first = next(lines, "")
    line = 1
    if declared := _SEPARATOR_LINE.fullmatch(first):
        first = next(lines, "")
        line = 2
    skipped = line - 1
    separator = declared[1] if declared else _separator(first)
    separators = SEPARATORS.get(separator, repr(separator))
    reader = csv.reader(itertools.chain([first], lines), strict=True, delimiter=separator)
    try:
        header = next(reader, [])
        _check_unique(f"{path} line {line}", header)
        _check_present(path, columns, header)
        while True:
            # The first line of a row whose cells have line breaks.
            line = reader.line_num + 1 + skipped
            cells = next(reader, None)
            if cells is None:
                return
            if not cells:
                continue
            if len(cells) != len(header):
                raise UserError(
                    f"{path} line {line} has {counted(len(cells), 'cell')}; expected "
                    f"{len(header)} as in its header, separated by {separators}: fix "
                    f"the row, or put quotes around text with {separators}."
                )
            yield f"line {line}", {n: c for n, c in zip(header, cells, strict=True) if n}
    except csv.Error as e:
        raise UserError(f"{path} line {line} is not CSV ({e}); fix its quotes.") from e


def _separator(header: str) -> str:
    """What separates the cells of a CSV file: what its header has most of, outside of quotes."""
    unquoted = _QUOTED_CELL.sub("", header)
    return max(SEPARATORS, key=unquoted.count)  # of equals the first


def _check_unique(where: str, names: Sequence[str]) -> None:
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise UserError(f"{where} names the column {twice[0]!r} twice; rename one.")


def _check_present(path: str, columns: Sequence[str] | None, names: Sequence[str]) -> None:
    """Columns are found in the first file; every other file must have them."""
    absent = [name for name in columns or () if name not in names]
    if absent:
        raise UserError(
            f"{path} has no column {absent[0]!r}, which the first file of --input has; expected "
            "the same columns in every file."
        )


def _json_rows(path: str, span: Span) -> Iterator[Row]:
    for number, line in enumerate(_lines(path, span), start=1):
        if not line.strip():
            continue
        where = _location(path, span, number)
        try:
            row = json.loads(line)
        except json.JSONDecodeError as e:
            raise UserError(
                f"{path} {where} is not JSON ({e.msg} at column {e.colno}); expected one "
                "object on each line."
            ) from e
        except (ValueError, RecursionError) as e:
            raise UserError(f"{path} {where} is not JSON that can be read ({e}).") from e
        if not isinstance(row, dict):
            raise UserError(
                f"{path} {where} is not a JSON object; expected {{column: value}} on each line."
            )
        yield where, row


def _parquet_rows(path: str, columns: Sequence[str] | None, span: Span) -> Iterator[Row]:
    wanted = list(parquet_schema(path).names if columns is None else columns)
    with _parquet_file(path) as file:
        _check_present(path, columns, file.schema_arrow.names)
        end = file.num_row_groups if span.end is None else span.end
        if end > file.num_row_groups:
            raise UserError(
                f"{path} has {file.num_row_groups} row groups and had more when it was looked at; "
                "it was replaced meanwhile: run the same command again."
            )
        number = sum(file.metadata.row_group(i).num_rows for i in range(span.begin))
        groups = range(span.begin, end)
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row


@contextlib.contextmanager
def _parquet_file(path: str) -> Iterator[parquet.ParquetFile]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with storage.open_read(path) as file:
            yield parquet.ParquetFile(file)
    except (OSError, ValueError, pa.ArrowException) as e:
        raise _unreadable(path, e) from e
