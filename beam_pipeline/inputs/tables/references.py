"""Turns the rows of an image table into references to images, by path or address."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from beam_pipeline.inputs.folders import Skipped
from beam_pipeline.inputs.tables import cells
from beam_pipeline.inputs.tables.boxes import checked_boxes
from beam_pipeline.inputs.tables.cells import wrong_cell
from beam_pipeline.inputs.tables.paths import folder_of, image_place
from beam_pipeline.inputs.tables.roles import ROW_NUMBERS, TableSchema
from beam_pipeline.inputs.tables.rows import picture_rows, row_key
from beam_pipeline.inputs.tables.schema import check_class_names
from beam_pipeline.options import RELATIVE
from beam_pipeline.plan_options import is_split_name
from beam_pipeline.planning.refs import ImageRef, Label
from imageshards.errors import Arg
from imageshards.manifest import BOX_CLASS_FEATURE, BOX_FEATURES, NONE, OBJECT_PREFIX, SEVERAL
from imageshards.storage import map_concurrently
from imageshards.tables import Part, Row, read_rows
from imageshards.template import fields, fill
from imageshards.text import composed, printable

# Reason of a `Skipped` that names a table whose paths have backslashes.
BACKSLASHES = "backslashes"
# Reason of a `Skipped` that names a column of floats with cells like `N/A`.
MISSING_MARKS = "missing_marks"
# Reason of a `Skipped` for a row without a label, which names the column of the labels.
WITHOUT_LABEL = "without_label"
# Rows whose files a thread finds: a network disk answers a request for a file in a tenth of a ms.
_GROUP_ROWS = 128
_NUMBER = re.compile(r"-1|\d{1,9}", re.ASCII)


def read_refs(
    path: str, schema: TableSchema, part: Part | None = None, spool: str = ""
) -> Iterator[ImageRef | Skipped]:
    """Yields the references of a file of an image table, or of a part of it, in row order.

    Relative image paths are relative to `--image_root`, or else to the folder of the file. Images
    with an empty split or group have none; the key draws their split. Pictures of a Parquet file
    are written into files in the folder `spool`, from which they are read by ranges. Raises
    `UserError` with the line if a row lacks its image or label, has a value of the wrong type, or
    names a file outside of the folder.
    """
    check_class_names(path, schema)
    folder = folder_of(path, schema.image_root)
    if schema.has_pictures:
        for where, row, ref in picture_rows(path, schema.names, schema.image, part, spool):
            keyed = ref if ref.key else ref._replace(key=row_key(where, schema.root))
            yield from refs_of_row(where, row, schema, keyed)
        return

    def find(rows: Sequence[Row]) -> list[tuple[bool, list[ImageRef | Skipped]]]:
        """Returns for each row whether its key is not the image as given, and its references."""
        found = []
        for where, row in rows:
            image = _image(where, row, schema)
            ref = image_place(where, folder, image, schema.any_path)
            found.append((ref.key != image, [*refs_of_row(where, row, schema, ref)]))
        return found

    has_backslashes = False
    rows = read_rows(path, schema.names, part)
    # Groups of rows, as handing each row to a thread would cost more than to find a local file.
    groups = iter(lambda: [*itertools.islice(rows, _GROUP_ROWS)], [])
    for is_changed, refs in itertools.chain.from_iterable(map_concurrently(find, groups)):
        # Only slashes in place of backslashes give the key of an image another form.
        if is_changed and not has_backslashes:
            has_backslashes = True
            yield Skipped(BACKSLASHES, printable(path))
        yield from refs


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
    label = _label(where, row, schema) if schema.label else None
    if label is None and schema.label:
        yield Skipped(WITHOUT_LABEL, schema.label)
        return
    columns = checked_boxes(where, _columns(where, row, schema), schema)
    of_boxes = tuple(columns.get(BOX_CLASS_FEATURE, ()))
    key = place.key
    if schema.key:
        is_numbered = schema.key == ROW_NUMBERS
        key = row_key(where, schema.root) if is_numbered else _text(where, row, schema.key)
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
        # Labels that are the classes of the boxes belong to the boxes.
        box_labels=of_boxes if schema.several and label == tuple(sorted({*of_boxes})) else (),
    )


def _image(where: str, row: Mapping[str, Any], schema: TableSchema) -> str:
    """Returns the path or address of a row's image, as a column or a template gives it."""
    if not schema.template:
        return _text(where, row, schema.image)
    texts = {name: _text(where, row, name) for name in fields(schema.template)}
    return fill(schema.template, texts)


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
    """Returns the label or the labels of a row; None if the row says that it has no class."""
    if schema.several:
        return tuple(sorted({*filter(None, _several(where, row, schema.label, schema))}))
    cell = row.get(schema.label)
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


