"""Rows of CSV, JSON Lines and Parquet files, and the line where a file is damaged."""

from __future__ import annotations

import csv
import io
import json
import pathlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from beam_pipeline.inputs import manifest_rows
from beam_pipeline.inputs.manifest_rows import WHOLE, Span, parquet_schema, read_rows, spans
from imageshards import storage
from imageshards.errors import UserError
from tests.support.stores import store_uri


def rows(path: object) -> list[dict]:
    return [row for _, row in read_rows(str(path))]


def put(folder: pathlib.Path, name: str, data: str | bytes) -> pathlib.Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@given(
    st.lists(
        st.tuples(st.text(st.characters(codec="utf-8"), min_size=1), st.text(max_size=5)),
        min_size=1, max_size=6,
    ),
    st.sampled_from(["\n", "\r\n", "\r"]),
)  # fmt: skip
def test_any_text_in_a_csv_comes_back(scratch, cells, line_end):
    # NUL is left out: Python 3.10 reads none in a CSV.
    cells = [(a.replace("\0", "0"), b.replace("\0", "0")) for a, b in cells]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, quoting=csv.QUOTE_ALL, lineterminator=line_end)
    writer.writerows([("a", "b"), *cells])
    path = put(scratch, "x.csv", buffer.getvalue())
    assert rows(path) == [{"a": a, "b": b} for a, b in cells]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_what_separates_the_cells_is_told_by_the_header(tmp_path, mark):
    text = f'path{mark}label\n"a{mark}b.jpg"{mark}cat\n'
    assert rows(put(tmp_path, "x.csv", text)) == [{"path": f"a{mark}b.jpg", "label": "cat"}]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("path\tlabel\tcaption, long\na\tb\tc, d\n", ["path", "label", "caption, long"]),
        ('"path";"label, or, class"\na;b\n', ["path", "label, or, class"]),
        ('"path ""a, b, c""";label\na;b\n', ['path "a, b, c"', "label"]),
        ("path,label;x\na,b\n", ["path", "label;x"]),  # as many: commas
        ('size 5",path,a;b\n1,2,3\n', ['size 5"', "path", "a;b"]),
        ("path\na\n", ["path"]),
        ("sep=;\npath;label\na;b\n", ["path", "label"]),
        ('\ufeff"sep=\t"\r\na, b, c\td\r\n1\t2\r\n', ["a, b, c", "d"]),
        ("SEP=|\ra|b,c,d\r1|2\r", ["a", "b,c,d"]),
    ],
)
def test_what_separates_the_cells_is_what_the_header_has_most_of(tmp_path, text, columns):
    (row,) = rows(put(tmp_path, "x.csv", text))
    assert list(row) == columns


def test_lines_are_counted_from_the_one_that_names_the_separator(tmp_path):
    path = str(put(tmp_path, "x.csv", 'sep=;\na;b\n1;"2\n3"\n4;5\n'))
    assert [where for where, _ in read_rows(path)] == ["line 3", "line 5"]
    path = str(put(tmp_path, "y.csv", "sep=|\na|b\n1\n"))
    with pytest.raises(UserError, match=r"line 3 has 1 cell; expected 2 .* separated by '\|'"):
        rows(path)
    path = str(put(tmp_path, "z.csv", "sep=;\na;a\n"))
    with pytest.raises(UserError, match="line 2 names the column 'a' twice"):
        rows(path)


@given(st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=9), min_size=1), max_size=5))
def test_any_text_in_json_lines_comes_back(scratch, given_rows):
    path = put(scratch, "x.jsonl", "".join(json.dumps(row) + "\n" for row in given_rows))
    assert rows(path) == given_rows


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_numbers_are_those_an_editor_shows(tmp_path, line_end, mark):
    text = f'{mark}a,b\n1,"x\ny"\n\n2,z\n'.replace("\n", line_end)
    found = list(read_rows(str(put(tmp_path, "x.csv", text))))
    assert [(where, row["a"]) for where, row in found] == [("line 2", "1"), ("line 5", "2")]
    text = f'{mark}{{"a": 1}}\n\n{{"a": 2}}'.replace("\n", line_end)
    found = list(read_rows(str(put(tmp_path, "x.jsonl", text))))
    assert found == [("line 1", {"a": 1}), ("line 3", {"a": 2})]


def test_very_long_cells_are_read(tmp_path):
    text = "word " * 100_000
    assert rows(put(tmp_path, "x.csv", f'a,b\n1,"{text}"\n')) == [{"a": "1", "b": text}]


