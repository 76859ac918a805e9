import itertools
import json

import numpy as np
import pytest

import imageshards as ims
from imageshards.adoption.command import adopt
from imageshards.tfrecord import write_records
from tests.support.errors import refused
from tests.support.external_sets import example, jpeg, whole_split
from tests.support.manifests import write_manifest
from tests.support.trainer_data import make_dataset
from trainer.dataset.manifest import load_manifest
from trainer.reader.unreadable import find_unreadable

COLUMNS = {"feature_map": {"label": ("cat", "big dog")}}
LABELS = [(0, 0), (1, 0), (0, 1), (1, 1)]


def _write(folder, *labels):
    records = [{"image": jpeg(seed=i), "id": str(i)} | one for i, one in enumerate(labels)]
    write_records(str(folder / "train.tfrecord"), map(example, records))


def _adopted(folder, options, *labels):
    _write(folder, *labels)
    adopt(folder, **options)
    return ims.open(folder)


def _columns(folder):
    return _adopted(folder, COLUMNS, *({"cat": a, "big dog": b} for a, b in LABELS))


def _labels(data, **options):
    evaluated = data.evaluation(batch_size=3, image_size=16, split="train", **options)
    return [label.tolist() for _, batch in evaluated.as_numpy() for label in batch]


@pytest.mark.parametrize(
    "options", [{"balance": "sampling"}, {"augment": "strong", "classes": ["square", "circle"]}]
)
@pytest.mark.one_row
def test_labels_that_begin_at_1_become_class_ids_from_0(tmp_path, options):
    found = []
    for first in (0, 1):
        folder = tmp_path / str(first)
        make_dataset(folder, {"train": 13}, size_px=((16, 16),), first_label=first)
        data = ims.open(folder)
        train = data.train(batch_size=4, image_size=16, seed=3, **options)
        evaluated = data.evaluation(batch_size=4, image_size=16, split="train")
        batches = [*itertools.islice(train.as_numpy(), 3), *evaluated.as_numpy()]
        found.append([part for batch in batches for part in batch])
    for zero, one in zip(*found, strict=True):
        np.testing.assert_array_equal(zero, one)


@pytest.mark.long
def test_hot_columns_are_several_labels_and_changed_labels_are_broken(tmp_path):
    data = _columns(tmp_path)
    assert _labels(data) == [list(map(float, one)) for one in LABELS]
    assert _labels(data, classes=["big dog"]) == [[1.0], [1.0]]
    _, labels = next(data.train(batch_size=4, image_size=16).as_numpy())
    assert labels.shape == (4, 2)
    dataset = load_manifest(str(tmp_path))
    assert find_unreadable(whole_split(dataset), np.arange(4)) is None
    _write(tmp_path, *({"cat": 2 * a, "big dog": b} for a, b in LABELS))
    found = find_unreadable(whole_split(dataset), np.arange(4))
    reason = "its cat, big dog are not 0 or 1: 2"
    assert found is not None and (found.record, found.reason) == (1, reason)


def test_one_hot_vectors_are_classes(tmp_path):
    hot = [{"label": np.eye(3)[i % 3].tolist()} for i in (2, 0, 1, 2)]
    data = _adopted(tmp_path, {"class_names": ("a", "b", "c")}, *hot)
    assert data.classes == ("a", "b", "c") and _labels(data) == [2, 0, 1, 2]
    assert _labels(data, classes=["c", "a"]) == [0, 1, 0]
    assert data.train(batch_size=4, image_size=16, balance="sampling").subset.num_records == 6


def test_values_without_labels_are_trained_on_as_a_target(tmp_path):
    values = [{"label": i / 2, "word": "ab"[i % 2]} for i in range(4)]
    data = _adopted(tmp_path, {"label": "none"}, *values)
    assert _labels(data, target="label") == [0.0, 0.5, 1.0, 1.5]
    assert _labels(data, target="word") == [0, 1, 0, 1]
    # Without a label of their own, the column of that name is meant.
    assert _labels(data) == [0.0, 0.5, 1.0, 1.5]
    assert [record["label"] for record in list(data.source("train"))] == [0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"hot": []}, "several"),
        ({"hot": ["cat", "other"]}, "'other'"),
        ({"hot": ["cat", "id"]}, "id is string"),
        ({"label": "cat"}, "several"),
    ],
)
def test_a_manifest_whose_labels_do_not_fit_is_refused(tmp_path, changes, word):
    _columns(tmp_path)
    told = json.loads((tmp_path / "manifest.json").read_text())
    told["adopted"] |= changes
    write_manifest(str(tmp_path), told)
    with refused("data", word):
        load_manifest(str(tmp_path))