def _several(
    where: str, row: Mapping[str, Any], column: str, schema: TableSchema
) -> list[str | None]:
    """Returns the classes in a cell with several labels, in their order."""
    cell = row.get(column)
    if schema.box_a_row and not (schema.separator or cells.is_list(cell)):
        cell = [name] if (name := _optional_text(where, row, column)) else []
    try:
        labels = cells.labels_in(cell, schema.separator)
    except ValueError:
        expected = 'a list of labels as in ["a", "b"]'
        advice = "fix the row; of text say the " + Arg("label_separator")
        if schema.separator is not None:
            expected = f"labels with {schema.separator!r} between them"
            advice = "fix the row; of lists leave " + Arg("label_separator") + " out"
        raise wrong_cell(where, column, cell, expected, advice) from None
    return [_class_of(where, label, schema) for label in labels]


def _class_of(where: str, label: str, schema: TableSchema) -> str | None:
    """Returns the class of a label: the stripped label, or the name of its number.

    Where numbers have names, -1 is no class: the Hugging Face Hub hides the labels of a test split
    behind this number.
    """
    label = label.strip()
    if not schema.class_names or label in schema.class_names or not _NUMBER.fullmatch(label):
        return composed(label)
    if int(label) < len(schema.class_names):
        return composed(schema.class_names[int(label)]) if int(label) >= 0 else None
    expected = f"0 to {len(schema.class_names) - 1}, the number of a class"
    raise wrong_cell(where, schema.label, int(label), expected)


def _columns(where: str, row: Mapping[str, Any], schema: TableSchema) -> dict[str, Any]:
    """Returns the extra columns of a row; with one box a row, lists of at most one value."""
    # In a table with one box a row, a row without sides is an image without boxes.
    columns: dict[str, Any] = {}
    has_box = not schema.box_a_row or any(
        row.get(schema.cells_of.get(side, side)) not in (None, "") for side in BOX_FEATURES
    )
    of_boxes = ""
    for column in schema.columns:
        name = schema.column_of(column)
        if column.name == BOX_CLASS_FEATURE != name:
            of_boxes = name
        elif not schema.box_a_row or not column.name.startswith(OBJECT_PREFIX):
            columns[column.name] = cells.convert(where, column, row.get(name), name)
        elif not has_box:
            columns[column.name] = []
        else:
            one = dataclasses.replace(column, shape=())
            columns[column.name] = [cells.convert(where, one, row.get(name), name)]
    if of_boxes:
        count = len(columns[BOX_FEATURES[0]])
        columns[BOX_CLASS_FEATURE] = _classes_of_boxes(where, row, of_boxes, schema, count)
    return columns


def _classes_of_boxes(
    where: str, row: Mapping[str, Any], column: str, schema: TableSchema, count: int
) -> list[str]:
    """Returns the class of each box of a row: its labels in their order, or its only label."""
    if cells.is_list(row.get(column)) or schema.separator is not None:
        found = _several(where, row, column, schema)
    else:
        found = [_class_of(where, _text(where, row, column), schema)] * count if count else []
    names = [name for name in found if name is not None]
    if len(names) < len(found):
        raise wrong_cell(where, column, row.get(column), "a class for each box")
    return names
