"""Rows of CSV, JSON Lines and Parquet files, and where a file is damaged."""

import csv
import io
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from imageshards import tables
from imageshards.tables import parts, read_rows
from tests.support.errors import refused
from tests.support.stores import store_uri


def rows(path: object) -> list[dict]:
    return [row for _, row in read_rows(str(path))]


def put(folder, name, data):
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@given(
    cells=st.lists(st.tuples(st.text(min_size=1), st.text()), min_size=1, max_size=6),
    dialect=st.fixed_dictionaries({
        "lineterminator": st.sampled_from(["\n", "\r\n", "\r"]),
        "delimiter": st.sampled_from([",", ";", "\t"]),
    }),
    mark=st.sampled_from(["", "\ufeff"]),
)  # fmt: skip
def test_what_python_writes_as_csv_comes_back(scratch, cells, dialect, mark):
    # NUL is left out: Python 3.10 reads none in a CSV.
    cells = [(a.replace("\0", "0"), b.replace("\0", "0")) for a, b in cells]
    buffer = io.StringIO(newline="")
    csv.writer(buffer, quoting=csv.QUOTE_ALL, **dialect).writerows([("a", "b"), *cells])
    path = put(scratch, "x.csv", mark + buffer.getvalue())
    assert rows(path) == [{"a": a, "b": b} for a, b in cells]


@given(
    given_rows=st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=9), min_size=1)),
    line_end=st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
    mark=st.sampled_from(["", "\ufeff"]),
    is_ascii=st.booleans(),
)
def test_what_python_writes_as_json_lines_comes_back(scratch, given_rows, line_end, mark, is_ascii):
    lines = [json.dumps(row, ensure_ascii=is_ascii) + line_end for row in given_rows]
    assert rows(put(scratch, "x.jsonl", mark + "".join(lines))) == given_rows


@given(groups=st.lists(st.integers(1, 30), max_size=8), rows_in_part=st.integers(1, 60))
def test_parts_of_a_parquet_file_are_the_whole_of_it(scratch, groups, rows_in_part):
    path = str(scratch / "parts.parquet")
    table = pa.table({"a": list(range(sum(groups)))})
    with parquet.ParquetWriter(path, table.schema) as writer:
        begin = 0
        for count in groups:
            writer.write_table(table.slice(begin, count), row_group_size=count)
            begin += count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_PART_ROWS", rows_in_part)
        found = [row for part in parts(path) for row in read_rows(path, None, part)]
        assert len(parts(path)) <= max(1, len(groups))
    assert found == list(read_rows(path))
    assert found == [(f"{path} row {n + 1}", {"a": n}) for n in range(begin)]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("path\tlabel\tcaption, long\na\tb\tc, d\n", ["path", "label", "caption, long"]),
        ('"path";"label, or, class"\na;b\n', ["path", "label, or, class"]),
        ('"path ""a, b, c""";label\na;b\n', ['path "a, b, c"', "label"]),
        ("path,label;x\na,b\n", ["path", "label;x"]),  # as many: commas
        ('size 5",path,a;b\n1,2,3\n', ['size 5"', "path", "a;b"]),
        ("path\na\n", ["path"]),
        (",a,\n0,x,\n", ["a"]),  # without a name: the row index of pandas
    ],
)
def test_the_most_frequent_separator_of_the_header_is_used(tmp_path, text, columns):
    (row,) = rows(put(tmp_path, "x.csv", text))
    assert list(row) == columns


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_numbers_are_those_an_editor_shows(tmp_path, line_end, mark):
    long = "word " * 100_000  # the csv module's own limit is 128 KiB
    for name, text, lines in (
        ("x.csv", f'a,b\n1,"{long}\ny"\n\n2,z\n', (2, 5)),
        ("x.csv", 'a;b\n1;"2\n3"\n4;5\n', (2, 4)),
        ("x.jsonl", '{"a": 1}\n\n{"a": 2}', (1, 3)),
    ):
        path = put(tmp_path, name, mark + text.replace("\n", line_end))
        assert [where for where, _ in read_rows(str(path))] == [f"{path} line {n}" for n in lines]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.csv", "a,b\n1,2\n3\n", ["line 3", "1 cell;", "expected 2"]),
        ("x.csv", "a\tb\n1\n", ["line 2 has 1 cell", "separated by tabs"]),
        ("x.csv", "a,a\n1,2\n", ["line 1", "'a' twice"]),
        ("x.csv", 'a,b\n1,2\n3,"open\n5,6\n', ["line 3", "not CSV"]),
        ("x.csv", b"a,b\n1,2\n3,\xff\n", ["line 3", "UTF-8"]),
        ("x.jsonl", '{"a": 1}\n{"a": }\n', ["line 2", "not JSON", "column 7"]),
        ("x.jsonl", '{"a": 1}\n\n[1]\n', ["line 3", "not a JSON object"]),
        ("x.jsonl", "[" * 100_000, ["line 1", "not JSON"]),
        ("x.jsonl", b'{"a": 1}\n{"a": "\xe9"}\n', ["line 2", "UTF-8"]),
        ("x.parquet", "a,b\n1,2\n", ["x.parquet", "cannot be read"]),
        ("x.parquet", b"PAR1" + b"\0" * 50 + b"PAR1", ["x.parquet", "cannot be read"]),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path, name, data, words):
    with refused(None, *words):
        rows(put(tmp_path, name, data))


@pytest.mark.parametrize("name", ["none.csv", "none.jsonl", "none.parquet", "folder.csv"])
@pytest.mark.parametrize("where", [str, store_uri, lambda path: f"nostore://bucket/{path.name}"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name, where):
    (tmp_path / "folder.csv").mkdir()
    with refused(None, "cannot be read"):
        rows(where(tmp_path / name))


def test_a_parquet_file_that_was_replaced_meanwhile_is_refused(tmp_path):
    parquet.write_table(pa.table({"a": [1] * 9}), tmp_path / "x.parquet", row_group_size=3)
    first, *_ = parts(str(tmp_path / "x.parquet"))
    parquet.write_table(pa.table({"a": [2] * 9}), tmp_path / "x.parquet", row_group_size=3)
    with refused("input", "x.parquet', which was replaced while it was read"):
        list(read_rows(str(tmp_path / "x.parquet"), None, first))


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_a_column_that_the_file_lacks_is_refused(tmp_path, name):
    put(tmp_path, "x.csv", "a,b\n1,2\n")
    table = pa.table({"a": [1], "b": [2], "__index_level_0__": [7]})  # the index of pandas
    parquet.write_table(table, tmp_path / "x.parquet")
    assert [list(row) for row in rows(tmp_path / name)] == [["a", "b"]]
    with refused("", name, "'weight'"):
        list(read_rows(str(tmp_path / name), ["a", "weight"]))
