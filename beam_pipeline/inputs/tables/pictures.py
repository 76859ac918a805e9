"""Reads pictures from Parquet files, as the Hugging Face Hub stores them.

A Parquet column stores its values compressed, so no range of bytes is one picture. So the pictures
of some row groups are written, once, into a spooled file.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.inputs.spool import check_space, spooled_path
from beam_pipeline.inputs.tables.rows import first_row, open_parquet, replaced, row_key
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.errors import UserError
from imageshards.manifest import SPLIT_NAMES

# Rows that are held in memory, few as pictures are large.
_BATCH_ROWS = 256
# The Hub takes the split from the first word of a file's name.
_SPLIT = re.compile(rf"({'|'.join(SPLIT_NAMES)})(?=[-_.])", re.IGNORECASE)

# `FILE row N`, the cells of the row without its picture, and the place of the picture.
Row = tuple[str, dict[str, Any], ImageRef]


def holds_pictures(kind: pa.DataType | None) -> bool:
    """Returns whether an Arrow type holds encoded pictures, alone or with their paths."""
    if kind is None:
        return False
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and holds_pictures(kind.field("bytes").type)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def class_names(schema: pa.Schema, column: str) -> tuple[str, ...]:
    """Returns the class names of an integer column by class number; () if the file has no names."""
    # Hugging Face's `datasets` writes the names into the metadata of the schema.
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[column]["names"]
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(names)
    return ()


def read_rows(
    path: str, columns: Sequence[str], image: str, row_groups: range | None, spool: str
) -> Iterator[Row]:
    """Yields the rows of a part of a Parquet file, and writes their pictures into a spooled file.

    The key of a picture is its path, or else the file's name and the row's number.

    Raises:
        UserError: The file cannot be read, a row has no picture, or the disk is full.
    """
    found = storage.stat(path)
    with open_parquet(path) as file:
        groups = range(file.num_row_groups) if row_groups is None else row_groups
        if found is None:
            raise replaced(path)
        number = first_row(path, file, groups)
        spooled = spooled_path(spool, found, f"{groups.start}-{groups.stop}")
        blank = ImageRef("", path, None, split_of(path), mtime_ns=found.mtime_ns, spooled=spooled)
        others = [name for name in columns if name != image]
        offset = 0
        with contextlib.ExitStack() as stack:
            # A resumed build finds the pictures that an earlier run has spooled.
            is_there = storage.exists(spooled)
            target = None if is_there else stack.enter_context(storage.open_write(spooled))
            rows: list[Row] = []
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=columns):
                data, sizes, paths = _pictures(batch.column(batch.schema.get_field_index(image)))
                if target is not None:
                    check_space(spool, len(data), path)
                    target.write(data)
                cells = batch.select(others).to_pylist() if others else [{}] * len(sizes)
                for row, size, name in zip(cells, sizes, paths, strict=True):
                    number += 1
                    where = f"{path} row {number}"
                    if size is None:
                        problem = f"{where} has no picture in column {image!r}"
                        remedy = "fill it in, or remove the row"
                        raise UserError(problem, expected="bytes of one", remedy=remedy)
                    key = name or row_key(where)
                    ref = blank._replace(key=key, size_bytes=size, offset_bytes=offset)
                    rows.append((where, row, ref))
                    offset += size
        # The spooled file appears under its name when the stack is closed, so no row comes earlier.
        yield from rows


def _pictures(column: pa.Array) -> tuple[memoryview, list[int | None], list[str | None]]:
    """Returns the bytes of a column's pictures, their sizes (None for no picture), and paths."""
    paths: list[str | None] = [None] * len(column)
    if pa.types.is_struct(column.type):
        if column.type.get_field_index("path") >= 0:
            paths = pc.struct_field(column, "path").to_pylist()
        column = pc.struct_field(column, "bytes")
    column = column.cast(pa.large_binary())
    # Large binary arrays have 64-bit offsets into one buffer, so the bytes need no copy.
    _, offsets, values = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    given = column.is_valid().to_pylist()
    sizes = [size if ok else None for size, ok in zip(np.diff(ends).tolist(), given, strict=True)]
    return memoryview(values or b"")[ends[0] : ends[-1]], sizes, paths


def split_of(path: str) -> str | None:
    """Returns the split that begins a file's name, as in `train-00000-of-00004.parquet`."""
    found = _SPLIT.match(path.rpartition("/")[2])
    return found[1] if found else None
