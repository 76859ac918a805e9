"""The rows of an image table as references to images."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from beam_pipeline.inputs.folders import Skipped
from beam_pipeline.inputs.tables import pictures
from beam_pipeline.inputs.tables.cells import (
    cell_text,
    check_boxes,
    convert,
    is_list,
    is_missing_mark,
    labels_in,
    may_be_missing,
    shown,
    wrong_cell,
)
from beam_pipeline.inputs.tables.places import image_place
from beam_pipeline.inputs.tables.rows import (
    read_rows,
    row_key,
)
from beam_pipeline.inputs.tables.schema import ROW_NUMBERS, TableSchema
from beam_pipeline.options import RELATIVE, XYWH, ColumnSpec, is_split_name
from beam_pipeline.planning.refs import ImageRef, Label, names_of
from imageshards.errors import Arg, Text, UserError
from imageshards.manifest import BOX_CLASS_FEATURE, BOX_FEATURES, NONE, OBJECT_PREFIX, SEVERAL
from imageshards.storage import is_local
from imageshards.text import composed, printable

# Reason to name a table whose paths have backslashes.
BACKSLASHES = "backslashes"
# Reason to name a column of floats whose cells read `N/A` or the like.
MISSING_MARKS = "missing_marks"
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


def read_refs(
    path: str, schema: TableSchema, row_groups: range | None = None, spool: str = ""
) -> Iterator[ImageRef | Skipped]:
    """The references of a file of an image table, or of a part of it, in the order of its rows.

    Relative image paths are relative to the folder of the file. An empty split or group counts
    as none: the split is then drawn by the key. Pictures of a Parquet file are written into files
    in the folder `spool`, from where they are read by ranges.

    Raises:
        UserError: A row lacks its image or label, holds a value of the wrong type, or names a file
            outside of the table's folder; the message gives the line.
    """
    folder = os.path.dirname(os.path.abspath(path) if is_local(path) else path)
    if schema.has_pictures:
        rows = pictures.read_rows(path, schema.names, schema.image, row_groups, spool)
        for where, row, ref in rows:
            yield from missing_marks(row, schema)
            yield row_to_ref(where, row, schema, ref)
        return
    has_backslashes = False
    for where, row in read_rows(path, schema.names, row_groups):
        image = _text(where, row, schema.image)
        ref = image_place(where, folder, image, schema.any_path)
        if ref.key != image and not has_backslashes:
            has_backslashes = True
            yield Skipped(BACKSLASHES, printable(path))
        yield from missing_marks(row, schema)
        yield row_to_ref(where, row, schema, ref)


def missing_marks(row: Mapping[str, Any], schema: TableSchema) -> Iterator[Skipped]:
    """Names the columns whose cell in this row is a text that means a missing number."""
    for column in filter(may_be_missing, schema.columns):
        if is_missing_mark(row.get(schema.column_of(column))):
            yield Skipped(MISSING_MARKS, column.name)


def row_to_ref(
    where: str, row: Mapping[str, Any], schema: TableSchema, place: ImageRef
) -> ImageRef:
    """The reference of a row, whose image is at `place`.

    Args:
        where: File and line, for messages.
        row: Cells by column.
        schema: What the columns are for.
        place: The key that the image has unless a column says it, and where its bytes are.

    Raises:
        UserError: As `read_refs`.
    """
    columns = _columns(where, row, schema)
    sides = {schema.cells_of.get(s, s): columns[s] for s in BOX_FEATURES if s in columns}
    if sides:
        check_boxes(where, sides, schema.bbox_format)
    if schema.bbox_format == XYWH:
        for low, size in (BOX_FEATURES[:2], BOX_FEATURES[2:]):
            columns[size] = [a + b for a, b in zip(columns[low], columns[size], strict=True)]
    key = place.key
    if schema.key:
        key = row_key(where) if schema.key == ROW_NUMBERS else _text(where, row, schema.key)
    return place._replace(
        key=key,
        label=_label(where, row, schema) if schema.label else None,
        split=_split(where, row, schema.split) or place.split,
        group=_optional_text(where, row, schema.group),
        columns=columns or None,
        in_pixels=schema.bbox_format != RELATIVE,
    )


def merge_boxes(refs: Sequence[ImageRef], schema: TableSchema) -> ImageRef:
    """The reference of an image from those of its rows, each of which holds one box or none.

    Raises:
        UserError: Rows differ in a value that an image has once; names its key and the column.
    """
    first, *others = refs
    shared = _shared_values(first, schema)
    for ref in others:
        for column, value in _shared_values(ref, schema).items():
            if repr(value) != repr(shared[column]):  # NaN equals NaN
                raise _rows_differ(first.key, schema, column, shared[column], value)
    label = first.label
    if isinstance(label, tuple):
        label = tuple(sorted({name for ref in refs for name in names_of(ref.label)}))
    columns = dict(first.columns or {})
    for name in columns:
        if name.startswith(OBJECT_PREFIX):
            columns[name] = [value for ref in refs for value in (ref.columns or {})[name]]
    return first._replace(label=label, columns=columns)


def _shared_values(ref: ImageRef, schema: TableSchema) -> dict[str | None, Any]:
    """Column → value that all rows of an image must have."""
    columns = ref.columns or {}
    label = None if schema.several else ref.label
    roles = {schema.label: label, schema.group: ref.group, schema.split: ref.split}
    return roles | {n: columns[n] for n in columns if not n.startswith(OBJECT_PREFIX)}


def _rows_differ(
    key: str, schema: TableSchema, column: str | None, one: Any, other: Any
) -> UserError:
    received = f"{shown(one)} and {shown(other)} in column {column!r} of the image {key!r}"
    if column == schema.label:
        return UserError(
            argument="input",
            received=received,
            expected="one label for each image",
            remedy="say "
            + Arg("label", SEVERAL)
            + ", which takes the classes of all its boxes, or "
            + Arg("label", NONE),
        )
    return UserError(
        argument="input",
        received=received,
        expected="one value in all rows of an image",
        remedy="fix the rows, leave the column out by "
        + Arg("columns")
        + f", or call it {OBJECT_PREFIX}{column} to keep a value for each box",
    )


def _text(where: str, row: Mapping[str, Any], column: str) -> str:
    text = _optional_text(where, row, column)
    if text is None:
        remedy = "fill it in, or remove the row"
        raise wrong_cell(where, column, row.get(column), "text that is not empty", remedy)
    return text


def _optional_text(where: str, row: Mapping[str, Any], column: str | None) -> str | None:
    """The text, whole number or boolean of a cell; None if it is empty."""
    cell = row.get(column) if column is not None else None
    try:
        return cell_text(cell)
    except ValueError:
        raise wrong_cell(where, column, cell, "text or a whole number") from None


def _label(where: str, row: Mapping[str, Any], schema: TableSchema) -> Label:
    cell = row.get(schema.label)
    if schema.several and BOX_CLASS_FEATURE in schema.cells_of:
        name = _optional_text(where, row, schema.label)
        return () if name is None else (_class_of(where, name, schema),)
    if not schema.several:
        if is_list(cell):
            remedy: Text = (
                "say "
                + Arg("label", SEVERAL)
                + ", or name another column by "
                + Arg("label_column")
            )
            raise wrong_cell(where, schema.label, cell, "one class, a text", remedy)
        if isinstance(cell, float) and not (cell.is_integer() or math.isnan(cell)):
            expected = "the name of a class, a text or a whole number"
            remedy = (
                "name another column by "
                + Arg("label_column")
                + ", or, to learn a quantity, say "
                + Arg("label", NONE)
                + " and "
                + Arg("columns", f"{schema.label}:float")
                + " and train with "
                + Arg("target", schema.label)
            )
            raise wrong_cell(where, schema.label, cell, expected, remedy)
        return _class_of(where, _text(where, row, schema.label), schema)
    try:
        labels = labels_in(cell, schema.separator)
        return tuple(sorted({_class_of(where, label, schema) for label in labels}))
    except ValueError:
        expected = 'a list of labels as in ["a", "b"]'
        remedy = "fix the row; of text say the " + Arg("label_separator")
        if schema.separator is not None:
            expected = f"labels with {schema.separator!r} between them"
            remedy = "fix the row; of lists leave " + Arg("label_separator") + " out"
        raise wrong_cell(where, schema.label, cell, expected, remedy) from None


def _class_of(where: str, label: str, schema: TableSchema) -> str:
    """Returns the class of a label: the label without outer spaces, or the name of its number."""
    label = label.strip()
    if not schema.class_names or label in schema.class_names or not _NUMBER.fullmatch(label):
        return label
    if int(label) < len(schema.class_names):
        return schema.class_names[int(label)]
    expected = f"0 to {len(schema.class_names) - 1}, the number of a class"
    raise wrong_cell(where, schema.label, int(label), expected)


def _split(where: str, row: Mapping[str, Any], column: str | None) -> str | None:
    split = _optional_text(where, row, column)
    if split is not None and not is_split_name(split):
        expected = "the name of a split, in letters, digits and underscores"
        raise wrong_cell(where, column, split, expected)
    return split


def _columns(where: str, row: Mapping[str, Any], schema: TableSchema) -> dict[str, Any]:
    """The extra columns of a row; in a table with one box a row, lists of one or no box."""
    columns: dict[str, Any] = {}
    has_box = not schema.box_a_row or any(
        row.get(schema.cells_of.get(side, side)) not in (None, "") for side in BOX_FEATURES
    )
    for column in schema.columns:
        name = schema.column_of(column)
        if not schema.box_a_row or not column.name.startswith(OBJECT_PREFIX):
            columns[column.name] = _value(where, row, column, name)
        elif not has_box:
            columns[column.name] = []
        elif column.name == BOX_CLASS_FEATURE != name:
            label = _class_of(where, _text(where, row, name), schema)
            columns[column.name] = [composed(label)]
        else:
            of_one_box = dataclasses.replace(column, shape=())
            columns[column.name] = [_value(where, row, of_one_box, name)]
    return columns


def _value(where: str, row: Mapping[str, Any], column: ColumnSpec, name: str) -> Any:
    """The value of an extra column, whose cell is in the column `name` of the table."""
    is_number = column.kind != "string" and column.shape == ()
    if name not in row and column.shape is not None and not is_number:
        raise UserError(
            f"{where} has no column {name!r}",
            expected="it in every row",
            remedy="fix the row, or leave the column out by " + Arg("columns"),
        )
    return convert(where, column, row.get(name), name)
