"""Class ids that do not mean what the records name are found before anything is trained."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest

from imageshards import tfrecord
from imageshards.errors import UserError
from tests.support.reader_sets import CLASSES, FEATURES, example, jpeg, make_set
from trainer.config import ReadConfig
from trainer.dataset.class_order import check_class_order
from trainer.dataset.open import select
from trainer.dataset.spec import DataSet, FeatureSpec

pytest.importorskip("tensorflow")


def _record(number: int, label: int) -> bytes:
    features = {"image/encoded": jpeg(100), "image/class/label": label}
    return example(features | {"image/class/text": CLASSES[label].encode()})


def _set(folder: pathlib.Path, shards: list[list[int]], **changes: object) -> DataSet:
    features = FEATURES | {"image/class/text": FeatureSpec("string", ())}
    told: dict[str, Any] = {"text_feature": "image/class/text", "features": features} | changes
    return make_set(folder, shards, make_record=_record, **told)


def _check(dataset: DataSet) -> None:
    check_class_order(dataset, dataset.splits["train"])


@pytest.mark.parametrize("adopted", [True, False])
def test_classes_in_another_order_are_refused(tmp_path: pathlib.Path, adopted: bool) -> None:
    dataset = _set(tmp_path, [[0, 0, 1], [1, 2]], adopted=adopted)
    _check(dataset)
    swapped = dataclasses.replace(dataset, classes=("ant", "cat", "bee"))
    remedy = "manifest.json, or describe it again by" if adopted else "manifest.json, or build it"
    match = f"class 1 is 'cat', but record 2 of .*00000 has this id and 'bee' as .*text; .*{remedy}"
    with pytest.raises(UserError, match=match):
        _check(swapped)


def test_shards_of_one_class_each_are_all_looked_at(tmp_path: pathlib.Path) -> None:
    dataset = _set(tmp_path, [[0], [0], [0], [0], [2]])
    with pytest.raises(UserError, match="class 2 is 'bee', but record 0 of .*00004 has"):
        _check(dataclasses.replace(dataset, classes=("ant", "cow", "bee", "cat")))


def test_nothing_is_selected_from_classes_in_another_order(tmp_path: pathlib.Path) -> None:
    dataset = dataclasses.replace(_set(tmp_path, [[0, 1, 2]]), classes=("bee", "ant", "cat"))
    with pytest.raises(UserError, match="class 0 is 'bee'"):
        select(ReadConfig(str(tmp_path)), dataset, dataset.splits["train"])


def test_few_records_are_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = _set(tmp_path, [[0, 1] * 20] * 20)
    read: list[int] = []
    checksum = tfrecord._masked_crc32c  # two for each record: of its length, of its payload

    def counted(data: bytes) -> int:
        read.append(len(data))
        return checksum(data)

    monkeypatch.setattr(tfrecord, "_masked_crc32c", counted)
    _check(dataset)
    assert len(read) // 2 <= 8 * 16


def test_texts_that_name_no_class_say_nothing(tmp_path: pathlib.Path) -> None:
    dataset = _set(tmp_path, [[0, 1, 2]])
    _check(dataclasses.replace(dataset, classes=("n01440764", "n01443537", "n01484850")))
    _check(dataclasses.replace(dataset, classes=("cat", "bee", "ant"), text_feature=None))


def test_broken_records_are_left_to_the_reader(tmp_path: pathlib.Path) -> None:
    dataset = _set(tmp_path, [[0, 1], [1, 0], [2]], empty=(2,))
    first, _, third = (pathlib.Path(shard.path) for shard in dataset.splits["train"].shards)
    data = bytearray(first.read_bytes())
    data[20] ^= 255
    first.write_bytes(data)
    third.unlink()
    _check(dataset)