def test_the_row_index_of_pandas_is_left_out(tmp_path):
    assert rows(put(tmp_path, "x.csv", ",a,\n0,x,\n")) == [{"a": "x"}]
    table = pa.table({"a": ["x"], "__index_level_0__": [7]})
    parquet.write_table(table, tmp_path / "x.parquet")
    assert rows(tmp_path / "x.parquet") == [{"a": "x"}]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.csv", "a,b\n1,2\n3\n", ["line 3", "1 cell;", "expected 2"]),
        ("x.csv", "a,b\n1,2,3\n", ["line 2", "3 cells", "quotes"]),
        ("x.csv", "a,a\n1,2\n", ["line 1", "'a' twice"]),
        ("x.csv", 'a,b\n1,"x"y\n', ["line 2", "not CSV"]),
        ("x.csv", 'a,b\n1,2\n3,"open\n5,6\n', ["line 3", "not CSV"]),
        ("x.csv", b"a,b\n1,2\n3,\xff\n", ["line 3", "UTF-8"]),
        ("x.csv", "a,b\n1,2\n".encode("utf-16"), ["line 1", "UTF-8"]),
        ("x.jsonl", '{"a": 1}\n{"a": }\n', ["line 2", "not JSON", "column 7"]),
        ("x.jsonl", '{"a": 1}\n\n[1]\n', ["line 3", "not a JSON object"]),
        ("x.jsonl", "[" * 100_000, ["line 1", "not JSON"]),
        ("x.jsonl", b'{"a": 1}\n{"a": "\xe9"}\n', ["line 2", "UTF-8"]),
        ("x.parquet", "a,b\n1,2\n", ["x.parquet", "cannot be read"]),
        ("x.parquet", b"", ["x.parquet", "cannot be read"]),
        ("x.parquet", b"PAR1" + b"\0" * 50 + b"PAR1", ["x.parquet", "cannot be read"]),
    ],
)
def test_a_damaged_file_is_one_sentence_with_the_line(tmp_path, name, data, words):
    with pytest.raises(UserError) as error:
        rows(put(tmp_path, name, data))
    text = str(error.value)
    assert all(word in text for word in words), text
    assert "\n" not in text


def test_rows_before_a_damaged_one_are_read(tmp_path):
    found = read_rows(str(put(tmp_path, "x.csv", "a,b\n1,2\n3\n")))
    assert next(found) == ("line 2", {"a": "1", "b": "2"})


@pytest.mark.parametrize("name", ["none.csv", "none.jsonl", "none.parquet"])
@pytest.mark.parametrize("where", [str, store_uri])
def test_a_file_that_is_not_there_is_one_sentence(tmp_path, name, where):
    with pytest.raises(UserError, match="cannot be read") as error:
        rows(where(tmp_path / name))
    assert "\n" not in str(error.value)


def test_a_folder_and_an_unknown_store_are_one_sentence(tmp_path):
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(UserError, match="x.csv.*directory"):
        rows(tmp_path / "x.csv")
    for name in ("x.csv", "x.parquet"):
        with pytest.raises(UserError, match="cannot be read"):
            rows(f"nostore://bucket/{name}")


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.parquet"])
def test_a_store_is_read_like_a_folder(tmp_path, name):
    put(tmp_path, "x.csv", "\ufeffa,b\r\né,2\r\n")
    put(tmp_path, "x.jsonl", '{"a": "é", "b": "2"}')
    parquet.write_table(pa.table({"a": ["é"], "b": ["2"]}), tmp_path / "x.parquet")
    assert rows(store_uri(tmp_path / name)) == rows(tmp_path / name) == [{"a": "é", "b": "2"}]


def test_only_the_wanted_columns_of_a_parquet_file_are_read(tmp_path):
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"a": [1, 2], "b.c": [[1], None], "d": ["x", "y"]}), path)
    assert list(read_rows(str(path), ["b.c", "a"])) == [
        ("row 1", {"a": 1, "b.c": [1]}), ("row 2", {"a": 2, "b.c": None}),
    ]  # fmt: skip
    assert parquet_schema(str(path)).names == ["a", "b.c", "d"]


def test_row_numbers_of_parquet_go_on_across_batches(tmp_path):
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"a": list(range(2500))}), path, row_group_size=700)
    found = list(read_rows(str(path)))
    assert found[0][0] == "row 1"
    assert all(where == f"row {row['a'] + 1}" for where, row in found)


