"""Finds the roles and types of the columns of an image table (CSV, JSON Lines, Parquet)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from beam_pipeline.inputs.folders import matching_files
from beam_pipeline.inputs.layout import glob_root, unfit_option
from beam_pipeline.inputs.tables import boxes, cells
from beam_pipeline.inputs.tables.paths import check_found, folder_of, proposed_template
from beam_pipeline.inputs.tables.roles import ROW_NUMBERS, TableSchema
from beam_pipeline.inputs.tables.rows import (
    class_names_in,
    holds_pictures,
    whole_numbers_with_nulls,
)
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import RELATIVE, XYWH, ColumnSpec, InputOptions
from imageshards import storage
from imageshards.errors import Arg, UserError, wrong_input
from imageshards.images.options import EXTENSIONS
from imageshards.manifest import BOX_CLASS_FEATURE, BOX_FEATURES, NONE, ONE, RECORD_NAMES, SEVERAL
from imageshards.tables import Row, is_parquet, parquet_schema, read_rows
from imageshards.template import fields

# Rows from which the type of an undeclared column is inferred.
INFERENCE_ROWS = 1000
# Rows that are searched for a hint if a column is missing.
_HINT_ROWS = 100
_ZEROS_AND_ONES = {"0", "1", "0.0", "1.0", "False", "True"}
# Usual names of the column of a role, the most likely first.
_USUAL_NAMES = {
    "image": (
        "image", "path", "uri", "file", "filename", "file_name", "image_path", "image_uri", "url",
        "image_url", "img",
    ),
    "label": ("label", "class", "category"),
    "key": ("key", "id"),
    "split": ("split",),
    "group": (),
}  # fmt: skip

_USUAL_LABELS = (*_USUAL_NAMES["label"], "cls")  # WebDataset calls the label so


def table_files(path: str) -> list[str]:
    """Returns the sorted files of an image table; raises `UserError` if no file matches."""
    expected = "image tables (.csv, .jsonl, .parquet) outside of finished datasets"
    return matching_files(path, expected)


def read_schema(source: InputOptions) -> TableSchema:
    """Finds the columns' roles and types from the options, the header and the first rows.

    Raises `UserError` if a column is missing, named twice, has the name of a record feature, or a
    type that boxes cannot have; or if the bucket of the table cannot be used.
    """
    if not storage.is_local(source.input):
        storage.check_bucket(source.input, "input")
    first, *others = table_files(source.input)
    is_one = [first, *others] == [source.input]
    root = storage.parent_of(first) if is_one else glob_root(source.input)
    head: list[Row] = []
    if is_parquet(first):
        arrow = parquet_schema(first)
        types = dict(zip(arrow.names, arrow.types, strict=True))
        # NaN takes the place of null, which an integer column could not hold.
        types |= dict.fromkeys(whole_numbers_with_nulls(first, arrow), pa.float64())
        found = schema_of_rows(source, [], types)
        if found.bbox_format != RELATIVE:
            sides = [found.cells_of.get(name, name) for name in BOX_FEATURES]
            boxes.check_unit(found, itertools.islice(read_rows(first, sides), INFERENCE_ROWS))
        names = class_names_in(arrow, found.classes_from)
        found = dataclasses.replace(found, class_names=names)
    else:
        head = list(itertools.islice(read_rows(first), INFERENCE_ROWS))
        if not head:
            raise wrong_input(first, "which has no row", "a header and one row per image")
        found = schema_of_rows(source, head)
    if not found.has_pictures:
        rows = head or [*itertools.islice(read_rows(first, found.names), INFERENCE_ROWS)]
        if found.box_a_row and found.key and found.image and source.key_column is None:
            _check_keys(rows, found.image, found.key)
        wanted = [(w, {n: row.get(n) for n in found.names}) for w, row in rows[:_HINT_ROWS]]
        check_found(first, wanted, found)
    return dataclasses.replace(found, root=root)


def check_class_names(path: str, schema: TableSchema) -> None:
    """Raises `UserError` if a file of a table gives the numbers of classes other names."""
    names = class_names_in(parquet_schema(path), schema.classes_from) if is_parquet(path) else ()
    if names and names != schema.class_names:
        problem = f"whose classes {names[:5]} have other numbers than the classes of the first file"
        expected = f"the classes {schema.class_names[:5]} in every file"
        raise wrong_input(path, problem, expected, "build two datasets, and join them")


def schema_of_rows(
    source: InputOptions,
    head: Sequence[Row],
    types: Mapping[str, pa.DataType] = MappingProxyType({}),
    unused: Collection[str] = (),
) -> TableSchema:
    """Finds the columns' roles and types from the first rows, or from Arrow's types.

    `head` are the first rows of a text format, `types` the types of a Parquet file. Roles in
    `unused` get a column only if a flag names one. Raises `UserError` as `read_schema`.
    """
    names = list(types) or list(dict.fromkeys(name for _, row in head for name in row))
    table = _Table(source, names, head, types)
    sides = table.sides()
    box_a_row = bool(sides) and all(map(table.has_numbers, sides.values()))
    if source.label == NONE and not sides:
        unused = {*unused, "label"}
    named = table.role("label", is_unused=False)
    of_boxes = table.class_column(sides, named) if sides and not box_a_row else None
    roles = table.roles(unused, bool(sides), of_boxes)
    image, label = roles["image"] or "", roles["label"] or ""
    cells_of = {feature: name for feature, name in sides.items() if feature != name}
    of_boxes = of_boxes or label
    has_classes = sides and of_boxes and BOX_CLASS_FEATURE not in names
    if has_classes and BOX_CLASS_FEATURE not in source.drop_column:
        cells_of[BOX_CLASS_FEATURE] = of_boxes
    if source.label == NONE:
        roles["label"] = cells_of.get(BOX_CLASS_FEATURE)
        label = ""
        if source.label_column != roles["label"] and source.label_column is not None:
            received = f"{source.label_column!r} with " + Arg("label", NONE)
            raise invalid("label_column", received, remedy="leave one of them out")
    columns, dropped, warnings = table.features(roles, cells_of)
    found = TableSchema(
        image, label, roles["key"], roles["split"], roles["group"], columns, warnings,
        dropped, several=source.label == SEVERAL, separator=source.label_separator,
        any_path=source.allow_any_path, image_root=source.image_root,
        has_pictures=image in types and holds_pictures(types[image]),
        bbox_format=source.bbox_format, box_a_row=box_a_row, template=source.image_path or "",
        cells_of=cells_of,
    )  # fmt: skip
    boxes.check_unit(found, head)
    return found


class _Table(NamedTuple):
    """Names of a table's columns, with its first rows (text formats) or its types (Parquet)."""

    source: InputOptions
    names: Sequence[str]
    head: Sequence[Row]
    types: Mapping[str, pa.DataType]

    def features(
        self, roles: Mapping[str, str | None], cells_of: Mapping[str, str]
    ) -> tuple[tuple[ColumnSpec, ...], tuple[str, ...], tuple[str, ...]]:
        """Returns the extra columns, declared by --columns or inferred, dropped ones, warnings."""
        used, label = {*roles.values(), *self.in_template()}, roles["label"]
        values = {name: [(where, row.get(name)) for where, row in self.head] for name in self.names}
        values |= {feature: values[name] for feature, name in cells_of.items()}
        # A side with another name than its feature is replaced by the feature. A label column
        # stays, as it has a role, too.
        features = [name for name in self.names if name not in cells_of.values() or name in used]
        features += cells_of
        declared = {column.name: column for column in self.source.columns or ()}
        free = [name for name in features if name not in used and name not in declared]
        # The classes of boxes are a column, too, unless they are dropped.
        known = {*free, BOX_CLASS_FEATURE} if self.sides() and label else {*free}
        dropped = [name for name in self.source.drop_column if name in known]
        warnings: list[str] = []
        if self.source.label == ONE and label:
            warnings += _about_labels(label, values[label])
            if label != self.source.label_column and label.strip().lower() not in _USUAL_LABELS:
                text = f"column {label!r} of --input is taken as the label, as no other column is "
                warnings.append(text + "left; name one by --label_column, or say --label none")
        kinds = {n: self.types.get(cells_of.get(n, n)) for n in free if n not in dropped}
        if BOX_CLASS_FEATURE in cells_of.keys() & kinds.keys():
            # Numbers of classes become their names, so the type is text in any case.
            kinds[BOX_CLASS_FEATURE] = pa.string()
        inferred = {
            n: cells.column_of(n, values[n]) if kind is None else cells.column_of_arrow(n, kind)
            for n, kind in ({} if self.source.columns == () else kinds).items()
        }
        for spec in inferred.values():
            warnings += cells.about_commas(spec, values[spec.name])
        warnings += boxes.about_sizes([*inferred.values()], cells_of)
        found = inferred | declared
        columns = tuple(found[n] for n in dict.fromkeys([*features, *found]) if n in found)
        for column in columns:
            if column.name not in features:
                raise self.lacks("columns", column.name, features)
            if column.name in RECORD_NAMES:
                problem = f"with a column {column.name!r}, a name that records use themselves"
                raise wrong_input(self.source.input, problem, remedy="rename the column")
        boxes.check_box_columns(self.source.input, columns)
        return columns, tuple(dropped), tuple(warnings)

    def lacks(self, argument: str, column: str, names: Sequence[str]) -> UserError:
        received = f"{column!r}, but {self.source.input!r} has the columns {_quoted(names)}"
        return invalid(argument, received)

    def sides(self) -> dict[str, str]:
        """Returns the columns of the sides of boxes; {} if the table has none or none is wanted."""
        source = self.source
        sides = boxes.box_sides(source.bbox_format, self.names)
        # A side is an ordinary number if its column is dropped, or declared without the prefix.
        others = {column.name for column in source.columns or ()}.difference(BOX_FEATURES)
        others.update(source.drop_column)
        if source.columns == () or not others.isdisjoint({*sides, *sides.values()}):
            sides = {}
        if source.bbox_format != RELATIVE and not sides:
            is_sized = source.bbox_format == XYWH
            wanted = "x, y, width, height" if is_sized else "xmin, ymin, xmax, ymax"
            problem = f"has the columns {_quoted(self.names)}"
            expected = f"{wanted}, and no " + Arg("columns") + " without boxes"
            raise unfit_option("bbox_format", source.bbox_format, source.input, problem, expected)
        return sides

    def class_column(self, sides: Mapping[str, str], label: str | None) -> str | None:
        """Returns the column with a list of the classes of the boxes of each row."""
        rows: Iterable[Row] = self.head
        if self.types:
            lists = [n for n, kind in self.types.items() if pa.types.is_nested(kind)]
            wanted = dict.fromkeys([*lists, *filter(None, [label])])
            names = [name for name in wanted if not holds_pictures(self.types[name])]
            path = table_files(self.source.input)[0]
            rows = itertools.islice(read_rows(path, names), INFERENCE_ROWS)
        return boxes.class_column(rows, sides.values(), label or "")

    def has_numbers(self, name: str) -> bool:
        """Returns whether each cell of a column is one number, by its type or the first rows."""
        if self.types:
            kind = self.types[name]
            return pa.types.is_integer(kind) or pa.types.is_floating(kind)
        # Sides of boxes, as they are called here, have no missing values beside empty cells.
        found = cells.infer(BOX_FEATURES[0], [row.get(name) for _, row in self.head])
        return found.kind != "string" and found.shape == ()

    def in_template(self) -> list[str]:
        """Returns the columns in --image_path; raises `UserError` if the table lacks one."""
        found = fields(self.source.image_path) if self.source.image_path else []
        for name in found:
            if name not in self.names:
                raise self.lacks("image_path", name, self.names)
        return found

    def roles(
        self, unused: Collection[str], has_boxes: bool, of_boxes: str | None
    ) -> dict[str, str | None]:
        """Returns the column of each role, named by its flag or, unless unused, by a usual name.

        Without a usual name, the labels are the classes `of_boxes`, or else in the only other
        column, if its cells look like classes.
        """
        source = self.source
        found = {role: self.role(role, role in unused) for role in _USUAL_NAMES}
        if found["image"] is None and source.image_path is None:
            raise self.without("image")
        if found["label"] is None and source.label != NONE:
            found["label"] = of_boxes
            if not has_boxes and "key" not in unused:
                # A column `Id` may hold the class, such as the whale in a picture.
                cells_of_key = self.cells(found["key"]) if found["key"] else []
                if source.key_column is None and len({*cells_of_key}) < len(cells_of_key):
                    found["key"] = None
                found["label"] = self.only_classes(found)
            if found["label"] is None:
                raise self.without("label", {*found.values(), *self.in_template()})
        return found

    def role(self, role: str, is_unused: bool) -> str | None:
        """Returns the column of a role by its flag or a usual name; None without one."""
        source, names, types = self.source, self.names, self.types
        given: str | None = getattr(source, f"{role}_column")
        if given is None and (is_unused or (role == "image" and source.image_path is not None)):
            return None
        if (role, given) == ("key", ROW_NUMBERS):
            return ROW_NUMBERS
        if given is not None and given not in names:
            raise self.lacks(f"{role}_column", given, names)
        # A flag may give a column with a usual name to another role.
        others = {source.label_column, source.split_column, source.group_column}
        free = [name for name in names if name not in others]
        # The exact name wins over a name that differs in case or spaces; of equals, the first.
        in_any_case = {name.strip().lower(): name for name in reversed(free)}
        by_name = in_any_case | {name: name for name in free}
        found = given or next((by_name[n] for n in _USUAL_NAMES[role] if n in by_name), None)
        if role == "image" and given is None:
            # Pictures win over paths; of several columns with pictures, a usual name wins.
            named = (name for name in (found, *types) if name)
            found = next((n for n in named if holds_pictures(types.get(n))), found)
        return found

    def cells(self, name: str) -> list[Any]:
        """Returns the cells of a column in the first rows."""
        # Only the types of a Parquet file were read until now.
        rows = self.head or read_rows(table_files(self.source.input)[0], [name])
        return [row.get(name) for _, row in itertools.islice(rows, INFERENCE_ROWS)]

    def only_classes(self, roles: Mapping[str, str | None]) -> str | None:
        """Returns the only column without a role, or else of the template, that has classes."""
        free = [name for name in self.names if name not in roles.values()]
        in_template = [name for name in self.in_template() if name in free]
        others = [name for name in free if name not in in_template]
        if others and (self.source.label_separator is not None or len(others) > 1):
            return others[0] if len(others) == 1 else None
        found = [n for n in others or in_template if cells.are_classes(self.cells(n))]
        return found[0] if len(found) == 1 else None

    def without(self, role: str, used: Collection[str | None] = ()) -> UserError:
        """Returns the error for a table without a column for the image or the label."""
        expected = f"one named {' or '.join(_USUAL_NAMES[role][:2])}, or " + Arg(f"{role}_column")
        if role == "label":
            expected += ", or " + Arg("label", NONE)
        problem = f"which has no {role} column among {_quoted(self.names)}"
        return wrong_input(self.source.input, problem, expected + self.hint(role, used))

    def hint(self, role: str, used: Collection[str | None]) -> str:
        """Returns a hint from the first rows of a table that lacks a column."""
        if any(map(_is_image_name, self.names)):
            return ": its first line looks like a row, so write a header like image,label above it"
        first = table_files(self.source.input)[0]
        rows = [row for _, row in itertools.islice(self.head or read_rows(first), _HINT_ROWS)]
        values = {name: [row.get(name) for row in rows] for name in self.names}
        if role == "image":
            if template := proposed_template(folder_of(first, self.source.image_root), rows):
                return ", or " + Arg("image_path", template)
            named = [name for name, found in values.items() if any(map(_is_image_name, found))]
            return " (" + Arg("image_column", named[0]) + " holds names of images)" if named else ""
        for name, found in values.items():
            texts = {cell for cell in found if isinstance(cell, str) and name not in used}
            if separator := next((s for s in " |;," if cells.joined_by(s, texts)), ""):
                lists = Arg("label_column", name) + " " + Arg("label_separator", separator)
                return " (" + lists + " reads several labels of each image)"
        one_hot = [name for name, found in values.items() if {*map(str, found)} <= _ZEROS_AND_ONES]
        if rows and len(one_hot) > 1:
            return (
                f": {_quoted(one_hot)} hold 0 and 1 as one-hot labels do, so write the name of "
                "each row's class into one column, or lists of names and say "
                + Arg("label", SEVERAL)
            )
        return ""


