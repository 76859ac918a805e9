"""Class counts from the index: the same as by reading the records, which then stay unread."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from imageshards.errors import UserError
from imageshards.example import decode_example
from imageshards.tfrecord import scan_file
from tests.support.dataset_factory import Dataset
from trainer.dataset.counting import class_counts
from trainer.dataset.index import indexed_class_counts
from trainer.dataset.manifest import load_manifest
from trainer.dataset.spec import DataSet, Split

CLASSES = ("cat", "dog", "elk")
EXTRA = {
    "age": {"dtype": "float32", "shape": []},
    "year": {"dtype": "int64", "shape": []},
    "place": {"dtype": "string", "shape": []},
    "width": {"dtype": "int64", "shape": []},
    "note": {"dtype": "string", "shape": []},
}
FILTERS = [
    (),
    ("year>=3",),
    ("age==0.1",),
    ("age!=0.1", "year<9"),
    ("age<=0.5",),
    ("place==Žilina",),
    ("place!=Žilina", "image/class/text!=dog"),
    ("image/class/label>0",),
    ("image/width<16",),
    ("width==101",),
    ("image/filename==cat/0.jpg",),
    ("year>=-9223372036854775808",),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> pathlib.Path:
    dataset = Dataset(tmp_path_factory.mktemp("data") / "set", classes=CLASSES, index=True)
    dataset.manifest["features"] |= EXTRA
    number = 0
    for name, payloads in dataset.payloads.items():
        for place, payload in enumerate(payloads):
            features: dict[str, Any] = {
                "age": [float("nan") if number == 7 else number / 10], "year": [number % 6],
                "place": ["Žilina".encode() if number % 3 else b"Brno"], "width": [100 + number],
                "note": [b"\xff" if number == 5 else b"fine"],
            }  # fmt: skip
            dataset.replace(name, place, decode_example(payload) | features)
            number += 1
    return dataset.directory


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """Paths of the shards that are read."""
    paths: list[str] = []

    def noting_scan(path: str) -> Any:
        paths.append(path)
        return scan_file(path)

    monkeypatch.setattr("trainer.dataset.counting.scan_file", noting_scan)
    return paths


def loaded(made: pathlib.Path) -> tuple[DataSet, Split]:
    dataset = load_manifest(str(made))
    return dataset, dataset.splits["train"]


@pytest.mark.process
def test_counts_are_those_of_the_records_and_none_is_read(made, opened):
    dataset, split = loaded(made)
    found = [class_counts(dataset, split, filters) for filters in FILTERS]
    assert opened == []
    reading = dataclasses.replace(dataset, has_index=False)
    assert found == [class_counts(reading, split, filters) for filters in FILTERS]
    assert len(opened) == 3 * len(FILTERS)
    assert len(set(found)) > 6


@pytest.mark.process
def test_a_condition_on_the_label_means_the_class_where_labels_begin_at_1(made):
    dataset, split = loaded(made)
    moved = dataclasses.replace(dataset, label_offset=1, classes=("-", *CLASSES)[:3])
    filters = ["image/class/label>0"]
    assert indexed_class_counts(moved, split, filters) is None, "a label of 0 is below the first"
    ids = dataclasses.replace(dataset, label_offset=-1, classes=("none", *CLASSES))
    found = indexed_class_counts(ids, split, ["image/class/label>1"])
    assert found == (0, 0, 6, 6)
    assert found == class_counts(
        dataclasses.replace(ids, has_index=False), split, ["image/class/label>1"]
    )


@pytest.mark.process
def test_a_feature_that_the_index_does_not_have_is_read(made, opened):
    dataset, split = loaded(made)
    assert sum(class_counts(dataset, split, ["image/colorspace==RGB"])) == 18
    assert sum(class_counts(dataset, split, ["note==fine"])) == 17
    assert len(opened) == 6


def test_broken_records_that_may_be_skipped_are_looked_for(made, opened):
    dataset, split = loaded(made)
    class_counts(dataset, split, [], skip_broken=1)
    assert len(opened) == 3


def test_other_shards_than_those_of_the_split_have_no_index(made, opened):
    dataset, split = loaded(made)
    assert class_counts(dataset, Split("train", split.shards[:1]), []) == (2, 2, 2)
    assert len(opened) == 1


def test_a_wrong_filter_is_refused(made):
    with pytest.raises(UserError, match="--where received 'yea>=3'; the records have no feature"):
        indexed_class_counts(*loaded(made), ["yea>=3"])


def test_a_damaged_index_is_told_and_the_records_are_read(tmp_path, opened, capsys):
    dataset = Dataset(tmp_path, index=True)
    entry = dataset.manifest["splits"]["train"]["shards"][2]["index"]
    (tmp_path / entry["file"]).unlink()
    assert class_counts(*loaded(tmp_path), []) == (9, 9)
    said = capsys.readouterr().err
    assert f"--data received '{tmp_path}', whose {entry['file']} is missing" in said
    assert len(opened) == 3


def test_an_index_does_not_change_what_a_run_resumes_with(tmp_path):
    dataset = Dataset(tmp_path, index=True)
    with_index = load_manifest(str(tmp_path))
    for split in dataset.manifest["splits"].values():
        for shard in split["shards"]:
            del shard["index"]
    (tmp_path / "manifest.json").write_text(json.dumps(dataset.manifest))
    without = load_manifest(str(tmp_path))
    assert (with_index.has_index, without.has_index) == (True, False)
    assert with_index.fingerprint == without.fingerprint
