"""Image tables (CSV, JSON Lines, Parquet): the roles of their columns, and rows → `ImageRef`s."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
import unicodedata
import urllib.parse
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from beam_pipeline.inputs import pictures
from beam_pipeline.inputs.folders import Skipped, matching_files
from beam_pipeline.inputs.table_cells import (
    about_commas,
    box_sides,
    cell_text,
    check_box_columns,
    check_boxes,
    column_of,
    column_of_arrow,
    convert,
    infer,
    is_list,
    is_number_in_each,
    labels_in,
    shown,
    wrong_cell,
)
from beam_pipeline.inputs.table_rows import Row, is_parquet, parquet_schema, read_rows, row_key
from beam_pipeline.options import RELATIVE, XYWH, ColumnSpec, InputOptions, is_split_name
from beam_pipeline.planning.refs import MISSING, ImageRef, Label, names_of
from imageshards import storage
from imageshards.errors import UserError
from imageshards.images.options import EXTENSIONS
from imageshards.manifest import (
    BOX_CLASS_FEATURE,
    BOX_FEATURES,
    NONE,
    OBJECT_PREFIX,
    ONE,
    RECORD_NAMES,
    SEVERAL,
)
from imageshards.storage import is_local
from imageshards.text import composed, printable

# Rows from which the type of an undeclared column is inferred.
INFERENCE_ROWS = 1000

# Rows from which a hint is taken where a column is missing.
_HINT_ROWS = 100
_ZEROS_AND_ONES = {"0", "1", "0.0", "1.0", "False", "True"}

# Reason to name a table whose paths have backslashes.
BACKSLASHES = "backslashes"
# In place of a key column: rows are numbered.
ROW_NUMBERS = "none"
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)

# An address of a store or a web server. Any other text is a path of this machine.
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

# What columns of a role are mostly called.
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


@dataclasses.dataclass(frozen=True)
class TableSchema:
    """What each column of an image table is for.

    Attributes:
        image, label: Columns of the image path and of the class name or names; the latter is ""
            where images have none.
        key, split, group: Columns of these, if there are any.
        columns: Extra columns, which become features.
        warnings: What a person should hear of the columns, in sentences.
        several: Whether images have several labels, in lists or texts.
        separator: What is between those of a text.
        any_path: Whether rows may name files outside of the folder of their table.
        class_names: Classes that numbers in the label column stand for; empty where a number is the
            name of a class.
        has_pictures: Whether the image column of a Parquet file holds pictures, not paths.
        bbox_format: How the sides of boxes are written.
        box_a_row: Whether each row holds one box, so that the rows of an image become one record.
        cells_of: Extra column → column of the table that holds its cells, where the names differ.
    """

    image: str
    label: str
    key: str | None
    split: str | None
    group: str | None
    columns: tuple[ColumnSpec, ...]
    warnings: tuple[str, ...] = ()
    several: bool = False
    separator: str | None = None
    any_path: bool = False
    class_names: tuple[str, ...] = ()
    has_pictures: bool = False
    bbox_format: str = RELATIVE
    box_a_row: bool = False
    cells_of: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """All columns that are read, each once."""
        key = None if self.key == ROW_NUMBERS else self.key
        roles = (self.image, self.label, key, self.split, self.group)
        return list(dict.fromkeys([*filter(None, roles), *map(self.column_of, self.columns)]))

    def column_of(self, column: ColumnSpec) -> str:
        """The name of an extra column in the table."""
        return self.cells_of.get(column.name, column.name)


def table_files(path: str) -> list[str]:
    """The files of an image table: the path itself, or those that match a glob, ordered by path.

    Raises:
        UserError: None matches.
    """
    names = matching_files(path)
    if names:
        return names
    raise UserError(
        f"--input {path!r} matches no file; expected image tables (.csv, .jsonl, .parquet) outside "
        "of finished data sets: fix the pattern."
    )


def read_schema(source: InputOptions) -> TableSchema:
    """Finds the columns' roles and types from the options, the header and the first rows.

    Raises:
        UserError: A column is missing, named twice, has the name of a record feature, or a
            type that boxes cannot have; or its bucket cannot be used.
    """
    if not is_local(source.input):
        storage.check_bucket(source.input, "--input")
    first = table_files(source.input)[0]
    if is_parquet(first):
        found = _parquet_table(source, first)
    else:
        head = list(itertools.islice(read_rows(first), INFERENCE_ROWS))
        if not head:
            raise UserError(
                f"--input {first!r} has no row; expected a header and one row per image."
            )
        found = schema_of_rows(source, head)
    if found.box_a_row and found.key and source.key_column is None and not found.has_pictures:
        _check_keys(first, found.image, found.key)
    return found


def _parquet_table(source: InputOptions, path: str) -> TableSchema:
    arrow = parquet_schema(path)
    types = dict(zip(arrow.names, arrow.types, strict=True))
    found = schema_of_rows(source, [], types)
    if not found.has_pictures:
        return found
    return dataclasses.replace(found, class_names=pictures.class_names(arrow, found.label))


def schema_of_rows(
    source: InputOptions,
    head: Sequence[Row],
    types: Mapping[str, pa.DataType] = MappingProxyType({}),
    unused: Collection[str] = (),
) -> TableSchema:
    """Finds the columns' roles and types from the first rows, or from the types of Arrow.

    Args:
        source: The input.
        head: The first rows.
        types: Of a Parquet file, which is not read for this.
        unused: Roles for which no column is looked for, unless a flag names one.

    Raises:
        UserError: As `read_schema`.
    """
    names = list(types) or list(dict.fromkeys(name for _, row in head for name in row))
    sides = _sides(source, names)
    box_a_row = bool(sides) and all(_are_numbers(name, head, types) for name in sides.values())
    unused = {*unused, *(["label"] if source.label == NONE and not box_a_row else [])}
    roles = {
        role: _role(source, names, role, types, head)
        if role not in unused or getattr(source, f"{role}_column") is not None
        else None
        for role in _USUAL_NAMES
    }
    image, label = roles["image"] or "", roles["label"] or ""
    cells = {name: [(where, row.get(name)) for where, row in head] for name in names}
    cells_of = {feature: name for feature, name in sides.items() if feature != name}
    if box_a_row and _is_class_of_box(source, label, names, head, types):
        cells_of[BOX_CLASS_FEATURE] = label
    if source.label == NONE:
        roles["label"] = cells_of.get(BOX_CLASS_FEATURE)
        label = ""
        if source.label_column != roles["label"] and source.label_column is not None:
            raise UserError("--label_column was given with --label none; leave one of them out.")
    features = [name for name in names if name not in cells_of.values() or name in roles.values()]
    features += cells_of
    cells |= {feature: cells[name] for feature, name in cells_of.items()}
    columns = source.columns
    if columns is None:
        others = [name for name in features if name not in roles.values()]
        kinds = {name: types.get(cells_of.get(name, name)) for name in others}
        if BOX_CLASS_FEATURE in cells_of:
            kinds[BOX_CLASS_FEATURE] = pa.string()  # a number names a class, too
        columns = tuple(
            column_of(name, cells[name]) if kind is None else column_of_arrow(name, kind)
            for name, kind in kinds.items()
        )
    _check_columns(source, features, columns)
    taken = {image, label, *roles.values(), *(cells_of.get(c.name, c.name) for c in columns)}
    warnings = list(_about_labels(label, cells[label])) if source.label == ONE else []
    inferred = columns if source.columns is None else ()
    warnings += [each for column in inferred for each in about_commas(column, cells[column.name])]
    if columns and (left_out := [name for name in names if name not in taken]):
        warnings.append(
            f"--columns leaves out {_quoted(left_out)} of --input; name what is to stay"
        )
    return TableSchema(
        image, label, roles["key"], roles["split"], roles["group"], columns,
        warnings=tuple(warnings),
        several=source.label == SEVERAL, separator=source.label_separator,
        any_path=source.allow_any_path,
        has_pictures=image in types and pictures.holds_pictures(types[image]),
        bbox_format=source.bbox_format, box_a_row=box_a_row, cells_of=cells_of,
    )  # fmt: skip


def _sides(source: InputOptions, names: Sequence[str]) -> dict[str, str]:
    """The columns of the sides of boxes; {} if the table has none, or --columns names none."""
    declared = None if source.columns is None else {column.name for column in source.columns}
    sides = box_sides(source.bbox_format, names)
    if declared is not None and declared.isdisjoint(BOX_FEATURES):
        sides = {}
    if source.bbox_format != RELATIVE and not sides:
        wanted = "x, y, width, height" if source.bbox_format == XYWH else "xmin, ymin, xmax, ymax"
        raise UserError(
            f"--bbox_format received {source.bbox_format}, but --input {source.input!r} has the "
            f"columns {_quoted(names)}; expected {wanted}, and no --columns without boxes."
        )
    return sides


def _are_numbers(name: str, head: Sequence[Row], types: Mapping[str, pa.DataType]) -> bool:
    """Whether each cell of a column is one number, as far as the types or the first rows show."""
    if types:
        return pa.types.is_integer(types[name]) or pa.types.is_floating(types[name])
    return is_number_in_each([row.get(name) for _, row in head])


def _is_class_of_box(
    source: InputOptions,
    label: str,
    names: Sequence[str],
    head: Sequence[Row],
    types: Mapping[str, pa.DataType],
) -> bool:
    """Whether the label column of a table with one box a row holds one class, that of the box."""
    if not label or BOX_CLASS_FEATURE in names or source.label_separator:
        return False
    is_nested = label in types and pa.types.is_nested(types[label])
    return not is_nested and not any(is_list(row.get(label)) for _, row in head)


def _check_keys(path: str, image: str, column: str) -> None:
    """Refuses a column of keys that tells the boxes of one image apart, unless a flag names it."""
    keys: dict[str, Any] = {}
    for where, row in itertools.islice(read_rows(path, [image, column]), INFERENCE_ROWS):
        name, key = str(row.get(image)), row.get(column)
        if keys.setdefault(name, key) != key:
            raise UserError(
                f"{where} has {shown(key)} in column {column!r} of the image {name!r}, and a row "
                f"above has {shown(keys[name])}; expected one key for each image: say "
                f"--key_column {image}, or --key_column {column} to have a record for each box."
            )


def _about_labels(name: str, cells: Sequence[tuple[str, Any]]) -> Iterator[str]:
    """A warning of labels that all are numbers, some with decimals: hardly names of classes."""
    given = [cell for _, cell in cells if cell not in (None, "")]
    if infer(name, given) == ColumnSpec(name, "float"):
        decimal = next(cell for cell in given if infer(name, [cell]).kind == "float")
        yield (
            f"column {name!r} of --input has numbers such as {decimal}, and each becomes a class; "
            "name a column of classes by --label_column: a number to be learnt is an extra column"
        )


def _role(
    source: InputOptions,
    names: Sequence[str],
    role: str,
    types: Mapping[str, pa.DataType],
    head: Sequence[Row],
) -> str | None:
    """The column of a role: the one that its flag names, or one of a usual name."""
    given: str | None = getattr(source, f"{role}_column")
    if given is not None and given not in names and (role, given) != ("key", ROW_NUMBERS):
        raise UserError(
            f"--{role}_column received {given!r}, but {source.input!r} has the columns "
            f"{_quoted(names)}."
        )
    usual = _USUAL_NAMES[role]
    in_any_case = {name.strip().lower(): name for name in reversed(names)}
    by_name = in_any_case | {name: name for name in names}
    if role == "key" and given == ROW_NUMBERS:
        return ROW_NUMBERS
    found = given or next((by_name[name] for name in usual if name in by_name), None)
    if role == "image" and given is None:
        with_pictures = (n for n in (found, *types) if n and pictures.holds_pictures(types.get(n)))
        found = next(with_pictures, found)
    if found is None and (role == "image" or (role == "label" and source.label != NONE)):
        other = ", or --label none" if role == "label" else ""
        raise UserError(
            f"--input {source.input!r} has no {role} column among {_quoted(names)}; expected one "
            f"named {' or '.join(usual[:2])}, or --{role}_column{other}"
            f"{_hint(source, head, names, role)}."
        )
    return found


def _hint(source: InputOptions, head: Sequence[Row], names: Sequence[str], role: str) -> str:
    """What the first rows of a table say about a column of a role that it seems to lack."""
    first = head or read_rows(table_files(source.input)[0])  # of Parquet, only types were read
    rows = [row for _, row in itertools.islice(first, _HINT_ROWS)]
    cells = {name: [row.get(name) for row in rows] for name in names}
    with_names = [name for name in names if any(map(_is_image_name, cells[name]))]
    if any(map(_is_image_name, names)):
        return ": its first line looks like a row, so write a header such as image,label above it"
    if role == "image" and with_names:
        return f" (--image_column {with_names[0]!r} holds names of images)"
    one_hot = [name for name in names if {*map(str, cells[name])} <= _ZEROS_AND_ONES]
    if role == "label" and rows and len(one_hot) > 1:
        return (
            f": {_quoted(one_hot)} hold 0 and 1 as one-hot labels do, so write the name of each "
            "row's class into one column, or a list of names and say --label several"
        )
    return ""


def _is_image_name(cell: Any) -> bool:
    return isinstance(cell, str) and cell.lower().endswith(EXTENSIONS)


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
        if column.name in RECORD_NAMES:
            raise UserError(
                f"--input {source.input!r} has a column {column.name!r}, a name that records use "
                "themselves; rename the column."
            )
    check_box_columns(source.input, columns)


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
            yield row_to_ref(where, row, schema, ref)
        return
    has_backslashes = False
    for where, row in read_rows(path, schema.names, row_groups):
        image = _text(where, row, schema.image)
        ref = _place(where, folder, image, schema.any_path)
        if ref.key != image and not has_backslashes:
            has_backslashes = True
            yield Skipped(BACKSLASHES, printable(path))
        yield row_to_ref(where, row, schema, ref)


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
    told = f"--input has {shown(one)} and {shown(other)} in column {column!r} of the image {key!r}"
    if column == schema.label:
        return UserError(
            f"{told}; expected one label for each image: say --label several, which takes the "
            "classes of all its boxes, or --label none."
        )
    return UserError(
        f"{told}; expected one value in all rows of an image: fix the rows, leave the column out "
        f"by --columns, or call it {OBJECT_PREFIX}{column} to keep a value for each box."
    )


def _place(where: str, folder: str, image: str, any_path: bool) -> ImageRef:
    """A reference to a row's image, with the path in the row as its key.

    Systems store é as one character (NFC) or as e and an accent (NFD), whatever the table has.
    Windows writes paths with backslashes, which elsewhere are characters of a name.
    """
    normal = () if image.isascii() else (unicodedata.normalize(f, image) for f in ("NFC", "NFD"))
    forms = [(image, form) for form in (image, *normal)]
    if "\\" in image and not _ADDRESS.match(image):
        slashed = image.replace("\\", "/")
        forms.append((slashed, slashed))
    missing = ImageRef(image, _uri(where, folder, image, any_path), None, mtime_ns=MISSING)
    for key, form in forms:
        uri = _uri(where, folder, form, any_path)
        size_bytes, mtime_ns = _stat(uri)
        if mtime_ns != MISSING:
            return ImageRef(key, uri, None, size_bytes=size_bytes, mtime_ns=mtime_ns)
    return missing


def _uri(where: str, folder: str, image: str, any_path: bool) -> str:
    """The absolute path or the address of a row's image.

    Raises:
        UserError: Its path leads out of the table's folder, and rows may not name `any_path`. Who
            wrote the table could otherwise copy any file of this machine into `quarantine/`.
    """
    path = image
    if image.lower().startswith("file:///"):  # Beam has no file system of that name
        path = urllib.parse.unquote(image[len("file://") :])
    elif _ADDRESS.match(image):
        return image
    elif not is_local(folder) and not os.path.isabs(image):
        return storage.join(folder, image)
    # `..` is resolved before the system follows a symbolic link, so that what is checked is opened.
    path = os.path.normpath(os.path.join(folder, path))
    if any_path or (is_local(folder) and _is_below(path, folder)):
        return path
    raise UserError(
        f"{where} names the image {shown(image)}, which is {path!r}, outside of the table's folder "
        f"{folder!r}; expected a path below that folder, or an address: move the table above its "
        "images, or, if you trust the table, say --allow_any_path."
    )


def _is_below(path: str, folder: str) -> bool:
    """Whether a path is below a folder, which it may name with or without symbolic links."""
    return any(
        path.startswith(root.rstrip("/") + "/") for root in (folder, os.path.realpath(folder))
    )


def _stat(uri: str) -> tuple[int, int]:
    if not is_local(uri):
        return -1, 0
    try:
        status = os.stat(uri)
    # Any of these is quarantined with the reason when it is read.
    except (FileNotFoundError, NotADirectoryError):
        return -1, MISSING
    except (OSError, ValueError):
        return -1, 0
    return status.st_size, status.st_mtime_ns


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
            remedy = "say --label several, or name another column by --label_column"
            raise wrong_cell(where, schema.label, cell, "one class, a text", remedy)
        if isinstance(cell, float) and not (cell.is_integer() or math.isnan(cell)):
            expected = "the name of a class, a text or a whole number"
            remedy = (
                "name another column by --label_column, or, to learn a quantity, say --label none "
                f"--columns {schema.label}:float and train with --target {schema.label}"
            )
            raise wrong_cell(where, schema.label, cell, expected, remedy)
        return _class_of(where, _text(where, row, schema.label), schema)
    try:
        labels = labels_in(cell, schema.separator)
        return tuple(sorted({_class_of(where, label, schema) for label in labels}))
    except ValueError:
        expected, remedy = 'a list of labels as in ["a", "b"]', "of text say the --label_separator"
        if schema.separator is not None:
            expected = f"labels with {schema.separator!r} between them"
            remedy = "of lists leave --label_separator out"
        raise wrong_cell(where, schema.label, cell, expected, f"fix the row; {remedy}") from None


def _class_of(where: str, label: str, schema: TableSchema) -> str:
    """The class of a label, without spaces around it; numbers stand for classes with names."""
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
    if name not in row and column.shape is not None:
        raise UserError(
            f"{where} has no column {name!r}; expected it in every row: fix the row, or "
            "leave the column out by --columns."
        )
    named = column if name == column.name else dataclasses.replace(column, name=name)
    return convert(where, named, row.get(name))
