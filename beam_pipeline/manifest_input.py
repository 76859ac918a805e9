"""An input that is a manifest: CSV, JSON Lines or Parquet, one row per image."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from apache_beam.io.filesystems import FileSystems

from beam_pipeline.errors import UserError
from beam_pipeline.manifest import RECORD_FEATURES
from beam_pipeline.options import ColumnSpec, InputOptions
from beam_pipeline.reading import is_local
from beam_pipeline.refs import ImageRef

# Rows looked at to tell the type of a column that was not declared.
INFERENCE_ROWS = 1000

_IMAGE_NAMES = ("image", "path", "uri", "file", "filename", "image_path", "image_uri")
_LABEL_NAMES = ("label", "class", "category")
_KEY_NAMES = ("key", "id")


@dataclasses.dataclass(frozen=True)
class ManifestSchema:
    """What each column of a manifest is."""

    image: str
    label: str
    key: str | None
    split: str | None
    group: str | None
    columns: tuple[ColumnSpec, ...]


def read_schema(source: InputOptions) -> ManifestSchema:
    """Finds the columns' roles and types from the options, the header and the first rows.

    Raises:
        UserError: A column is missing, named twice, or has the name of a record feature.
    """
    head = list(itertools.islice(_rows(source.input), INFERENCE_ROWS))
    if not head:
        raise UserError(
            f"--input {source.input!r} has no row; expected a header and one row per image."
        )
    names = list(dict.fromkeys(name for _, row in head for name in row))

    def role(flag: str, given: str | None, known: Sequence[str], needed: bool) -> str | None:
        if given is not None and given not in names:
            raise UserError(
                f"{flag} received {given!r}, but {source.input!r} has the columns "
                f"{', '.join(names)}."
            )
        found = given or next((name for name in known if name in names), None)
        if found is None and needed:
            raise UserError(
                f"--input {source.input!r} has no {flag[2:].removesuffix('_column')} column among "
                f"{', '.join(names)}; expected one named {' or '.join(known[:2])}, or {flag}."
            )
        return found

    image = role("--image_column", source.image_column, _IMAGE_NAMES, True)
    label = role("--label_column", source.label_column, _LABEL_NAMES, True)
    key = role("--key_column", source.key_column, _KEY_NAMES, False)
    split = role("--split_column", source.split_column, ("split",), False)
    group = role("--group_column", source.group_column, (), False)
    taken = {image, label, key, split, group}
    columns = source.columns
    if columns is None:
        rest = [name for name in names if name not in taken]
        columns = tuple(_inferred(name, [row.get(name) for _, row in head]) for name in rest)
    for column in columns:
        if column.name not in names:
            raise UserError(
                f"--columns received {column.name!r}, but {source.input!r} has {', '.join(names)}."
            )
        if column.name in RECORD_FEATURES:
            raise UserError(
                f"--input {source.input!r} has a column {column.name!r}, a name that records use "
                "themselves; rename the column."
            )
    return ManifestSchema(str(image), str(label), key, split, group, columns)


def _inferred(name: str, cells: Sequence[Any]) -> ColumnSpec:
    """The narrowest of int, float, string that fits; lists are of variable length."""
    given = [cell for cell in map(_from_text, cells) if cell is not None]
    lists = [cell for cell in given if isinstance(cell, list)]
    flat = [v for cell in given for v in (cell if isinstance(cell, list) else [cell])]
    if flat and all(type(v) is int for v in flat):
        kind = "int"
    elif flat and all(type(v) in (int, float) for v in flat):
        kind = "float"
    else:
        kind = "string"
    return ColumnSpec(name, kind, None if lists and len(lists) == len(given) else ())


def _from_text(cell: Any) -> Any:
    """What the text of a CSV cell stands for; other values as they are."""
    if not isinstance(cell, str):
        return cell
    if cell == "":
        return None
    if cell[0] == "[":
        try:
            return json.loads(cell)
        except ValueError:
            return cell
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def read_refs(path: str, schema: ManifestSchema | None) -> Iterator[ImageRef]:
    """The references of a manifest, in its order.

    Relative image paths are relative to the manifest's folder.

    Raises:
        UserError: A row lacks its image or label, or holds a value of the wrong type; the
            message gives the line.
    """
    if schema is None:
        raise ValueError("a manifest input needs its schema")
    folder = path.rpartition("/")[0]
    for where, row in _rows(path):
        image = _text(path, where, row, schema.image)
        uri = image if not is_local(image) or os.path.isabs(image) else os.path.join(folder, image)
        size_bytes, mtime_ns = _stat(uri)
        yield ImageRef(
            key=_text(path, where, row, schema.key) if schema.key else image,
            uri=uri,
            label=_text(path, where, row, schema.label),
            split=_text(path, where, row, schema.split) if schema.split else None,
            group=_text(path, where, row, schema.group) if schema.group else None,
            size_bytes=size_bytes,
            mtime_ns=mtime_ns,
            columns={c.name: _value(path, where, c, row.get(c.name)) for c in schema.columns}
            or None,
        )


def _stat(uri: str) -> tuple[int, int]:
    if not is_local(uri):
        return -1, 0
    try:
        status = os.stat(uri)
    except OSError:
        return -1, 0  # the reader finds out why, and quarantines it
    return status.st_size, status.st_mtime_ns


def _text(path: str, where: str, row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise UserError(
            f"{path} {where} has {value!r} in column {column!r}; expected text that is not empty."
        )
    return str(value)


_KINDS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "string": (str,)}


def _value(path: str, where: str, column: ColumnSpec, cell: Any) -> Any:
    """A cell as its column's type: a scalar, or a list."""

    def wrong() -> UserError:
        expected = column.kind + (
            "" if column.shape == () else f" x {column.shape or 'any number'}"
        )
        return UserError(
            f"{path} {where} has {cell!r} in column {column.name!r}; expected {expected}: mend the "
            "row "
            "or declare the column by --columns."
        )

    value = cell
    if isinstance(cell, str) and (column.kind != "string" or column.shape != ()):
        value = _from_text(cell)
        if column.shape != () and isinstance(value, str):
            value = [_from_text(part) for part in value.split()]
    if column.shape == ():
        values = [value]
    else:
        values = (
            list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]
        )
    kinds = _KINDS[column.kind]
    if any(isinstance(v, bool) or not isinstance(v, kinds) for v in values):
        raise wrong()
    if column.shape is not None and len(values) != (column.shape[0] if column.shape else 1):
        raise wrong()
    if column.kind == "int" and any(not -(2**63) <= v < 2**63 for v in values):
        raise wrong()
    if column.kind == "float":
        values = [float(v) for v in values]
    return values[0] if column.shape == () else values


