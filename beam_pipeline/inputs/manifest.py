"""Manifests as input (CSV, JSON Lines, Parquet): the roles of columns, and rows → `ImageRef`s."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import urllib.parse
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from beam_pipeline.inputs.folders import Skipped, files_matching
from beam_pipeline.inputs.layout import glob_root, is_glob
from beam_pipeline.inputs.manifest_cells import (
    check_box_columns,
    check_boxes,
    check_one_type,
    column_of_arrow,
    convert,
    decimal_comma_in,
    infer,
    shown,
    with_box_type,
    wrong_cell,
)
from beam_pipeline.inputs.manifest_rows import WHOLE, Span, is_parquet, parquet_schema, read_rows
from beam_pipeline.options import ColumnSpec, InputOptions, is_split_name
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.errors import UserError
from imageshards.manifest import BOX_FEATURES, RECORD_FEATURES
from imageshards.storage import is_local

# Rows from which the type of an undeclared column is inferred.
INFERENCE_ROWS = 1000
# Rows of one key that are shown.
_MAX_SHOWN_ROWS = 10

_IMAGE_NAMES = (
    "image", "path", "uri", "file", "filename", "image_path", "image_uri", "url", "image_url",
)  # fmt: skip
_LABEL_NAMES = ("label", "class", "category")
_KEY_NAMES = ("key", "id")


@dataclasses.dataclass(frozen=True)
class ManifestSchema:
    """What each column of a manifest is for.

    Attributes:
        image, label: Columns of the image path and of the class name.
        key, split, group: Columns of these, if there are any.
        columns: Extra columns, which become features.
        undeclared: Other columns, which --columns leaves out, and how it would declare them; "" for
            a type that records cannot hold.
        decimal_commas: Columns that are text only as their numbers have decimal commas, and such a
            number.
        decimal_label: A label, if all are numbers and not all of them whole ones; else "".
    """

    image: str
    label: str
    key: str | None
    split: str | None
    group: str | None
    columns: tuple[ColumnSpec, ...]
    undeclared: tuple[tuple[str, str], ...] = ()
    decimal_commas: tuple[tuple[str, str], ...] = ()
    decimal_label: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should hear of the columns."""
        names = ", ".join(repr(name) for name, _ in self.undeclared)
        to_add = ",".join(filter(None, (text for _, text in self.undeclared)))
        remedy = f"; to keep them, add {to_add}" if to_add else ""
        left_out = (f"--columns leaves out {names} of --input{remedy}",) if names else ()
        as_text = (
            f"column {name!r} of --input is taken as text, as values such as {value!r} have a "
            f"decimal comma; to have numbers, write decimal points ({value.replace(',', '.')})"
            for name, value in self.decimal_commas
        )
        as_classes = (
            f"column {self.label!r} of --input has numbers such as {self.decimal_label}, and each "
            "becomes a class; name a column of classes by --label_column: a number to be learnt "
            "is an extra column",
        )
        return (*left_out, *as_text, *(as_classes if self.decimal_label else ()))

    @property
    def names(self) -> list[str]:
        """All columns that are read, each once."""
        roles = (self.image, self.label, self.key, self.split, self.group)
        return list(dict.fromkeys([*filter(None, roles), *(c.name for c in self.columns)]))


def manifest_files(path: str) -> Iterator[str]:
    """The files of a manifest: the path itself, or the files that match a glob, ordered by path.

    Raises:
        UserError: None matches.
    """
    if not is_glob(path) or _is_object(path):
        yield path
        return
    above = len(glob_root(path).rstrip("/"))
    names = sorted(
        file
        for file, size_bytes, _ in files_matching(path)
        if "/." not in file[above:] and not (isinstance(size_bytes, Skipped) and size_bytes.name)
    )
    if not names:
        raise UserError(
            f"--input {path!r} matches no file; expected manifests (.csv, .jsonl, .parquet) "
            "outside of finished data sets: fix the pattern."
        )
    yield from names


def _is_object(path: str) -> bool:
    """Whether a store has an object of exactly this name, although it looks like a glob."""
    try:
        return not is_local(path) and storage.exists(path)
    except OSError:
        return False


