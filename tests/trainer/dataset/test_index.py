import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from imageshards.adoption.command import adopt
from imageshards.tfrecord import write_records
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused
from tests.support.external_sets import example, jpeg
from tests.support.trainer_data import ROLES, edit_manifest
from trainer.dataset.index import record_labels
from trainer.dataset.manifest import load_manifest

CLASSES = ("cat", "dog", "elk")
DTYPES = {"age": "float32", "year": "int64", "place": "string", "width": "int64", "note": "string"}
EXTRA: dict[str, Any] = {name: {"dtype": dtype, "shape": []} for name, dtype in DTYPES.items()}
EXTRA["box"] = {"dtype": "float32", "shape": [4]}
# What record i of class i % 3 has to be, by the filters that say so.
FILTERS: dict[tuple[str, ...], Callable[[int], bool]] = {
    (): lambda i: True,
    ("age==0.1",): lambda i: i == 1,
    ("age!=0.1", "year<4"): lambda i: i != 1 and i % 6 < 4,
    ("place==Žilina",): lambda i: i % 3 > 0,
    ("place!=Žilina", "image/class/text!=dog"): lambda i: i % 3 == 0,
    ("image/class/label>0",): lambda i: i % 3 > 0,
    ("image/filename==cat/0.jpg",): lambda i: i == 0,
    ("note==fine",): lambda i: i not in (4, 5),
    ("note!=fine",): lambda i: i in (4, 5),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """18 records to train on, without their shards: the index has to do."""
    dataset = Dataset(tmp_path_factory.mktemp("data") / "set", classes=CLASSES)
    dataset.manifest["features"] |= EXTRA

    def features_of(number):
        return {
            "age": [math.nan if number == 7 else number / 10], "year": [number % 6],
            "place": ["Žilina".encode() if number % 3 else b"Brno"], "width": [100 + number],
            "note": [{4: b"\xff", 5: b"x" * 257}.get(number, b"fine")],
            "box": [0.0] * 4,
        }  # fmt: skip

    dataset.change_records(features_of)
    for shard in dataset.directory.glob("*.tfrecord"):
        shard.unlink()
    return dataset.directory


def found(folder, *filters):
    dataset = load_manifest(str(folder))
    passes, records, ids = record_labels(dataset, dataset.splits["train"], filters)
    assert records.tolist() == list(range(len(passes)))
    return np.where(passes, ids, -1).tolist()


@pytest.mark.parametrize("filters", FILTERS, ids=" ".join)
def test_only_records_that_pass_the_filters_have_a_class(made, filters):
    assert found(made, *filters) == [i % 3 if FILTERS[filters](i) else -1 for i in range(18)]


def test_a_condition_on_the_label_means_the_class_where_labels_begin_at_1(tmp_path):
    dataset = Dataset(tmp_path, {"train": 1})
    dataset.change_records(lambda number: {"image/class/label": [number % 2 + 1]})
    edit_manifest(tmp_path, first_label=1, adopted=ROLES)
    assert found(tmp_path, "image/class/label==1") == [-1, 1] * 3
    edit_manifest(tmp_path, first_label=0, adopted=ROLES)
    with refused("data", "from 1 to 2", "2 classes"):
        found(tmp_path)


@pytest.mark.parametrize(
    ("condition", "word"),
    [("yea>=3", "'yea'"), ("image/colorspace==RGB", "age, "), ("box>1", "[4]")],
)
def test_a_condition_that_the_index_cannot_answer_is_refused(made, condition, word):
    with refused("where", condition.partition("=")[0], word):
        found(made, condition)


def test_filters_of_adopted_records_use_their_own_features(tmp_path):
    records = [{"picture": jpeg(i % 2, i), "class": i % 2 + 1, "age": i} for i in range(6)]
    write_records(str(tmp_path / "train-00.tfrecord"), map(example, records))
    features = {"image": "picture", "label": "class"}
    adopt(tmp_path, feature_map=features, label_offset=1, class_names=CLASSES)
    assert found(tmp_path, "class==1", "age>=2") == [-1, -1, -1, 1, -1, 1]
    assert np.unique(found(tmp_path)).tolist() == [0, 1]