def _rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where the row is, its cells by column name)."""
    lower = path.lower()
    if lower.endswith(".parquet"):
        return _parquet_rows(path)
    if lower.endswith((".jsonl", ".ndjson")):
        return _json_rows(path)
    return _csv_rows(path)


def _lines(path: str) -> Iterator[str]:
    try:
        if is_local(path):
            with open(path, encoding="utf-8-sig", newline="") as file:
                yield from file
        else:
            with FileSystems.open(path) as file:
                for number, line in enumerate(file):
                    yield line.decode("utf-8-sig" if number == 0 else "utf-8")
    except UnicodeDecodeError as e:
        raise UserError(
            f"--input {path!r} is not UTF-8 text ({e.reason}); save it as UTF-8."
        ) from e
    except OSError as e:
        raise UserError(f"--input {path!r} cannot be read ({e.strerror or e}).") from e


def _csv_rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.reader(_lines(path), strict=True)
    try:
        header = next(reader, [])
        twice = [name for name in header if header.count(name) > 1]
        if twice:
            raise UserError(f"{path} line 1 names the column {twice[0]!r} twice; rename one.")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise UserError(
                    f"{path} line {reader.line_num} has {len(cells)} cells; expected {len(header)} "
                    "as in "
                    "its header."
                )
            yield f"line {reader.line_num}", dict(zip(header, cells, strict=True))
    except csv.Error as e:
        raise UserError(f"{path} line {reader.line_num} is not CSV ({e}); mend its quotes.") from e


def _json_rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as e:
            raise UserError(f"{path} line {number} is not JSON ({e}).") from e
        if not isinstance(row, dict):
            raise UserError(
                f"{path} line {number} is not a JSON object; expected {{column: value}}."
            )
        yield f"line {number}", row


def _parquet_rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with FileSystems.open(path) as file:
            number = 0
            for batch in parquet.ParquetFile(file).iter_batches(INFERENCE_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except (OSError, pa.ArrowException) as e:
        raise UserError(f"--input {path!r} cannot be read as Parquet ({e}).") from e
