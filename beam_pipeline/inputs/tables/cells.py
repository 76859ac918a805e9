"""Infers the types of an image table's columns from their cells; checks and converts cells.

CSV has only text. A CSV column is numeric if every non-empty cell is a number in its usual
spelling: `7`, `-0.5`, `1e5`, `nan`, `inf`. `007`, `+49170` and integers beyond 64 bits are
identifiers and stay text. Cells with JSON lists (`[1, 2]`) make a column of variable length. `true`
and `false` of JSON and Parquet become 1 and 0. A missing value of a float column is NaN: an empty
cell, or a cell like `N/A` among numbers. Columns of bounding boxes hold one value per box.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from beam_pipeline.option_texts import invalid
from beam_pipeline.options import ColumnSpec
from imageshards.errors import Arg, UserError
from imageshards.manifest import (
    BOX_CLASS_FEATURE,
    BOX_FEATURES,
    BOX_LABEL_FEATURE,
    OBJECT_PREFIX,
)
from imageshards.text import printable, shortened

_INT = re.compile(r"-?(?:0|[1-9]\d*)", re.ASCII)
_FLOAT = re.compile(
    r"-?(?:(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|inf|infinity|nan)",
    re.ASCII | re.IGNORECASE,
)
# Signs around a number, and a number whose digits are in groups of three.
_SIGNS = "$€£¥₹₩₽₺¢% \t\u00a0"
_THOUSANDS = re.compile(r"-?[1-9]\d{0,2}(,\d{3})+(\.\d*)?", re.ASCII)
# Doubles below this limit round to a finite float32.
_FLOAT32_END = (2.0 - 2.0**-24) * 2.0**127
# Float32 holds every whole number up to this one.
MAX_WHOLE_FLOAT32 = 2**24
# Texts that people and programs write for a missing number, in lower case.
_MISSING = frozenset({"", "nan", "n/a", "#n/a", "na", "<na>", "null", "none", "-"})
# How many names must have a separator to be several labels.
_FEW_NAMES = 3
# How a list is written in a cell of a CSV file, where the cell is in quotes.
_AS_LIST = 'a list is written [1, 2] or ["a", "b"]'
_ARROW_KINDS = (
    (pa.types.is_integer, "int"), (pa.types.is_boolean, "int"), (pa.types.is_floating, "float"),
    (pa.types.is_string, "string"), (pa.types.is_large_string, "string"),
    (pa.types.is_null, "string"),
)  # fmt: skip
# What the trainer reads of boxes → its type.
_BOX_KINDS = dict.fromkeys(BOX_FEATURES, "float") | {
    BOX_CLASS_FEATURE: "string", BOX_LABEL_FEATURE: "int",
}  # fmt: skip


def column_of(name: str, cells: Sequence[tuple[str, Any]]) -> ColumnSpec:
    """Returns the column for (location, cell) pairs; names a row whose cell has another type."""
    column = infer(name, [cell for _, cell in cells])
    if column.kind != "string":
        return with_box_type(column)
    given = [(where, cell, _form(cell)) for where, cell in cells if cell not in (None, "")]
    ((usual, _),) = Counter(form for *_, form in given).most_common(1) or [("", 0)]
    for where, cell, form in given:
        if form == usual or (usual == "text" and isinstance(cell, str)):
            continue  # a caption may be "[1]"
        example = next(each for _, each, its_form in given if its_form == usual)
        expected = "one type in a column"
        if "list" in usual and isinstance(cell, str):
            expected += f" ({_AS_LIST})"
        declared = Arg("columns", f"{name}:string")
        remedy = "fix the row, declare the type by " + declared + " or leave the column out by "
        remedy += Arg("drop_column", name)
        more = f", where most rows have values such as {shown(example)}"
        raise wrong_cell(where, name, cell, expected, remedy, more)
    return with_box_type(column)


def infer(name: str, cells: Sequence[Any]) -> ColumnSpec:
    """Infers a column's type from its cells: int, else float, else string; lists vary in length.

    Whole numbers with missing cells are floats, unless float32 would round them.
    """
    given = [cell for cell in map(_parse_cell, cells) if cell is not None]
    lists = sum(isinstance(cell, list) for cell in given)
    flat = [v for cell in given for v in (cell if isinstance(cell, list) else [cell])]
    # Boxes have no missing values: an image without boxes has empty lists.
    may_miss = not lists and not name.startswith(OBJECT_PREFIX)
    if may_miss:
        flat = [value for value in flat if not is_missing(value) or isinstance(value, float)]
    if flat and all(isinstance(v, int) and -(2**63) <= v < 2**63 for v in flat):
        is_exact = max(map(abs, flat)) <= MAX_WHOLE_FLOAT32
        kind = "float" if may_miss and len(flat) < len(cells) and is_exact else "int"
    elif any(isinstance(v, float) for v in flat) and all(type(v) in (int, float) for v in flat):
        kind = "float"
    else:
        kind = "string"
    # A column of strings has lists only if all cells are lists: a single caption may be "[1]".
    variable = lists and (kind != "string" or lists == len(given))
    return ColumnSpec(name, kind, None if variable else ())


def is_missing(cell: Any) -> bool:
    """Returns whether a cell has no number: it is empty, NaN, `N/A`, `null` or the like."""
    if isinstance(cell, str):
        return cell.strip().lower() in _MISSING
    return cell is None or cell != cell


def is_missing_mark(cell: Any) -> bool:
    """Returns whether a cell is a text like `N/A`: missing, but neither empty nor a number."""
    return isinstance(cell, str) and is_missing(cell) and isinstance(_parse_cell(cell), str)


def may_be_missing(column: ColumnSpec) -> bool:
    """Returns whether missing values of a column become NaN: floats, no lists or boxes."""
    is_float = column.kind == "float" and column.shape == ()
    return is_float and not column.name.startswith(OBJECT_PREFIX)


def _form(cell: Any) -> str:
    value = _parse_cell(cell)
    if isinstance(value, list):
        return "list of texts" if all(isinstance(v, str) for v in value) else "list of numbers"
    return "text" if isinstance(cell, str) else "number"


def _parse_cell(cell: Any) -> Any:
    """Returns a text cell as number, list, text or None, and any typed cell unchanged."""
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if text == "":
        return None
    if text[0] == "[":
        found = _json_list(text)
        return cell if found is None else found
    if _INT.fullmatch(text):
        # An int64 has at most 20 characters. 2**63 marks a longer integer as no int64, without the
        # cost of converting thousands of digits.
        return int(text) if len(text) <= 20 else 2**63
    return float(text) if _FLOAT.fullmatch(text) else cell


def list_in(cell: Any) -> list[Any] | None:
    """Returns the list in a cell, also of a text such as `[1, 2]`; None for other cells."""
    found = _parse_cell(cell)
    return found if isinstance(found, list) else None


def is_list(cell: Any) -> bool:
    return list_in(cell) is not None


def _json_list(text: str) -> list[Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def column_of_arrow(name: str, kind: pa.DataType) -> ColumnSpec:
    """Returns the column for an Arrow type; raises `UserError` if records cannot hold the type."""
    types = pa.types
    shape: tuple[int, ...] | None = ()
    value = kind
    if types.is_fixed_size_list(kind):
        shape, value = (kind.list_size,), kind.value_type
    elif types.is_list(kind) or types.is_large_list(kind):
        shape, value = None, kind.value_type
    value = value.value_type if types.is_dictionary(value) else value
    for is_of, kind_name in _ARROW_KINDS:
        if is_of(value):
            return with_box_type(ColumnSpec(name, kind_name, shape))
    received = f"the column {name!r} of type {kind}"
    remedy = "cast it, or leave it out by " + Arg("drop_column", name)
    raise invalid("input", received, "int, float, string or lists of them", remedy)


def convert(where: str, column: ColumnSpec, cell: Any, name: str = "") -> Any:
    """Converts a cell to its column's type: a scalar or a list.

    Text in a list column is a JSON list or values separated by spaces. A missing string becomes "",
    a missing float NaN, a missing list of variable length []. `name` is the column's name in the
    table, if it differs. Raises `UserError` if the cell does not fit the type or length.
    """
    if is_missing(cell) and may_be_missing(column):
        return math.nan
    try:
        if column.shape == ():
            return _scalar(column.kind, "" if cell is None and column.kind == "string" else cell)
        if isinstance(cell, str):
            found = _json_list(cell.strip())
            elements: Sequence[Any] = cell.split() if found is None else found
        else:
            elements = cell if isinstance(cell, list | tuple) else [] if cell is None else [cell]
        values = [_scalar(column.kind, value) for value in elements]
        if column.shape is None or len(values) == column.shape[0]:
            return values
    except ValueError:
        pass  # the error below also covers a wrong length
    expected = column.kind
    remedy = "fix the row, or declare another type by " + Arg("columns")
    if column.shape != ():
        expected += f" x {column.shape[0] if column.shape else 'any number'}"
        if isinstance(cell, str):
            expected += f" ({_AS_LIST})"
        if cell in (None, ""):
            remedy = remedy + f" ({column.name}:{column.kind}[] if values may be missing)"
    elif column.kind == "int" and is_missing(cell) and not column.name.startswith(OBJECT_PREFIX):
        declared = Arg("columns", f"{column.name}:float")
        remedy = "fix the row, or say " + declared + ", where missing values are NaN"
    raise wrong_cell(where, name or column.name, cell, expected, remedy)


def labels_in(cell: Any, separator: str | None) -> list[str]:
    """Returns the labels of a cell, which is a list or a text with a separator, in their order.

    An empty cell has no label. Without a separator, a text must be a JSON list. Raises `ValueError`
    if the cell is neither, or a label is empty.
    """
    names = cell if isinstance(cell, list) else None
    if names is None:
        text = (cell_text(cell) or "").strip()
        if not text:
            return []
        names = _json_list(text)
        if separator is not None and names is None:
            return _parts(text, separator)
        if separator is not None or names is None:
            raise ValueError("a text in place of a list, or the other way round")
    texts = list(map(cell_text, names))
    if None in texts:
        raise ValueError("an empty label")
    return [str(text).strip() for text in texts]


def cell_text(cell: Any) -> str | None:
    """Returns the text for a cell of any format; None for an empty cell (null, NaN, "")."""
    if cell is None or cell == "" or cell != cell:
        return None
    if isinstance(cell, bool):  # as in JSON: `true`, `false`
        return json.dumps(cell)
    # pandas makes floats of integers if some are missing, so whole floats lose their decimal point.
    text = str(int(cell)) if isinstance(cell, float) and cell.is_integer() else cell
    if not isinstance(text, str | int) or printable(str(text)) != str(text):
        raise ValueError("not text")
    return str(text)


def split_labels(text: str, separator: str) -> tuple[str, ...]:
    """Returns the labels between separators, without spaces around them, sorted, each once."""
    return tuple(sorted({*_parts(text, separator)}))


def _parts(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]


def wrong_cell(
    where: str,
    column: str | None,
    cell: Any,
    expected: str,
    remedy: str = "fix the row",
    more: str = "",
) -> UserError:
    return UserError(
        f"{where} has {shown(cell)} in column {column!r}{more}", expected=expected, remedy=remedy
    )


def _scalar(kind: str, value: Any) -> int | float | str:
    if kind == "string":
        if not isinstance(value, str) or printable(value) != value:
            raise ValueError("not text")
        return value
    if isinstance(value, str):
        # Python also reads 1_000 and non-ASCII digits as numbers, unlike most programs.
        text = value
        if "_" in text or not text.isascii():
            raise ValueError("not a number")
        try:
            value = int(text)
        except ValueError:
            value = float(text)
            if math.isinf(value) and "inf" not in text.lower():
                raise ValueError("beyond float64") from None
    if not isinstance(value, int | float):
        raise ValueError("not a number")
    if kind == "float":
        if _FLOAT32_END <= abs(value) < math.inf:
            raise ValueError("beyond float32")
        return float(value)
    if not -(2**63) <= value < 2**63 or value != int(value):
        raise ValueError("not int64")
    return int(value)


def about_commas(column: ColumnSpec, cells: Sequence[tuple[str, Any]]) -> Iterator[str]:
    """Yields a warning if a column is text only because its numbers have commas or signs."""
    texts = [cell for _, cell in cells if isinstance(cell, str)]
    bare = [text.strip(_SIGNS) for text in texts]
    with_commas = [text for text in bare if "," in text]
    are_thousands = bool(with_commas) and all(map(_THOUSANDS.fullmatch, with_commas))
    plain = [text.replace(",", "" if are_thousands else ".") for text in bare]
    found = zip(texts, bare, plain, strict=True)
    odds = (each for each in found if ("," in each[1] if with_commas else each[0] != each[2]))
    odd, one, number = next(odds, ("", "", ""))
    if not odd or column.kind != "string" or infer(column.name, plain).kind == "string":
        return
    has, remedy = "signs beside a number", f"write the number alone ({number})"
    if with_commas:
        has, remedy = "a decimal comma", f"write decimal points ({number})"
    if are_thousands:
        has, remedy = "commas between digits", f"write {number}"
        if one.count(",") == 1 and "." not in one:
            remedy += f", or {one.replace(',', '.')} if that is meant"
    yield (
        f"column {column.name!r} of --input is taken as text, as values such as {odd.strip()!r} "
        f"have {has}; to have numbers, {remedy}"
    )


def joined_by(separator: str, names: Iterable[str]) -> list[str]:
    """Returns names that seem to be several labels, because their parts occur in other names."""
    joined = sorted(name for name in names if separator in name.strip(separator))
    parts = Counter(p.strip() for name in joined for p in set(name.split(separator)))
    repeated = sum(count for count in parts.values() if count > 1)
    return joined if len(joined) >= _FEW_NAMES and 2 * repeated >= parts.total() else []


def are_classes(cells: Sequence[Any]) -> bool:
    """Returns whether cells look like classes: numbers from 0 or 1 on, or few texts that repeat."""
    given = [str(cell).strip() for cell in cells if cell not in (None, "")]
    column, distinct = infer("", cells), {*given}
    if column.kind == "float" or column.shape != () or len(distinct) == len(given):
        return False
    if column.kind == "int":
        least = min(map(int, distinct))
        return least in (0, 1) and {*map(int, distinct)} == {*range(least, least + len(distinct))}
    is_sentence = any(" " in text for text in distinct) and 2 * len(distinct) > len(given)
    return not is_sentence and not any(joined_by(separator, distinct) for separator in " |;,")


def shown(cell: Any) -> str:
    return shortened(repr(cell), 80)


def with_box_type(column: ColumnSpec) -> ColumnSpec:
    """Returns a column of boxes with variable length, and any different column unchanged."""
    if not column.name.startswith(OBJECT_PREFIX):
        return column
    # Images have different numbers of boxes, so the length varies.
    kind = _BOX_KINDS.get(column.name, column.kind)
    return dataclasses.replace(column, kind=kind, shape=None)
