"""Types told from cells, and cells checked against types."""

import contextlib
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.inputs.tables import cells as cells_module
from beam_pipeline.inputs.tables.cells import column_of, column_of_arrow, convert, infer, labels_in
from beam_pipeline.options import ColumnSpec
from tests.support.errors import refused

INT, FLOAT, STRING = (ColumnSpec("c", kind) for kind in ("int", "float", "string"))
INTS, FLOATS, STRINGS = (ColumnSpec("c", kind, None) for kind in ("int", "float", "string"))
PAIR = ColumnSpec("c", "float", (2,))

# Column → cells, as a CSV has them (text) or as JSON does.
INFERRED: list[tuple[ColumnSpec, list[list[Any]]]] = [
    (INT, [["1", "-20", "0"], [" 1", "2 "], [True, False], ["16777217", ""], [-16777217, None],
           ["9223372036854775807", "-9223372036854775808"]]),
    (FLOAT, [["1", "2.5"], ["1e5", "-2E-3", ".5", "3."], ["1.5", "nan", "-inf"], [1, 2.5],
             [1.0, 2.0], ["1", "", "3"], [1, 2, None], [True, None], ["16777216", " "],
             ["1", "N/A"], ["NA", "2.5", "n/a", "null", "None", "NULL", " - ", "#N/A", "<NA>"],
             [1, "N/A"], [None, 0.5, "null"], [1, math.nan]]),
    (STRING, [["007", "012"], ["1", "007"], ["+4917012345"], ["1_000"], ["٣"], ["0x1f"],
              ["9223372036854775808"], ["9" * 5000], ["1", "a"], ["", ""], ["true", "False"],
              ["2020-01-01"], ["[laughs] well", "no"], ["[1]", "a caption"], ["[CLS] a"],
              [True, 1.5], ["a", None], [2**63], [None], [], [{"a": 1}], ["N/A", "-", ""],
              ["N/A", "1", "b"], ["none", "a"], ["--", "1"]]),
    (INTS, [["[1, 2]", "[]"], ["[1, 2]", ""], ["[1, 2]", "3"], [[1, 2], [3]], [[1], 2]]),
    (FLOATS, [["[1, 2.5]"], [[0.5], []]]),
    (STRINGS, [['["a", "b c"]'], ["[]", "[]"], [["a"], []]]),
]  # fmt: skip


@pytest.mark.parametrize(("column", "cells"), [(of, row) for of, rows in INFERRED for row in rows])
def test_a_column_is_the_narrowest_type_that_fits(column, cells):
    assert infer("c", cells) == column


@pytest.mark.parametrize(
    ("column", "cell", "expected"),
    [
        (INT, "7", 7), (INT, " 007 ", 7), (INT, "3.0", 3), (INT, 3.0, 3), (INT, True, 1),
        (INT, -(2**63), -(2**63)),
        (FLOAT, "1e5", 1e5), (FLOAT, 3, 3.0), (FLOAT, "inf", math.inf), (FLOAT, True, 1.0),
        (STRING, "007", "007"), (STRING, "", ""), (STRING, None, ""), (STRING, "[1]", "[1]"),
        (STRING, " a,\n\"b\" ", " a,\n\"b\" "),
        (INTS, "[1, 2]", [1, 2]), (INTS, "1 2\t3", [1, 2, 3]), (INTS, "", []), (INTS, None, []),
        (INTS, 5, [5]), (INTS, [], []),
        (FLOATS, [1, 2.5], [1.0, 2.5]),
        (STRINGS, "a 12 b", ["a", "12", "b"]),
        (STRINGS, "12", ["12"]),
        (STRINGS, "[CLS] a [SEP]", ["[CLS]", "a", "[SEP]"]),
        (STRINGS, '["a b", ""]', ["a b", ""]),
        (PAIR, "[1, 2]", [1.0, 2.0]),
        (PAIR, "0.5 1", [0.5, 1.0]),
        (PAIR, (1, 2), [1.0, 2.0]),
    ],
)  # fmt: skip
def test_cells_become_values_of_their_column(column, cell, expected):
    value = convert("row 1", column, cell)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        (INT, ""), (INT, None), (INT, "x"), (INT, "1.5"), (INT, 1.5), (INT, 2**63), (INT, "1_0"),
        (INT, [1]), (INT, {}), (INT, math.nan), (INT, math.inf), (INT, "9" * 5000), (INT, "٣"),
        (INT, "N/A"), (FLOAT, "x"), (FLOAT, []), (FLOAT, 1e39), (FLOAT, 10**400),
        (FLOAT, "1e400"), (FLOAT, "1e39"),
        (STRING, 1), (STRING, ["a"]), (STRING, "\ud800"), (STRING, b"a"),
        (INTS, "[1, null]"), (INTS, "1 x"), (INTS, [[1]]), (INTS, [1.5]), (INTS, "[1"),
        (STRINGS, [1]), (STRINGS, ["a", None]), (STRINGS, ["\udcff"]), (STRINGS, {"a": 1}),
        (PAIR, "1"), (PAIR, [1, 2, 3]), (PAIR, None), (PAIR, []), (PAIR, "N/A"), (FLOATS, "N/A"),
        (FLOATS, [1.0, None]),
    ],
)  # fmt: skip
def test_cells_of_the_wrong_type_are_refused(column, cell):
    with refused("", "row 1", "'c'") as error:
        convert("row 1", column, cell)
    said = str(error.value)
    assert len(said) < 300
    assert (f"c:{column.kind}[]" in said) == (column.shape != () and cell in (None, ""))
    said.encode()


