"""Bounding boxes of image tables: their columns and units, and tables with one box a row."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from beam_pipeline.inputs.tables import cells
from beam_pipeline.inputs.tables.cells import convert, shown, with_box_type, wrong_cell
from beam_pipeline.inputs.tables.roles import TableSchema
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import PIXELS, RELATIVE, XYWH, ColumnSpec
from beam_pipeline.planning.refs import ImageRef, names_of
from imageshards.errors import Arg, UserError, wrong_input
from imageshards.manifest import BOX_CLASS_FEATURE, BOX_FEATURES, NONE, OBJECT_PREFIX, SEVERAL
from imageshards.tables import Row

# Relative boxes may reach beyond the picture by its own size. Larger values must be pixels, and a
# table in pixels has larger values.
_LEAST, _MOST = -1.0, 2.0
# Names of columns with the sides of boxes, in the order of `BOX_FEATURES`. With xywh, the width and
# the height take the places of xmax and ymax.
_CORNERS = (("xmin", "xmax", "ymin", "ymax"),)
_CORNER_AND_SIZE = (("x", "w", "y", "h"), ("x", "width", "y", "height"))
# Usual names of lists with the classes of boxes, the most likely first.
_CLASSES = (
    "classes", "labels", "categories", "class_names", "category_names", "names", "objects", "class",
    "label", "category", "class_name", "category_name", "name", "object",
)  # fmt: skip
# The lower and the upper side of a box, along each axis.
_AXES = (BOX_FEATURES[:2], BOX_FEATURES[2:])


def check_box_columns(path: str, columns: Sequence[ColumnSpec]) -> None:
    """Raises `UserError` if box columns do not have the types of boxes, or a side is missing."""
    for column in columns:
        is_scaled_side = column.name in BOX_FEATURES and column.scale != "none"
        if is_scaled_side or column != with_box_type(column):
            expected = f"{column.name}:{with_box_type(column).kind}[], one value per box"
            raise invalid("columns", f"another type for {column.name!r}", expected)
    sides = [column.name for column in columns if column.name in BOX_FEATURES]
    absent = [name for name in BOX_FEATURES if name not in sides]
    if sides and absent:
        problem = f"which gives {sides[0]!r} without {absent[0]!r}"
        raise wrong_input(path, problem, f"all of {', '.join(BOX_FEATURES)}, or none")


def box_sides(bbox_format: str, names: Sequence[str]) -> dict[str, str]:
    """Returns the column of each of `BOX_FEATURES`; {} if a side has no column.

    Columns may have the names of the features, or plain names like `xmin`, `x_min`, `XMin`.
    """
    prefix = BOX_FEATURES[0].removesuffix("xmin")
    plain = {
        name.strip().removeprefix(prefix).lower().replace("_", ""): name
        for name in sorted(names, key=lambda name: name.startswith(prefix))
    }
    for sides in _CORNER_AND_SIZE if bbox_format == XYWH else _CORNERS:
        if plain.keys() >= set(sides):
            return dict(zip(BOX_FEATURES, map(plain.__getitem__, sides), strict=True))
    return {}


def class_column(rows: Iterable[Row], sides: Collection[str], label: str) -> str | None:
    """Returns the column with the class of each box, of rows with lists of sides; None without any.

    It has a list of names in each row, as long as the lists of `sides`. Of several columns the
    `label` wins, and then a usual name. Another name counts if it is the only one.
    """
    known = [row for _, row in rows]
    side = next(iter(sides))
    counts = [len(cells.list_in(row.get(side)) or ()) for row in known]

    def fits(name: str) -> bool:
        found = [cells.list_in(row.get(name) or []) for row in known]
        # Numbers may be anything of a box, such as its area.
        is_named = name == label or name.lower() in _CLASSES
        kinds = (str, int) if is_named else (str,)
        values = [value for each in found for value in each or ()]
        is_as_long = [-1 if each is None else len(each) for each in found] == counts
        return is_as_long and bool(values) and all(isinstance(value, kinds) for value in values)

    names = dict.fromkeys(name for row in known for name in row if name not in sides)
    found = list(filter(fits, names))
    usual = [name for known in _CLASSES for name in found if name.lower() == known]
    has_tags = any(cells.is_list(row.get(label)) for row in known)  # or a list with a mistake
    others = found if len(found) == 1 and not has_tags else []
    return next(iter([label] * (label in found) + usual + others), None)


def about_sizes(columns: Sequence[ColumnSpec], cells_of: Collection[str]) -> Iterator[str]:
    """Yields a warning if columns of numbers have the names of a corner and a size of boxes.

    `cells_of` has the features of boxes, if the table has boxes.
    """
    numbers = [column.name for column in columns if column.kind != "string"]
    if (sizes := box_sides(XYWH, numbers)) and not {*BOX_FEATURES} & {*numbers, *cells_of}:
        names = ", ".join(map(repr, sizes.values()))
        yield (
            f"columns {names} of --input are plain numbers; if they are boxes in pixels, say "
            "--bbox_format xywh"
        )


def check_unit(schema: TableSchema, rows: Iterable[Row]) -> None:
    """Raises `UserError` if a table in pixels begins with boxes that are shares of the sides."""
    first = ""
    for where, row in rows if schema.bbox_format != RELATIVE else ():
        names = {feature: schema.cells_of.get(feature, feature) for feature in BOX_FEATURES}
        given = [
            convert(where, ColumnSpec(feature, "float", None), row.get(name), name)
            for feature, name in names.items()
        ]
        values = [value for of_side in given for value in of_side]
        if not all(_LEAST <= value <= _MOST for value in values):
            return
        if any(values):
            first = first or where
    if first:
        received = f"{schema.bbox_format}, but {first} and all rows near it have boxes within the "
        received += "first pixels of the picture"
        remedy = "of shares of the sides write xmin, ymin, xmax, ymax from 0 to 1, and "
        remedy += "leave " + Arg("bbox_format") + " out"
        raise invalid("bbox_format", received, "sides in pixels", remedy)


def checked_boxes(where: str, columns: dict[str, Any], schema: TableSchema) -> dict[str, Any]:
    """Checks the boxes of a row; returns its columns, with corners in place of sizes.

    Raises `UserError` if a box is reversed or has a wrong unit, or if the columns of boxes have
    different numbers of values.
    """
    # Errors name the columns of the table, not the features.
    names = {n: schema.cells_of.get(n, n) for n in columns if n.startswith(OBJECT_PREFIX)}
    if not names.keys() >= {*BOX_FEATURES}:
        return columns
    lengths = {name: len(columns[feature]) for feature, name in names.items()}
    if len({*lengths.values()}) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in lengths.items())
        problem = f"{where} has columns of boxes with different numbers of values ({counts})"
        remedy = "fix the row"
        if (label := schema.cells_of.get(BOX_CLASS_FEATURE)) is not None:
            remedy += f", or, if {label!r} does not hold the classes of boxes, say "
            remedy += Arg("drop_column", BOX_CLASS_FEATURE)
        raise UserError(problem, expected="one value of each for each box", remedy=remedy)
    if not all(map(str.strip, columns.get(BOX_CLASS_FEATURE, ()))):
        raise wrong_cell(where, names[BOX_CLASS_FEATURE], "", "a class that is not empty")
    for feature in BOX_FEATURES:
        _check_side(where, names[feature], columns[feature], schema.bbox_format)
    is_sized = schema.bbox_format == XYWH
    for low, high in _AXES:
        for begin, end in zip(columns[low], columns[high], strict=True):
            if end < (0 if is_sized else begin):
                expected = "0 or more" if is_sized else f"at least the {begin:g} of {names[low]!r}"
                raise wrong_cell(where, names[high], end, expected)
    if is_sized:
        # The features of a record are corners, so a width becomes xmax and a height becomes ymax.
        columns = columns | {
            high: [a + b for a, b in zip(columns[low], columns[high], strict=True)]
            for low, high in _AXES
        }
    return columns


def _check_side(where: str, name: str, values: Sequence[float], bbox_format: str) -> None:
    if bbox_format != RELATIVE:
        if not all(map(math.isfinite, values)):
            raise wrong_cell(where, name, [*values], "numbers of pixels")
    elif bad := [v for v in values if not _LEAST <= v <= _MOST]:
        pixels = Arg("bbox_format", PIXELS) + " or " + Arg("bbox_format", XYWH)
        problem = f"{where} has {bad[0]:g} in column {name!r}"
        expected = "0 to 1, relative to the picture"
        raise UserError(problem, expected=expected, remedy="of pixels say " + pixels)


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
    of_boxes = tuple(name for ref in refs for name in ref.box_labels)
    return first._replace(label=label, columns=columns, box_labels=of_boxes)


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
        remedy = "fix the rows, leave the column out by " + Arg("drop_column", column)
        remedy += f", or call it {OBJECT_PREFIX}{column} to keep a value for each box"
    return invalid("input", received, expected, remedy)
