"""verify holds the index against the records, and names a missing, damaged or foreign one."""

from __future__ import annotations

import pytest

from imageshards.example import decode_example
from imageshards.index import IndexRows, index_file, index_table, write_index
from imageshards.verification.command import text_of, verify
from tests.support.dataset_factory import Dataset, features_of

SHARD = "train-00001-of-00003.tfrecord"
FILE = index_file(SHARD)


@pytest.fixture
def dataset(tmp_path):
    return Dataset(tmp_path / "data", index=True)


def problems_of(dataset: Dataset) -> list[str]:
    verdict = verify(str(dataset.directory), workers=1)
    assert {problem.check for problem in verdict.problems} <= {"index"}, text_of(verdict)
    return [problem.message for problem in verdict.problems]


def change_row(dataset: Dataset, column: str, value: object) -> None:
    """Another index of the second shard, named by the manifest like the right one."""
    rows = IndexRows()
    for payload in dataset.payloads[SHARD]:
        rows.add(decode_example(payload), len(payload) + 16, 1000)
    table = index_table(rows, "train", SHARD, dataset.manifest["features"])
    values = table[column].to_pylist()
    values[4] = value
    place = table.column_names.index(column)
    table = table.set_column(place, table.schema.field(column), [values])
    save_entry(dataset, write_index(str(dataset.directory), SHARD, table))


def save_entry(dataset: Dataset, entry: object) -> None:
    dataset.manifest["splits"]["train"]["shards"][1]["index"] = entry
    dataset.save()


def test_a_row_that_leads_out_of_its_shard_is_named(dataset):
    change_row(dataset, "shard", "../x")
    expected = f"{SHARD}: its {FILE} says shard '../x' in row 4, which cannot be."
    assert problems_of(dataset) == [expected]


def test_a_missing_index_is_named(dataset):
    (dataset.directory / FILE).unlink()
    assert problems_of(dataset) == [f"{SHARD}: its {FILE} is missing."]


def test_a_half_written_index_is_named(dataset):
    path = dataset.directory / FILE
    path.write_bytes(path.read_bytes()[:100])
    (message,) = problems_of(dataset)
    assert message.startswith(f"{SHARD}: its {FILE} is not the file that manifest.json names")


def test_the_index_of_another_shard_is_named(dataset):
    other = dataset.manifest["splits"]["train"]["shards"][0]["index"]["file"]
    (dataset.directory / FILE).write_bytes((dataset.directory / other).read_bytes())
    (message,) = problems_of(dataset)
    assert "is not the file that manifest.json names" in message


def test_rows_of_other_classes_and_of_one_key_twice_are_named(dataset):
    change_row(dataset, "class_name", "dog")
    verdict = verify(str(dataset.directory), workers=1)
    assert [problem.message for problem in verdict.problems] == [
        f"{SHARD}: it holds 2 records of class 'cat'; the manifest says 3.",
        f"{SHARD}: it holds 4 records of class 'dog'; the manifest says 3.",
    ]
    change_row(dataset, "key", "cat/0.jpg")
    (problem,) = verify(str(dataset.directory), workers=1).problems
    assert problem.message == (
        "The key 'cat/0.jpg' is held by 2 records: train-00000-of-00003.tfrecord, record 0; "
        f"{SHARD}, record 4."
    )


def test_rows_of_fewer_records_are_counted(dataset):
    rows = IndexRows()
    rows.add(features_of(0, 0), 100, None)
    table = index_table(rows, "train", SHARD, dataset.manifest["features"])
    save_entry(dataset, write_index(str(dataset.directory), SHARD, table))
    assert problems_of(dataset) == [f"{SHARD}: its {FILE} has 1 row; the manifest says 6 records."]


def test_files_that_are_not_listed_and_shards_without_an_index_are_named(dataset):
    save_entry(dataset, None)
    assert problems_of(dataset) == [
        f"manifest.json names no index of {SHARD}, though it does of other shards.",
        f"{FILE}: the manifest does not list it.",
    ]


def test_a_data_set_of_an_older_version_has_none(tmp_path):
    dataset = Dataset(tmp_path)
    verdict = verify(str(dataset.directory), workers=1)
    assert verdict.ok and "classes and keys were not looked at; write it by" in verdict.notes[0]
    assert verdict.not_looked_at == {"records": 5, "keys": 5}