@pytest.mark.parametrize("cell", [None, "", "N/A", "n/a", "null", "None", "-", "nan", math.nan])
def test_a_missing_value_is_nan_in_floats_and_an_error_with_the_remedy_elsewhere(cell):
    assert math.isnan(convert("row 1", FLOAT, cell))
    with refused("", "columns='c:float'"):
        convert("row 1", INT, cell)


_NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(width=32))


@given(st.lists(_NUMBERS, min_size=1), st.booleans())
def test_numbers_in_text_get_the_type_that_arrow_infers(values, as_lists):
    values = [[value] for value in values] if as_lists else values
    texts = list(map(json.dumps, values))
    column = infer("c", texts)
    try:
        assert column == column_of_arrow("c", pa.array(values).type)
    except pa.ArrowInvalid:  # too large an integer beside a float
        assert column.kind == "float"
    of_texts, of_values = ([convert("", column, cell) for cell in of] for of in (texts, values))
    assert repr(of_texts) == repr(of_values)


# Without e, as 1e99 is a float, but none of 32 bits, and refused with its row.
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="eE"), max_size=5)


@given(st.lists(_TEXT, min_size=1))
def test_cells_fit_the_type_that_is_inferred_from_them(cells):
    column = infer("c", cells)
    for cell in cells:
        if cell.strip() or column.kind != "int":  # float32 does not hold each integer
            convert("", column, cell)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.int8(), INT), (pa.uint64(), INT), (pa.bool_(), INT),
        (pa.float16(), FLOAT), (pa.float64(), FLOAT),
        (pa.string(), STRING), (pa.large_string(), STRING), (pa.null(), STRING),
        (pa.dictionary(pa.int8(), pa.string()), STRING),
        (pa.list_(pa.int64()), INTS), (pa.large_list(pa.float32()), FLOATS),
        (pa.list_(pa.dictionary(pa.int8(), pa.string())), STRINGS),
        (pa.list_(pa.float32(), 2), PAIR),
        (pa.struct([("x", pa.int64())]), None), (pa.list_(pa.list_(pa.int64())), None),
        (pa.timestamp("s"), None), (pa.decimal128(5, 2), None), (pa.binary(), None),
        (pa.map_(pa.string(), pa.int64()), None), (pa.list_(pa.struct([("x", pa.int8())])), None),
    ],
    ids=str,
)  # fmt: skip
def test_arrow_types_are_taken_as_they_are_or_refused_by_name(kind, expected):
    with contextlib.nullcontext() if expected else refused("input", "drop_column='c'"):
        assert column_of_arrow("c", kind) == expected


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([7] * 8 + ["old"], ["row 8 has 'old'", "'c'", "such as 7"]),
        (["old", "young", 7, "old"], ["row 2 has 7", "such as 'old'"]),
        ([[1], [2], ["a"]], ["row 2 has ['a']", "such as [1]"]),
        (["[1, 2]", "[3]", "[4, "], ["row 2 has '[4, '"]),
    ],
)
def test_a_column_of_two_types_names_the_row_that_does_not_fit(cells, words):
    with refused("", *words):
        column_of("c", [(f"row {n}", cell) for n, cell in enumerate(cells)])
    caption = [("row", cell) for cell in ("[1]", "a", "b", None, "")]  # may read like a list
    assert column_of("c", caption) == STRING


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["0,5", "1,25"], "0,5"), (["1", "", "-2,5 ", "3.5"], "-2,5"), (["1", "2"], None),
        (["0.5"], None), (["0,5", "a"], None), (["0,5,7"], None), (["4, 8"], None),
        (["007,5"], None), (["[0,5]"], None), ([None, ""], None), ([0.5, None], None),
        (["0,5", "N/A"], "0,5"), (["1", "N/A"], None), (["225,890", "0,5"], "225,890"),
    ],
)  # fmt: skip
def test_a_decimal_comma_is_warned_of_where_it_alone_makes_text(cells, expected):
    warnings = list(cells_module.about_commas(infer("c", cells), [("row", cell) for cell in cells]))
    assert len(warnings) == (expected is not None)
    assert all(f"values such as '{expected}' have a decimal" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("cells", "shown", "numbers"),
    [
        (["225,890", "99"], "225,890", "write 225890, or 225.890 if"),
        (["$3", "1,225,890.5"], "1,225,890.5", "write 1225890.5"),
        (["$225890", "7"], "$225890", "number alone (225890)"), (["12 %"], "12 %", "alone (12)"),
        (["€ 1,500", ""], "€ 1,500", "write 1500, or 1.500 if"),
        (["0,500 €"], "0,500 €", "decimal points (0.500)"),
        (["p1"], "", ""), (["$", "%"], "", ""), (["$a"], "", ""), (["1,2,3"], "", ""),
        (["12", "a"], "", ""), (["007"], "", ""), (["1,23,456"], "", ""),
    ],
)  # fmt: skip
def test_numbers_that_are_text_for_signs_and_commas_are_warned_of(cells, shown, numbers):
    """No remedy divides a number by a thousand that may have separated digits."""
    warnings = list(cells_module.about_commas(infer("c", cells), [("row", cell) for cell in cells]))
    assert len(warnings) == bool(shown)
    assert all(repr(shown) in each and numbers in each for each in warnings)


