"""Images are left out by their keys, classes renamed, and one image is taken for each key."""

from __future__ import annotations

import json
import pathlib
import tempfile

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.inputs.selection import (
    SelectImages,
    check_class_map,
    read_keys,
    share_keys,
)
from beam_pipeline.planning.refs import ImageRef, RefBatch
from imageshards.errors import UserError, user_error_in
from tests.support.dataset_factory import Dataset


def refs(names: str, source: int = 0) -> list[ImageRef]:
    """References to `a1 b2` …: a class and a number."""
    return [ImageRef(name, f"/in{source}/{name}", name[0], source=source) for name in names.split()]


def write_json(rows: list, path: pathlib.Path) -> None:
    path.write_text(json.dumps(rows))


def selected(*batches: list[ImageRef], **asked) -> tuple[list, list]:
    """Sorted [class, key, input] and the counts of what a selection leaves."""
    with tempfile.TemporaryDirectory() as folder:
        pipeline = beam.Pipeline("FnApiRunner")
        made = pipeline | beam.Create([RefBatch(batch) for batch in batches])
        out = made | SelectImages(**asked)
        rows = out.batches | beam.FlatMap(lambda b: [(r.label, r.key, r.source) for r in b.refs])
        skipped = out.skipped | beam.Flatten(pipeline=pipeline)
        paths = [pathlib.Path(folder, name) for name in ("rows", "skipped")]
        for found, path in zip((rows, skipped), paths, strict=True):
            (
                found
                | f"List {path.name}" >> beam.combiners.ToList()
                | path.name >> beam.Map(write_json, path)
            )
        pipeline.run().wait_until_finish()
        kept, left_out = (json.loads(path.read_text()) for path in paths)
    return sorted(map(tuple, kept)), left_out


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.txt"

    def of(text: str):
        path.write_text(text)
        return share_keys(str(path), str(tmp_path))

    return of


def test_images_are_left_out_and_counted(keys):
    rows, skipped = selected(refs("a1 a2 b1"), refs("b2"), excluded=keys("a2\nb2\n"))
    assert [key for _, key, _ in rows] == ["a1", "b1"]
    assert sum(each["excluded"] for each in skipped) == 2


def test_keys_that_no_input_has_end_the_build(keys):
    with pytest.raises(Exception) as error:
        selected(refs("a1 a2"), excluded=keys("a2\nx9\nx7\n"))
    said = str(user_error_in(error.value))
    assert "2 of 3 keys" in said and "'x7'" in said and "keys.txt" in said


def test_classes_are_renamed_and_joined():
    rows, _ = selected(refs("a1 b1 c1"), class_map={"a": "pet", "b": "pet"})
    assert rows == [("c", "c1", 0), ("pet", "a1", 0), ("pet", "b1", 0)]


def test_an_unknown_class_is_told_with_those_of_similar_names():
    with pytest.raises(UserError, match="'dgo', which no --input has; expected one of 'dog', …"):
        check_class_map(["cat", "dog"], {"dgo": "pet"})


def test_keys_are_read_from_lines_parquet_an_index_and_a_data_set(tmp_path):
    made = Dataset(tmp_path / "a")
    every = read_keys(str(made.directory))
    assert len(every) == 30 and every == sorted(every)
    assert read_keys(str(made.directory / "index")) == every
    pq.write_table(pa.table({"key": ["b", "a", "b"], "other": [1, 2, 3]}), tmp_path / "k.parquet")
    assert read_keys(str(tmp_path / "k.parquet")) == ["a", "b"]
    (tmp_path / "keys.txt").write_bytes("\ufeffcat/ü 1.jpg\r\n\r\n#2\n".encode())
    assert read_keys(str(tmp_path / "keys.txt")) == ["#2", "cat/ü 1.jpg"]
    odd = ["a\x0bb", "a\x85b", "a\u2028b", "a\rb"]
    (tmp_path / "odd.txt").write_bytes("\n".join(odd).encode())
    assert read_keys(str(tmp_path / "odd.txt")) == sorted(odd)


def write_table(path: pathlib.Path) -> None:
    pq.write_table(pa.table({"name": ["a"]}), path)


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("absent.txt", lambda path: None, "cannot be read"),
        ("empty.txt", lambda path: path.write_text("\n"), "names no key"),
        ("bytes.txt", lambda path: path.write_bytes(b"\xff\xfe"), "cannot be read"),
        ("half.parquet", lambda path: path.write_bytes(b"PAR1"), "no column 'key'"),
        ("other.parquet", write_table, "no column 'key'"),
    ],
)
def test_a_file_that_names_no_keys_is_told(tmp_path, name, write, words):
    write(tmp_path / name)
    with pytest.raises(UserError, match=f"--exclude .*{name}'.* {words}.*expected"):
        read_keys(str(tmp_path / name))
