"""Class ids that do not mean what the records name are found before anything is trained."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest

from imageshards.errors import UserError
from imageshards.index import read_shard_index
from tests.support.dataset_factory import Dataset
from tests.support.trainer_data import edit_manifest
from trainer.config import ReadConfig
from trainer.dataset.index import check_class_order
from trainer.dataset.manifest import load_manifest
from trainer.dataset.open import select

CLASSES = ("ant", "bee", "cat")


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A shard of each class."""
    dataset = Dataset(tmp_path, {"train": 3}, per_shard=1, classes=CLASSES)
    return dataset.directory


def _check(folder: pathlib.Path, adopted: bool = False) -> None:
    dataset = dataclasses.replace(load_manifest(str(folder)), adopted=adopted)
    check_class_order(dataset, dataset.splits["train"])


@pytest.mark.parametrize("adopted", [True, False], ids=["adopted", "built"])
def test_classes_in_another_order_are_refused(folder: pathlib.Path, adopted: bool) -> None:
    _check(folder, adopted)
    edit_manifest(folder, classes=["ant", "cat", "bee"])
    remedy = "manifest.json, or describe it again by" if adopted else "manifest.json, or build it"
    match = f"class 1 is 'cat', but record 0 of train-00001.* of the class 'bee'; .*{remedy}"
    with pytest.raises(UserError, match=match):
        _check(folder, adopted)


def test_shards_of_one_class_each_are_all_looked_at(folder: pathlib.Path) -> None:
    edit_manifest(folder, classes=["ant", "bee", "cow", "cat"])
    with pytest.raises(UserError, match="class 2 is 'cow', but record 0 of train-00002"):
        _check(folder)


def test_nothing_is_selected_from_classes_in_another_order(folder: pathlib.Path) -> None:
    edit_manifest(folder, classes=["bee", "ant", "cat"])
    dataset = load_manifest(str(folder))
    with pytest.raises(UserError, match="class 0 is 'bee'"):
        select(ReadConfig(str(folder)), dataset, dataset.splits["train"])


def test_the_index_of_few_shards_is_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Dataset(tmp_path, {"train": 20}, per_shard=1)
    read: list[str] = []

    def noting_read(directory: str, shard: Mapping[str, Any], schema: Any) -> Any:
        read.append(shard["file"])
        return read_shard_index(directory, shard, schema)

    monkeypatch.setattr("trainer.dataset.index.read_shard_index", noting_read)
    _check(tmp_path)
    assert 5 <= len(read) <= 8


def test_texts_that_name_no_class_say_nothing(folder: pathlib.Path) -> None:
    edit_manifest(folder, classes=["n01440764", "n01443537", "n01484850"])
    _check(folder)


@pytest.mark.parametrize("damage", ["", "no Parquet"], ids=["missing", "damaged"])
def test_without_a_whole_index_nothing_is_compared(folder: pathlib.Path, damage: str) -> None:
    for index in (folder / "index").iterdir():
        index.write_text(damage) if damage else index.unlink()
    edit_manifest(folder, classes=["bee", "ant", "cat"])
    _check(folder)