def in_spans(path: object) -> list[tuple[str, dict]]:
    """All rows, read span by span."""
    found = spans(str(path))
    assert found == sorted(set(found))
    return [(str(where), row) for span in found for where, row in read_rows(str(path), None, span)]


def whole(path: object) -> list[tuple[str, dict]]:
    return [(str(where), row) for where, row in read_rows(str(path))]


@given(
    lines=st.lists(
        st.one_of(
            st.just(""),
            st.dictionaries(st.sampled_from("ab"), st.text(max_size=9)).map(
                lambda row: json.dumps(row, ensure_ascii=False)
            ),
        ),
        max_size=12,
    ),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    mark=st.sampled_from(["", "\ufeff"]),
    closed=st.booleans(),
    size_bytes=st.integers(1, 40),
)
def test_spans_of_json_lines_are_the_whole_file(scratch, lines, line_end, mark, closed, size_bytes):
    text = mark + line_end.join(lines) + (line_end if closed else "")
    path = put(scratch, "spans.jsonl", text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_rows, "SPAN_BYTES", size_bytes)
        assert len(spans(str(path))) == max(1, -(-len(text.encode()) // size_bytes))
        assert in_spans(path) == whole(path)


@given(groups=st.lists(st.integers(1, 30), max_size=8), rows_in_span=st.integers(1, 60))
def test_spans_of_parquet_are_the_whole_file(scratch, groups, rows_in_span):
    path = scratch / "spans.parquet"
    table = pa.table({"a": list(range(sum(groups)))})
    with parquet.ParquetWriter(path, table.schema) as writer:
        begin = 0
        for count in groups:
            writer.write_table(table.slice(begin, count), row_group_size=count)
            begin += count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_rows, "SPAN_ROWS", rows_in_span)
        assert in_spans(path) == whole(path) == [(f"row {n + 1}", {"a": n}) for n in range(begin)]
        assert len(spans(str(path))) <= max(1, -(-begin // rows_in_span))


def test_a_csv_is_one_span_as_cells_may_have_line_breaks(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest_rows, "SPAN_BYTES", 4)
    path = put(tmp_path, "x.csv", 'a,b\n1,"x\n2,y\n"\n')
    assert spans(str(path)) == [WHOLE]
    assert in_spans(path) == [("line 2", {"a": "1", "b": "x\n2,y\n"})]


@pytest.mark.parametrize("where", [str, store_uri])
def test_a_damaged_line_of_a_later_span_has_the_number_an_editor_shows(tmp_path, where):
    lines = [json.dumps({"a": n}) for n in range(100)]
    lines[70] = '{"a": }'
    path = where(put(tmp_path, "x.jsonl", "\n".join(lines)))
    with pytest.raises(UserError, match=r"x.jsonl line 71 is not JSON"):
        list(read_rows(path, None, Span(400, None)))


def test_a_file_that_grows_or_shrinks_meanwhile(tmp_path):
    path = put(tmp_path, "x.jsonl", '{"a": 1}\n')
    found = spans(str(path))
    put(tmp_path, "x.jsonl", '{"a": 1}\n' * 3)
    assert len([row for span in found for row in read_rows(str(path), None, span)]) == 3
    parquet.write_table(pa.table({"a": [1] * 9}), tmp_path / "x.parquet", row_group_size=3)
    with pytest.raises(UserError, match="replaced meanwhile"):
        list(read_rows(str(tmp_path / "x.parquet"), None, Span(2, 5)))


def test_a_file_of_one_endless_line_is_not_read_by_every_span(tmp_path, monkeypatch):
    """Old Macs ended lines by CR."""
    text = "\r".join(json.dumps({"a": n}) for n in range(1000))
    path = str(put(tmp_path, "x.jsonl", text))
    read: list[int] = []
    monkeypatch.setattr(manifest_rows, "SPAN_BYTES", 1000)
    monkeypatch.setattr(storage, "open_read", lambda path: Counting(path, read))
    assert len(in_spans(path)) == 1000
    assert sum(read) < 3 * len(text)


class Counting(io.FileIO):
    """Counts what is read by the line."""

    def __init__(self, path: str, read: list[int]):
        super().__init__(path)
        self._read = read

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        self._read.append(len(line))
        return line


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_a_file_without_a_column_that_is_wanted_is_one_sentence(tmp_path, name):
    put(tmp_path, "x.csv", "a,b\n1,2\n")
    parquet.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=rf"{name} has no column 'weight', .* in every file"):
        list(read_rows(str(tmp_path / name), ["a", "weight"]))
