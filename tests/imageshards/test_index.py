import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imageshards import index
from imageshards.errors import IndexDamageError
from imageshards.example import Values
from imageshards.index import IndexRows
from imageshards.manifest import RECORD_FEATURES, FeatureSpec, IndexFile, Shard, Split
from tests.support.dataset_factory import features_of
from tests.support.errors import refused
from tests.support.manifests import blank

SHARD = "train-00000-of-00001.tfrecord"
FEATURES = RECORD_FEATURES | {
    "age": FeatureSpec("int64", ()),
    "width": FeatureSpec("float32", ()),
    "place": FeatureSpec("float32", (2,)),
    "note": FeatureSpec("string", ()),
    "boxes": FeatureSpec("float32", None),
    "sides": FeatureSpec("int64", (2, 8)),
    "vector": FeatureSpec("float32", (17,)),
    "parts": FeatureSpec("string", None),
    "tokens": FeatureSpec("int64", None),
}
FOREIGN = pa.table({"key": ["a"] * 3, "x": [1] * 3})


def rows_of_three():
    rows = IndexRows()
    for number in range(3):
        extra: dict[str, Values] = {
            "age": [number], "width": [number / 2], "place": [1.0, float(number)],
            "note": [(b"short", b"\xff", b"x" * 300)[number]],
            "boxes": [0.5] * number, "vector": [0.0] * 17,
            "sides": [*range(16)], "parts": [b"ear", b"leg"][:number], "tokens": [1] * 40 * number,
        }  # fmt: skip
        rows.add(features_of(number, number % 2) | extra, 100 + number, 5000 + number)
    return rows


def table(rows):
    return index.index_table(rows, "train", SHARD, FEATURES)


def manifest(entry, num_records=3):
    shard = Shard(SHARD, num_records, 303 if num_records else 0, "0" * 64, {}, entry)
    return blank(splits={"train": Split(num_records, [shard])}, classes=["cat"], features=FEATURES)


@pytest.fixture
def written(tmp_path):
    return tmp_path, index.write_index(str(tmp_path), SHARD, table(rows_of_three()))


def test_an_index_has_the_fixed_columns_and_then_small_extra_columns():
    found = table(rows_of_three()).to_pydict()
    extra = ["age", "note", "parts", "place", "sides", "tokens", "extra/width"]
    assert list(found) == [*index.COLUMNS, *extra]
    sha256 = found.pop("source_sha256")
    assert found == {
        "key": ["cat/0.jpg", "dog/1.jpg", "cat/2.jpg"], "split": ["train"] * 3,
        "class_name": ["cat", "dog", "cat"], "label": [0, 1, 0],
        "shard": [SHARD] * 3, "record": [0, 1, 2],
        "offset": [0, 100, 201], "num_bytes": [100, 101, 102],
        "source_bytes": [5000, 5001, 5002], "width": [16] * 3, "height": [16] * 3,
        "age": [0, 1, 2],
        "note": ["short", None, None],  # no UTF-8, and more than 256 bytes
        "place": [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]],
        "sides": [[*range(16)]] * 3,  # 16 values, and no more
        "parts": [[], ["ear"], ["ear", "leg"]],
        "tokens": [[], [1] * 40, None],  # 64 values, and no more
        "extra/width": [0.0, 0.5, 1.0],
    }  # fmt: skip
    assert {len(digits) for digits in sha256} == {64}


def test_moved_rows_get_new_places(written):
    directory, entry = written
    (shard,) = manifest(entry).splits["train"].shards
    read = index.read_shard_index(str(directory), shard)
    assert index.encode_index(SHARD, index.moved_rows(read, SHARD))[0] == entry
    more = pa.concat_tables([read, read.take([2])])
    found = index.moved_rows(more, "train-00001-of-00002.tfrecord").to_pydict()
    assert set(found["shard"]) == {"train-00001-of-00002.tfrecord"}
    assert found["record"] == [0, 1, 2, 3] and found["age"] == [0, 1, 2, 2]
    assert found["key"] == ["cat/0.jpg", "dog/1.jpg", "cat/2.jpg", "cat/2.jpg"]
    assert found["offset"] == [0, 100, 201, 303]


def test_equal_rows_give_equal_bytes_that_any_parquet_reader_opens(written, tmp_path):
    directory, entry = written
    assert entry.file == "index/train-00000-of-00001.parquet"
    assert entry.num_bytes == (directory / entry.file).stat().st_size
    assert index.write_index(str(tmp_path / "b"), SHARD, table(rows_of_three())) == entry
    assert pq.read_table(directory / entry.file).to_pydict() == table(rows_of_three()).to_pydict()


def test_reading_returns_all_or_some_columns_and_no_rows_of_an_empty_shard(written):
    directory, entry = written
    found = index.read_index(str(directory), manifest(entry))
    assert found.schema.equals(index.index_schema(FEATURES))
    assert found.equals(table(rows_of_three()))
    some = index.read_index(str(directory), manifest(entry), "train", ["place", "key"])
    assert some.column_names == ["place", "key"]
    entry = index.write_index(str(directory), SHARD, table(IndexRows()))
    assert index.read_index(str(directory), manifest(entry, 0)).num_rows == 0


@pytest.mark.parametrize(
    ("damage", "is_named", "said"),
    [
        (lambda path: pq.write_table(table(IndexRows()), path), True, "has 0 rows; the manifest"),
        (lambda path: path.write_bytes(b"PAR1" * 10), False, "its bytes differ"),
        (lambda path: path.unlink(), False, "is missing"),
        (lambda path: pq.write_table(FOREIGN, path), True, "lacks the columns of an index"),
    ],
)
def test_a_replaced_or_damaged_index_is_refused_with_a_remedy(written, damage, is_named, said):
    directory, entry = written
    path = directory / entry.file
    damage(path)
    if is_named:
        data = path.read_bytes()
        entry = IndexFile(entry.file, len(data), hashlib.sha256(data).hexdigest())
    with pytest.raises(IndexDamageError, match=f"{said}.*--overwrite"):
        index.read_index(str(directory), manifest(entry))


