"""Turns the rows of an image table into references to images, by path or address."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import unicodedata
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from beam_pipeline.inputs.folders import Skipped
from beam_pipeline.inputs.tables import cells
from beam_pipeline.inputs.tables.cells import shown, wrong_cell
from beam_pipeline.inputs.tables.rows import Part, picture_rows, read_rows, row_key
from beam_pipeline.inputs.tables.schema import ROW_NUMBERS, TableSchema
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import RELATIVE, XYWH, ColumnSpec, is_split_name
from beam_pipeline.planning.refs import MISSING, ImageRef, Label, names_of
from imageshards import storage
from imageshards.errors import Arg, Text, UserError
from imageshards.manifest import BOX_CLASS_FEATURE, BOX_FEATURES, NONE, OBJECT_PREFIX, SEVERAL
from imageshards.text import composed, printable

# Reason of a `Skipped` that names a table whose paths have backslashes.
BACKSLASHES = "backslashes"
# Reason of a `Skipped` that names a column of floats with cells like `N/A`.
MISSING_MARKS = "missing_marks"
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
# An address of a store or a web server. Any different text is a path of this machine.
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def read_refs(
    path: str, schema: TableSchema, part: Part | None = None, spool: str = ""
) -> Iterator[ImageRef | Skipped]:
    """Yields the references of a file of an image table, or of a part of it, in row order.

    Relative image paths are relative to the folder of the file. Images with an empty split or group
    have none; the key draws their split. Pictures of a Parquet file are written into files in the
    folder `spool`, from which they are read by ranges. Raises `UserError` with the line if a row
    lacks its image or label, has a value of the wrong type, or names a file outside of the folder.
    """
    folder = os.path.dirname(os.path.abspath(path) if storage.is_local(path) else path)
    if schema.has_pictures:
        for where, row, ref in picture_rows(path, schema.names, schema.image, part, spool):
            yield from refs_of_row(where, row, schema, ref)
        return
    has_backslashes = False
    for where, row in read_rows(path, schema.names, part):
        image = _text(where, row, schema.image)
        ref = image_place(where, folder, image, schema.any_path)
        # Only slashes in place of backslashes give the key of an image another form.
        if ref.key != image and not has_backslashes:
            has_backslashes = True
            yield Skipped(BACKSLASHES, printable(path))
        yield from refs_of_row(where, row, schema, ref)


def refs_of_row(
    where: str, row: Mapping[str, Any], schema: TableSchema, place: ImageRef
) -> Iterator[ImageRef | Skipped]:
    """Yields the reference of a row, and a `Skipped` for each text that means a missing number.

    `where` is file and line, for messages. `place` is a reference with the place of the image's
    bytes, and with the key unless a column has it. Raises `UserError` as `read_refs`.
    """
    for column in filter(cells.may_be_missing, schema.columns):
        if cells.is_missing_mark(row.get(schema.column_of(column))):
            yield Skipped(MISSING_MARKS, column.name)
    columns = _columns(where, row, schema)
    # Errors name the columns of the table, not the features.
    sides = {schema.cells_of.get(s, s): columns[s] for s in BOX_FEATURES if s in columns}
    if sides:
        cells.check_boxes(where, sides, schema.bbox_format)
    if schema.bbox_format == XYWH:
        # The features of a record are corners, so a width becomes xmax and a height becomes ymax.
        for low, size in (BOX_FEATURES[:2], BOX_FEATURES[2:]):
            columns[size] = [a + b for a, b in zip(columns[low], columns[size], strict=True)]
    key = place.key
    if schema.key:
        key = row_key(where) if schema.key == ROW_NUMBERS else _text(where, row, schema.key)
    label = _label(where, row, schema) if schema.label else None
    split = _optional_text(where, row, schema.split)
    if split is not None and not is_split_name(split):
        expected = "the name of a split, in letters, digits and underscores"
        raise wrong_cell(where, schema.split, split, expected)
    yield place._replace(
        key=key,
        label=label,
        split=split or place.split,
        group=_optional_text(where, row, schema.group),
        columns=columns or None,
        in_pixels=schema.bbox_format != RELATIVE,
    )


def merge_boxes(refs: Sequence[ImageRef], schema: TableSchema) -> ImageRef:
    """Returns one reference for the rows of an image; only boxes and labels may differ."""
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
    """Returns column → value for the values that all rows of an image must share."""
    columns = ref.columns or {}
    label = None if schema.several else ref.label
    roles = {schema.label: label, schema.group: ref.group, schema.split: ref.split}
    return roles | {n: columns[n] for n in columns if not n.startswith(OBJECT_PREFIX)}


def _rows_differ(
    key: str, schema: TableSchema, column: str | None, one: Any, other: Any
) -> UserError:
    received = f"{shown(one)} and {shown(other)} in column {column!r} of the image {key!r}"
    if column == schema.label:
        expected = "one label for each image"
        remedy = "say " + Arg("label", SEVERAL) + ", which takes the classes of all its boxes, or "
        remedy += Arg("label", NONE)
    else:
        expected = "one value in all rows of an image"
        remedy = "fix the rows, leave the column out by " + Arg("columns")
        remedy += f", or call it {OBJECT_PREFIX}{column} to keep a value for each box"
    return invalid("input", received, expected, remedy)


def _text(where: str, row: Mapping[str, Any], column: str) -> str:
    if (text := _optional_text(where, row, column)) is None:
        remedy = "fill it in, or remove the row"
        raise wrong_cell(where, column, row.get(column), "text that is not empty", remedy)
    return text


def _optional_text(where: str, row: Mapping[str, Any], column: str | None) -> str | None:
    """Returns the text, whole number or boolean of a cell as text; None if it is empty."""
    cell = row.get(column) if column is not None else None
    try:
        return cells.cell_text(cell)
    except ValueError:
        raise wrong_cell(where, column, cell, "text or a whole number") from None


def _label(where: str, row: Mapping[str, Any], schema: TableSchema) -> Label:
    cell = row.get(schema.label)
    if schema.several and BOX_CLASS_FEATURE in schema.cells_of:
        name = _optional_text(where, row, schema.label)
        return () if name is None else (_class_of(where, name, schema),)
    if not schema.several:
        another = "name another column by " + Arg("label_column")
        if cells.is_list(cell):
            remedy = "say " + Arg("label", SEVERAL) + ", or " + another
            raise wrong_cell(where, schema.label, cell, "one class, a text", remedy)
        if isinstance(cell, float) and not (cell.is_integer() or math.isnan(cell)):
            expected = "the name of a class, a text or a whole number"
            remedy = another + ", or, to learn a quantity, say " + Arg("label", NONE) + " and "
            remedy += Arg("columns", f"{schema.label}:float") + " and train with "
            remedy += Arg("target", schema.label)
            raise wrong_cell(where, schema.label, cell, expected, remedy)
        return _class_of(where, _text(where, row, schema.label), schema)
    try:
        labels = cells.labels_in(cell, schema.separator)
        return tuple(sorted({_class_of(where, label, schema) for label in labels}))
    except ValueError:
        expected = 'a list of labels as in ["a", "b"]'
        advice: Text = "fix the row; of text say the " + Arg("label_separator")
        if schema.separator is not None:
            expected = f"labels with {schema.separator!r} between them"
            advice = "fix the row; of lists leave " + Arg("label_separator") + " out"
        raise wrong_cell(where, schema.label, cell, expected, advice) from None


def _class_of(where: str, label: str, schema: TableSchema) -> str:
    """Returns the class of a label: the stripped label, or the name of its number."""
    label = label.strip()
    if not schema.class_names or label in schema.class_names or not _NUMBER.fullmatch(label):
        return label
    if int(label) < len(schema.class_names):
        return schema.class_names[int(label)]
    expected = f"0 to {len(schema.class_names) - 1}, the number of a class"
    raise wrong_cell(where, schema.label, int(label), expected)


def _columns(where: str, row: Mapping[str, Any], schema: TableSchema) -> dict[str, Any]:
    """Returns the extra columns of a row; with one box a row, lists of at most one value."""
    # In a table with one box a row, a row without sides is an image without boxes.
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
            columns[column.name] = [composed(_class_of(where, _text(where, row, name), schema))]
        else:
            columns[column.name] = [_value(where, row, dataclasses.replace(column, shape=()), name)]
    return columns


def _value(where: str, row: Mapping[str, Any], column: ColumnSpec, name: str) -> Any:
    # JSON Lines may leave out members. `convert` has its own message for a missing number.
    is_number = column.kind != "string" and column.shape == ()
    if name not in row and column.shape is not None and not is_number:
        problem = f"{where} has no column {name!r}"
        remedy = "fix the row, or leave the column out by " + Arg("columns")
        raise UserError(problem, expected="it in every row", remedy=remedy)
    return cells.convert(where, column, row.get(name), name)


def image_place(where: str, folder: str, image: str, any_path: bool) -> ImageRef:
    """Returns a reference to a row's image, with the path in the row as its key."""
    # Systems store é as one character (NFC) or as e and an accent (NFD), and the table may have
    # either form. Windows writes backslashes, which are ordinary characters of a name elsewhere.
    names = image, unicodedata.normalize("NFC", image), unicodedata.normalize("NFD", image)
    forms = [(image, form) for form in dict.fromkeys(names)]
    if "\\" in image and not _ADDRESS.match(image):
        slashed = image.replace("\\", "/")
        forms.append((slashed, slashed))
    missing = ImageRef(image, _uri(where, folder, image, any_path), None, mtime_ns=MISSING)
    for key, form in forms:
        ref = ImageRef(key, _uri(where, folder, form, any_path), None)
        if not storage.is_local(ref.uri):
            return ref
        try:
            status = os.stat(ref.uri)
        # A missing file is quarantined, with the reason, when it is read.
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError):
            return ref
        return ref._replace(size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)
    return missing


def _uri(where: str, folder: str, image: str, any_path: bool) -> str:
    """Returns the path or address of a row's image; raises `UserError` if it is not allowed."""
    path = image
    # Beam has no file system for file:// addresses.
    if image.lower().startswith("file:///"):
        path = urllib.parse.unquote(image[len("file://") :])
    elif _ADDRESS.match(image):
        return image
    elif not storage.is_local(folder) and not os.path.isabs(image):
        return storage.join(folder, image)
    # The author of a table could otherwise copy any file of this machine into `quarantine/`. `..`
    # is resolved before the system follows a symbolic link, so the checked path is the opened path.
    path = os.path.normpath(os.path.join(folder, path))
    # The table may name its folder with or without symbolic links.
    roots = (folder, os.path.realpath(folder)) if storage.is_local(folder) else ()
    if any_path or any(path.startswith(root.rstrip("/") + "/") for root in roots):
        return path
    trusted = Arg("allow_any_path", True)
    raise UserError(
        f"{where} names the image {shown(image)}, which is {path!r}, outside of the table's folder "
        f"{folder!r}",
        expected="a path below that folder, or an address",
        remedy="move the table above its images, or, if you trust the table, say " + trusted,
    )