def read_schema(source: InputOptions) -> ManifestSchema:
    """Finds the columns' roles and types from the options, the header and the first rows.

    Raises:
        UserError: A column is missing, named twice, has the name of a record feature, or a
            type that boxes cannot have; or its bucket cannot be used.
    """
    if not is_local(source.input):
        storage.check_bucket(source.input, "--input")
    types: dict[str, Any] | None = None
    head: list[tuple[object, dict[str, Any]]] = []
    first = next(manifest_files(source.input))
    if is_parquet(first):
        schema = parquet_schema(first)
        types = dict(zip(schema.names, schema.types, strict=True))
        names = list(schema.names)
    else:
        head = list(itertools.islice(read_rows(first), INFERENCE_ROWS))
        names = list(dict.fromkeys(name for _, row in head for name in row))
        if not head:
            raise UserError(
                f"--input {first!r} has no row; expected a header and one row per image."
            )
    image = _role(source, names, "--image_column", source.image_column, _IMAGE_NAMES)
    label = _role(source, names, "--label_column", source.label_column, _LABEL_NAMES)
    key = _optional_role(source, names, "--key_column", source.key_column, _KEY_NAMES)
    split = _optional_role(source, names, "--split_column", source.split_column, ("split",))
    group = _optional_role(source, names, "--group_column", source.group_column, ())

    decimal_label = _decimal_label(first, label, [row.get(label) for _, row in head])

    def column(name: str) -> ColumnSpec:
        if types is not None:
            return with_box_type(column_of_arrow(name, types[name]))
        found = infer(name, [row.get(name) for _, row in head])
        check_one_type(first, found, [(where, row.get(name)) for where, row in head])
        return with_box_type(found)

    others = [name for name in names if name not in {image, label, key, split, group}]
    undeclared: dict[str, str] = {}
    if source.columns is None:
        columns = tuple(map(column, others))
    else:
        columns = source.columns
        declared = {spec.name for spec in columns}
        for name in others if columns else ():  # --columns '' asks for none
            if name not in declared:
                undeclared[name] = ""
                with contextlib.suppress(UserError):  # a type that records cannot hold
                    undeclared[name] = str(column(name))
    _check_columns(source, names, columns)
    commas = tuple(
        (spec.name, value)
        for spec in (columns if source.columns is None else ())
        if (value := decimal_comma_in(spec, [row.get(spec.name) for _, row in head]))
    )
    return ManifestSchema(
        image, label, key, split, group, columns, tuple(undeclared.items()), commas, decimal_label
    )


def _decimal_label(path: str, name: str, cells: Sequence[Any]) -> str:
    """A label if all are numbers, some with decimals: hardly meant as the name of a class.

    Raises:
        UserError: The labels are lists.
    """
    given = [cell for cell in cells if cell not in (None, "")]
    labels = infer(name, given)
    if labels.shape is None:
        raise UserError(
            f"--input {path!r} has lists such as {shown(given[0])} in the label column {name!r}; "
            "expected one class in each row: name another column by --label_column, which makes "
            f"the lists an extra column (--columns {labels})."
        )
    if labels.kind != "float":
        return ""
    return next(str(cell) for cell in given if infer(name, [cell]).kind == "float")


def _optional_role(
    source: InputOptions, names: Sequence[str], flag: str, given: str | None, known: Sequence[str]
) -> str | None:
    if given is not None and given not in names:
        raise UserError(
            f"{flag} received {given!r}, but {source.input!r} has the columns {_quoted(names)}."
        )
    return given or next((name for name in known if name in names), None)


def _role(
    source: InputOptions, names: Sequence[str], flag: str, given: str | None, known: Sequence[str]
) -> str:
    found = _optional_role(source, names, flag, given, known)
    if found is None:
        raise UserError(
            f"--input {source.input!r} has no {flag[2:].removesuffix('_column')} column among "
            f"{_quoted(names)}; expected one named {' or '.join(known[:2])}, or {flag}."
        )
    return found


def _quoted(names: Sequence[str]) -> str:
    # Quotes show a space before or after a name.
    return ", ".join(repr(name) for name in names) or "none"


def _check_columns(
    source: InputOptions, names: Sequence[str], columns: Sequence[ColumnSpec]
) -> None:
    for column in columns:
        if column.name not in names:
            raise UserError(
                f"--columns received {column.name!r}, but {source.input!r} has the columns "
                f"{_quoted(names)}."
            )
        if column.name in RECORD_FEATURES:
            raise UserError(
                f"--input {source.input!r} has a column {column.name!r}, a name that records use "
                "themselves; rename the column."
            )
    check_box_columns(source.input, columns)


