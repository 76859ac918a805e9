import json
import pathlib
import tarfile
import zipfile
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from imageshards.errors import naming_flags
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused
from tests.support.served_models import card
from trainer.serving.pictures import pictures_of_input, pictures_of_split

ROWS = [{"id_code": f"00{i}", "set": "x", "age": i} for i in range(3)]


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Pictures below test/x/, of which each has its own bytes, and tables of them."""
    (tmp_path / "test" / "x").mkdir(parents=True)
    for row in ROWS:
        name = f"{row['id_code']}.png"
        (tmp_path / "test" / "x" / name).write_bytes(str(row["age"]).encode())
    lines = [",".join(map(str, row.values())) for row in ROWS]
    text = "\n".join(["id_code,set,age", *lines, ""])
    (tmp_path / "t.csv").write_text(text, "utf-8-sig")
    (tmp_path / "semicolons.csv").write_text(text.replace(",", ";").replace("\n", "\r\n"))
    (tmp_path / "t.tsv").write_text(text.replace(",", "\t"))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "t.parquet")
    paths = [f"test/x/{row['id_code']}.png,{row['id_code']}" for row in ROWS]
    (tmp_path / "paths.csv").write_text("\n".join(["file,id", *paths]))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for path in sorted((tmp_path / "test").rglob("*.png")):
            packed.write(path, f"x/{path.name}")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "test", ".")
    return tmp_path


def read(pictures: Any) -> dict[str, bytes]:
    return {key: pictures.read(i) for i, key in enumerate(pictures.keys)}


TEMPLATE = "test/{set}/{id_code}.png"
BY_PATH = {f"x/00{i}.png": b"%d" % i for i in range(3)}


@pytest.mark.parametrize(
    ("name", "image_path", "key_column", "key_name", "expected"),
    [
        *((name, "test/x/{id_code}.png", None, "id_code", {f"00{i}": b"%d" % i for i in range(3)})
          for name in ("t.csv", "semicolons.csv", "t.tsv", "t.jsonl", "t.parquet")),
        ("t.csv", TEMPLATE, None, "key", {f"test/{k}": v for k, v in BY_PATH.items()}),
        ("t.csv", TEMPLATE, "age", "age", {str(i): b"%d" % i for i in range(3)}),
        ("paths.csv", None, None, "id", {f"00{i}": b"%d" % i for i in range(3)}),
        ("a.zip", None, None, "key", BY_PATH),
        ("a.tar", None, None, "key", BY_PATH),
        ("test", None, None, "key", BY_PATH),
        ("test/x/*1.png", None, None, "key", {"test/x/001.png": b"1"}),
        ("test/x/001.png", None, None, "key", {"test/x/001.png": b"1"}),
    ],
)  # fmt: skip
def test_every_input_gives_keys_and_bytes_in_order(
    folder, monkeypatch, name, image_path, key_column, key_name, expected
):
    monkeypatch.chdir(folder)
    found = pictures_of_input(name, image_path, key_column)
    assert (found.key_name, list(read(found).items())) == (key_name, list(expected.items()))
    again = pictures_of_input(name, image_path, key_column)
    assert again.identity == found.identity


def test_columns_of_a_table_are_read_with_its_pictures(folder):
    found = pictures_of_input(str(folder / "t.csv"), TEMPLATE, None)
    assert found.column_names == {"id_code", "set", "age"} and found.columns(2)["age"] == "2"
    (folder / "t.csv").write_text("id_code,set,age\n001,x,1\n,x,2\n")
    found = pictures_of_input(str(folder / "t.csv"), TEMPLATE, None)
    with pytest.raises(ValueError, match="no set or no id_code"):
        found.read(1)


def test_records_of_a_split_are_read_in_the_order_of_its_index(tmp_path):
    made = Dataset(tmp_path, {"test": 2, "train": 1}, per_shard=3)
    found = pictures_of_split(card(), str(tmp_path), None, None)
    assert found.keys == [f"{('cat', 'dog')[i % 2]}/{i}.jpg" for i in range(6)]
    assert all(found.read(i) in made.payloads[made.splits["test"][i // 3]][i % 3] for i in range(6))
    both = pictures_of_split(card(), str(tmp_path), None, "train,test")
    assert len(both.keys) == 9 and both.identity != found.identity


@pytest.mark.parametrize(
    ("text", "image_path", "key_column", "argument", "word"),
    [
        ("id,age\n1,2\n", None, None, "input", "--image_path 'test/{id}.jpg'"),
        ("id,age\n1,2\n", "{name}.jpg", None, "image_path", "columns among id, age"),
        ("id,age\n1,2\n", "{id}.jpg", "name", "key_column", "columns among id, age"),
        ("id,age\n1,2\n", "id.jpg", None, "image_path", "columns of the table in braces"),
        ("id,age\n1,2,3\n", "{id}.jpg", None, "", "line 2 has 3 cells; expected 2"),
        ("id,id\n1,2\n", "{id}.jpg", None, "", "names the column 'id' twice"),
        ("id,age\n", "{id}.jpg", None, "input", "no row"),
        ("id,age\n1,2\n3,4\n", "x/{id}.jpg", None, "input", "2 pictures none exists"),
        ("id\n\xff", "{id}.jpg", None, "input", "line 2 is not UTF-8"),
    ],
)
def test_wrong_tables_are_refused_in_a_sentence(
    tmp_path, text, image_path, key_column, argument, word
):
    (tmp_path / "t.csv").write_text(text, "latin-1")
    with naming_flags(), refused(argument, word):
        pictures_of_input(str(tmp_path / "t.csv"), image_path, key_column)


@pytest.mark.parametrize(
    ("name", "word"),
    [("none.csv", "cannot be read"), ("none.zip", "cannot be read"), ("a.tgz", "a .tar or a .zip")],
)
def test_absent_and_packed_inputs_are_refused(tmp_path, name, word):
    with refused("input", word):
        pictures_of_input(str(tmp_path / name), None, None)
    with refused("image_path", "which is no table") if "csv" not in name else refused("input"):
        pictures_of_input(str(tmp_path / name), "{id}.jpg", None)
