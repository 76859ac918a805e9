"""The rows of a manifest file, each with the line it is on: CSV, JSON Lines or Parquet."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from beam_pipeline import storage
from beam_pipeline.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

# Where a row is, for a person; its cells by column name.
Row = tuple[str, dict[str, Any]]

# The csv module stops at 128 KiB, which long captions and many boxes exceed; a cell larger
# than this is a quote that is not closed.
_MAX_CELL_CHARACTERS = 16 * 1024 * 1024
# Columns that pandas writes for the row index.
_INDEX_COLUMNS = ("", "__index_level_0__")
_BARE_CR = re.compile("(?<=\r)(?!\n)(?!$)")
_BATCH_ROWS = 1000


def read_rows(path: str, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows of a manifest, in order; the format is told by the name, CSV unless known.

    Columns without a name, and the row index of pandas, are left out.

    Args:
        path: The manifest, on this machine or in a store.
        columns: The columns wanted; a Parquet file is read no further than that.

    Raises:
        UserError: The file cannot be read, or a row is damaged; the message gives the line.
    """
    if is_parquet(path):
        return _parquet_rows(path, columns)
    if path.lower().endswith((".jsonl", ".ndjson")):
        return _json_rows(path)
    return _csv_rows(path)


def is_parquet(path: str) -> bool:
    """Whether the file brings types of its own."""
    return path.lower().endswith((".parquet", ".pq"))


def parquet_schema(path: str) -> pa.Schema:
    """Column names and types of a Parquet file.

    Raises:
        UserError: It cannot be read, or names a column twice.
    """
    with _parquet_file(path) as file:
        schema = file.schema_arrow
    _refuse_twice(f"--input {path!r}", schema.names)
    for name in set(_INDEX_COLUMNS).intersection(schema.names):
        schema = schema.remove(schema.get_field_index(name))
    return schema


def _unreadable(path: str, e: Exception) -> UserError:
    reason = getattr(e, "strerror", None) or next(iter(str(e).splitlines()), type(e).__name__)
    return UserError(f"--input {path!r} cannot be read ({reason}); mend the path or its rights.")


def _lines(path: str) -> Iterator[str]:
    """Lines with their ends: LF, CRLF or CR."""
    number = 0
    try:
        with storage.open_read(path) as file:
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if "\r" in text[:-2]:
                    yield from _BARE_CR.split(text)
                else:
                    yield text
    except UnicodeDecodeError as e:
        raise UserError(
            f"--input {path!r} line {number or 1} is not UTF-8 text ({e.reason}); save the file "
            "as UTF-8."
        ) from e
    except OSError as e:
        raise _unreadable(path, e) from e


def _csv_rows(path: str) -> Iterator[Row]:
    csv.field_size_limit(_MAX_CELL_CHARACTERS)
    reader = csv.reader(_lines(path), strict=True)
    line = 1
    try:
        header = next(reader, [])
        _refuse_twice(f"{path} line 1", header)
        while True:
            line = reader.line_num + 1  # a cell may span lines: the first one counts
            cells = next(reader, None)
            if cells is None:
                return
            if not cells:
                continue
            if len(cells) != len(header):
                raise UserError(
                    f"{path} line {line} has {len(cells)} cells; expected {len(header)} as in its "
                    "header: mend the row, or put quotes around text with commas."
                )
            yield f"line {line}", {n: c for n, c in zip(header, cells, strict=True) if n}
    except csv.Error as e:
        raise UserError(f"{path} line {line} is not CSV ({e}); mend its quotes.") from e


def _refuse_twice(where: str, names: Sequence[str]) -> None:
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise UserError(f"{where} names the column {twice[0]!r} twice; rename one.")


def _json_rows(path: str) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as e:
            raise UserError(
                f"{path} line {number} is not JSON ({e.msg} at column {e.colno}); expected one "
                "object on each line."
            ) from e
        except (ValueError, RecursionError) as e:
            raise UserError(f"{path} line {number} is not JSON that can be read ({e}).") from e
        if not isinstance(row, dict):
            raise UserError(
                f"{path} line {number} is not a JSON object; expected {{column: value}} on each "
                "line."
            )
        yield f"line {number}", row


def _parquet_rows(path: str, columns: Sequence[str] | None) -> Iterator[Row]:
    wanted = list(parquet_schema(path).names if columns is None else columns)
    number = 0
    with _parquet_file(path) as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=wanted):
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