def _check_keys(rows: Iterable[Row], image: str, column: str) -> None:
    """Refuses a key column that gives one image several keys, unless a flag names the column."""
    keys: dict[str, Any] = {}
    for where, row in rows:
        name, key = str(row.get(image)), row.get(column)
        if keys.setdefault(name, key) != key:
            one_record, record_a_box = Arg("key_column", image), Arg("key_column", column)
            remedy = "say " + one_record + ", or " + record_a_box + " to have a record for each box"
            more = f" of the image {name!r}, and a row above has {cells.shown(keys[name])}"
            raise cells.wrong_cell(where, column, key, "one key for each image", remedy, more)


def _about_labels(name: str, values: Sequence[tuple[str, Any]]) -> Iterator[str]:
    """Yields a warning if all labels are numbers, some with decimals, so hardly class names."""
    given = [cell for _, cell in values if cell not in (None, "")]
    decimal = next((cell for cell in given if cells.infer(name, [cell]).kind == "float"), None)
    if decimal is not None and cells.infer(name, given) == ColumnSpec(name, "float"):
        yield (
            f"column {name!r} of --input has numbers such as {decimal}, and each becomes a class; "
            "name a column of classes by --label_column: a number to be learnt is an extra column"
        )


def _is_image_name(cell: Any) -> bool:
    return isinstance(cell, str) and cell.lower().endswith(EXTENSIONS)


def _quoted(names: Sequence[str]) -> str:
    # Quotes make a space before or after a name visible.
    return ", ".join(repr(name) for name in names) or "none"