@dataclasses.dataclass(frozen=True)
class _RowLocation:
    """File and row; formatted only where a message needs it, as most rows have no error."""

    path: str
    row: object

    def __str__(self) -> str:
        return f"{self.path} {self.row}"


def read_refs(path: str, schema: ManifestSchema | None, span: Span = WHOLE) -> Iterator[ImageRef]:
    """The references of a file of a manifest, or of a span of it, in the order of its rows.

    Relative image paths are relative to the folder of the manifest. An empty split or group counts
    as none: the split is then drawn by the key.

    Raises:
        UserError: A row lacks its image or label, or holds a value of the wrong type; the
            message gives the line.
    """
    if schema is None:
        raise ValueError("a manifest input needs its schema")
    folder = path.rpartition("/")[0]
    sides = [c.name for c in schema.columns if c.name in BOX_FEATURES]
    for row_name, row in read_rows(path, schema.names, span):
        where = _RowLocation(path, row_name)
        image = _text(where, row, schema.image)
        uri = _uri(folder, image)
        size_bytes, mtime_ns = _stat(uri)
        columns = {c.name: _value(where, row, c) for c in schema.columns}
        if sides:
            check_boxes(where, {side: columns[side] for side in sides})
        yield ImageRef(
            key=_text(where, row, schema.key) if schema.key else image,
            uri=uri,
            label=_text(where, row, schema.label),
            split=_split(where, row, schema.split),
            group=_optional_text(where, row, schema.group),
            size_bytes=size_bytes,
            mtime_ns=mtime_ns,
            columns=columns or None,
        )


def rows_with_keys(
    source: InputOptions, schema: ManifestSchema, keys: Collection[str]
) -> dict[str, list[str]]:
    """Key → the rows that have it, as `file line N`, for some keys; of many rows the first.

    Raises:
        UserError: A file cannot be read.
    """
    column = schema.key or schema.image
    rows: dict[str, list[str]] = {key: [] for key in keys}
    more: collections.Counter[str] = collections.Counter()
    for path in manifest_files(source.input):
        for row_name, row in read_rows(path, [column]):
            where = _RowLocation(path, row_name)
            key = _optional_text(where, row, column)
            if key not in rows or key is None:
                continue
            if len(rows[key]) < _MAX_SHOWN_ROWS:
                rows[key].append(str(where))
            else:
                more[key] += 1
    for key, count in more.items():
        rows[key].append(f"{count:,} more")
    return rows


def _uri(folder: str, image: str) -> str:
    if image.startswith("file:///"):  # Beam has no file system of that name
        return urllib.parse.unquote(image.removeprefix("file://"))
    if not is_local(image) or os.path.isabs(image):
        return image
    return os.path.join(folder, image)


def _stat(uri: str) -> tuple[int, int]:
    if not is_local(uri):
        return -1, 0
    try:
        status = os.stat(uri)
    except (OSError, ValueError):
        return -1, 0  # quarantined with the reason when it is read
    return status.st_size, status.st_mtime_ns


def _text(where: object, row: Mapping[str, Any], column: str) -> str:
    text = _optional_text(where, row, column)
    if text is None:
        raise UserError(
            f"{where} has {shown(row.get(column))} in column {column!r}; expected text that is "
            "not empty: fix the row."
        )
    return text


def _optional_text(where: object, row: Mapping[str, Any], column: str | None) -> str | None:
    """The text or whole number of a cell; None if it is empty."""
    value = row.get(column) if column is not None else None
    if value is None or value == "":
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError("not text")
        text = str(value)
        text.encode()  # a lone surrogate is not text either
    except ValueError as e:
        raise UserError(
            f"{where} has {shown(value)} in column {column!r}; expected text: fix the row."
        ) from e
    return text


def _split(where: object, row: Mapping[str, Any], column: str | None) -> str | None:
    split = _optional_text(where, row, column)
    if split is not None and not is_split_name(split):
        raise UserError(
            f"{where} has {shown(split)} in column {column!r}; expected the name of a split, in "
            "letters, digits and underscores: fix the row."
        )
    return split


def _value(where: object, row: Mapping[str, Any], column: ColumnSpec) -> Any:
    if column.name not in row and column.shape is not None:
        raise UserError(
            f"{where} has no column {column.name!r}; expected it in every row: fix the row, or "
            "leave the column out by --columns."
        )
    cell = row.get(column.name)
    try:
        return convert(column, cell)
    except ValueError as e:
        raise wrong_cell(str(where), column, cell) from e
