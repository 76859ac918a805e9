"""Reads what an image table has beside its rows: class names, types and pictures in Parquet.

The Hugging Face Hub stores pictures in Parquet columns, whose values are compressed, so no range of
bytes is one picture. The pictures of some row groups are written, once, into a spooled file.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from beam_pipeline.inputs.spool import spooled_file
from beam_pipeline.inputs.tables.cells import MAX_WHOLE_FLOAT32
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.errors import wrong_input
from imageshards.manifest import OBJECT_PREFIX, SPLIT_NAMES
from imageshards.storage.concurrency import check_stopped
from imageshards.tables import Part, is_parquet, open_parquet, read_rows
from imageshards.text import shortened

# The Hub takes the split from the first word of a file's name.
_SPLIT = re.compile(rf"({'|'.join(SPLIT_NAMES)})(?=[-_.])", re.IGNORECASE)

# `FILE row N`, the cells of the row without its picture, and the place of the picture.
PictureRow = tuple[str, dict[str, Any], ImageRef]


def row_key(where: str, root: str) -> str:
    """Returns the key of a numbered row: its file below the folder `root`, and its number."""
    return where.removeprefix(f"{root.rstrip('/')}/") if root else where.rpartition("/")[2]


def whole_numbers_with_nulls(path: str, schema: pa.Schema) -> set[str]:
    """Returns the integer columns with nulls whose values float32 can represent exactly."""
    kinds = zip(schema.names, schema.types, strict=True)
    # The statistics in the file's footer are enough. Columns without statistics stay integers.
    names = {n for n, kind in kinds if pa.types.is_integer(kind) or pa.types.is_boolean(kind)}
    with_nulls, large = set(), set()
    with open_parquet(path) as file:
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        for chunk in (group.column(i) for group in groups for i in range(group.num_columns)):
            name, found = chunk.path_in_schema, chunk.statistics
            if name not in names or found is None:
                continue
            if found.null_count:
                with_nulls.add(name)
            if found.has_min_max and max(-found.min, found.max) > MAX_WHOLE_FLOAT32:
                large.add(name)
    return {name for name in with_nulls - large if not name.startswith(OBJECT_PREFIX)}


def holds_pictures(kind: pa.DataType | None) -> bool:
    """Returns whether an Arrow type holds encoded pictures, alone or with their paths."""
    if kind is None:
        return False
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and holds_pictures(kind.field("bytes").type)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def class_names_in(schema: pa.Schema, column: str) -> tuple[str, ...]:
    """Returns the class names of a column of class numbers, or of lists of them; () without names.

    Hugging Face's `datasets` writes the names into the metadata of the schema.
    """
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        found = features[column]
        while "names" not in found:  # a list has the feature of its elements
            found = found[0] if isinstance(found, list) else found["feature"]
        names = found["names"]
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(names)
    return ()


def picture_rows(
    path: str, columns: Sequence[str], image: str, part: Part | None, spool: str
) -> Iterator[PictureRow]:
    """Yields the rows of a part of a Parquet file, and writes their pictures into a spooled file.

    The key of a picture is its path, or "" without a path. A row without a picture has 0 bytes.
    Raises `UserError` if the file cannot be read or lacks a column, or the disk is full.
    """
    found = storage.stat(path)
    if found is None:
        raise wrong_input(path, "which is no file", "a Parquet file", "fix the path")
    if not is_parquet(path):
        raise wrong_input(path, "which is no Parquet file", "pictures in every file")
    groups = f"{part.row_groups.start}-{part.row_groups.stop}" if part else ""
    rows: list[PictureRow] = []
    offset = 0
    with spooled_file(found, spool, groups) as (spooled, target):
        blank = ImageRef("", path, None, split_of(path), mtime_ns=found.mtime_ns, spooled=spooled)
        for where, row in read_rows(path, columns, part):
            cell = row.pop(image) or {}
            picture = cell if isinstance(cell, dict) else {"bytes": cell}
            data, key = picture.get("bytes") or b"", picture.get("path") or ""
            if not isinstance(data, bytes):
                problem = f"whose column {image!r} holds {shortened(repr(data), 80)}"
                raise wrong_input(path, problem, "pictures in every file")
            check_stopped()
            if target is not None:
                target.write(data)
            ref = blank._replace(key=key, size_bytes=len(data), offset_bytes=offset)
            rows.append((where, row, ref))
            offset += len(data)
    # The spooled file appears under its name when it is closed, so no row comes earlier.
    yield from rows


def split_of(path: str) -> str | None:
    """Returns the split that begins a file's name, as in `train-00000-of-00004.parquet`."""
    found = _SPLIT.match(path.rpartition("/")[2])
    return found[1] if found else None