@pytest.mark.parametrize(
    ("cell", "separator", "expected"),
    [
        (["b", "a", " b "], None, ["b", "a", "b"]), ([], None, []), (None, None, []),
        ("", None, []), ('["b", "a b"]', None, ["b", "a b"]), (" [] ", None, []),
        ([10, "2"], None, ["10", "2"]), ("b|a b| b ", "|", ["b", "a b", "b"]),
        ("|a||", "|", ["a"]), (" ", "|", []), ("a", "|", ["a"]), ("a, b", ", ", ["a", "b"]),
        (["a|b"], "|", ["a|b"]), (7, "|", ["7"]), (None, "|", []), ("[a", "|", ["[a"]),
        (math.nan, None, []), ([2.0, -0.0, 1e6, True], None, ["2", "0", "1000000", "true"]),
    ],
)  # fmt: skip
def test_labels_are_those_of_a_list_or_between_separators_in_their_order(cell, separator, expected):
    assert labels_in(cell, separator) == expected


@pytest.mark.parametrize(
    ("cell", "separator"),
    [("a", None), (7, None), (True, None), (["a", None], None), (["a", ""], None), ([1.5], None),
     ([["a"]], None), ({"a": 1}, None), ("[1", None), ('["a"]', "|"), ("[]", "|"), (1.5, "|")],
)  # fmt: skip
def test_cells_without_labels_are_refused(cell, separator):
    with pytest.raises(ValueError):
        labels_in(cell, separator)