def with_column(rows, column, values):
    return rows.set_column(rows.column_names.index(column), rows.schema.field(column), [values])


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("shard", "../x"), ("offset", -1), ("offset", 2**62), ("offset", 202), ("num_bytes", 15),
        ("record", -1), ("record", 3), ("key", None), ("source_sha256", "../x"),
    ],
)  # fmt: skip
def test_a_row_that_leads_out_of_its_shard_is_refused(tmp_path, column, value):
    rows = table(rows_of_three())
    rows = with_column(rows, column, [*rows[column].to_pylist()[:2], value])
    entry = index.write_index(str(tmp_path), SHARD, rows)
    with pytest.raises(IndexDamageError, match=f"(has|not say) .*{column}.*; expected the file"):
        index.read_index(str(tmp_path), manifest(entry))


def test_sizes_whose_sum_overflows_are_refused(tmp_path):
    rows = table(rows_of_three())
    sizes = np.array([2**63 - 1, 2**63 - 1, 305])
    assert sizes.sum() == 303  # as the manifest says
    for column, values in (("num_bytes", sizes), ("offset", np.cumsum(sizes) - sizes)):
        rows = with_column(rows, column, values)
    entry = index.write_index(str(tmp_path), SHARD, rows)
    with pytest.raises(IndexDamageError, match="has num_bytes that do not match the records"):
        index.read_index(str(tmp_path), manifest(entry))


def test_unknown_splits_and_columns_are_named(written):
    directory, entry = written
    with refused("split", "'test'", "train"):
        index.read_index(str(directory), manifest(entry), "test")
    with refused("columns", "'size'"):
        index.read_index(str(directory), manifest(entry), columns=["size"])
    found = index.read_index(str(directory), manifest(entry), "training", ["key", "label", "key"])
    assert found.column_names == ["key", "label"] and found.num_rows


ROWS = 3000
REPEATED = pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), ["k" * 1_000_000])
PREFIXES = pa.array(["k" * 1_000_000 + str(i) for i in range(100)])
BOMBS: dict[
    str, tuple[dict[str, Any], dict[str, Any], int]
] = {  # columns, options of the writer, and the number of rows in the manifest
    "rows": ({"label": np.zeros(10_000_000, np.int64)}, {}, 1),
    "rows as the manifest says": ({"label": np.zeros(10_000_000, np.int64)}, {}, 10_000_000),
    "a repeated text": ({"key": REPEATED}, {}, ROWS),
    "texts in a list": ({"parts": pa.ListArray.from_arrays([0, ROWS], REPEATED)}, {}, 1),
    "values in a list": ({"tokens": pa.array([np.zeros(10_000_000, np.int64)])}, {}, 1),
    "a long text": ({"note": pa.array(["x" * 50_000_000])}, {"use_dictionary": False}, 1),
    "a footer that lies": ({"note": pa.array(["x" * 50_000_000])}, {"use_dictionary": False}, 1),
    "shared beginnings": (
        {"key": PREFIXES},
        {"use_dictionary": False, "column_encoding": {"key": "DELTA_BYTE_ARRAY"}},
        100,
    ),
}


def varint(number, length=0):
    """A number as Thrift writes it, in at least so many bytes."""
    bits, found = 2 * number, bytearray()
    while bits or len(found) < length:
        found.append(bits & 0x7F | 0x80)
        bits >>= 7
    found[-1] &= 0x7F
    return bytes(found)


@pytest.mark.parametrize("name", BOMBS)
def test_few_bytes_that_stand_for_many_take_no_memory(tmp_path, name):
    columns, options, num_records = BOMBS[name]
    (column,) = columns
    rows = pa.table(columns | {"num_bytes": pa.array([16] * len(columns[column]), pa.int64())})
    path = tmp_path / "index" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(rows, path, compression="zstd", store_schema=False, **options)
    data = path.read_bytes()
    if name == "a footer that lies":
        size = pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size
        said = varint(size)
        assert data.count(said) == 1
        data = data.replace(said, varint(100, len(said)))
        path.write_bytes(data)
        assert pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size == 100
    entry = IndexFile("index/a.parquet", len(data), hashlib.sha256(data).hexdigest())
    shard = Shard(SHARD, num_records, 16 * num_records, "0" * 64, {}, entry)
    del rows
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        schema = pa.schema([index.index_schema(FEATURES).field(column)])
        with pytest.raises(IndexDamageError, match="rows|too large|encoding") as caught:
            index.read_shard_index(str(tmp_path), shard, schema)
    finally:
        pa.set_memory_pool(before)
    assert len(data) < 500_000 and (pool.max_memory() or 0) < 8_000_000
    assert str(caught.value).startswith("directory received")


def test_a_null_among_the_names_of_a_record_is_refused(tmp_path):
    label = FeatureSpec("int64", None)
    features = {"image/class/labels": label, "image/class/text": FeatureSpec("string", None)}
    rows = rows_of_three()
    rows.columns["label"] = [[0], [], [0, 1]]
    rows.columns["class_name"] = [["cat"], [], [None, "dog"]]
    found = index.index_table(rows, "train", SHARD, features, "several")
    entry = index.write_index(str(tmp_path), SHARD, found)
    shard = Shard(SHARD, 3, 303, "0" * 64, {}, entry)
    with pytest.raises(IndexDamageError, match="does not say the class_name of each record"):
        index.read_shard_index(str(tmp_path), shard)
