"""The reader: its order, its counts, and what it makes of each kind of shard."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.trainer_data import edit_manifest, make_data_set
from trainer.manifest import Manifest, Split, load_manifest

tf = pytest.importorskip("tensorflow")

from trainer import data  # noqa: E402

NUM_RECORDS = 23


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("reader") / "shards"
    counts = {"train": NUM_RECORDS, "validation": 10}
    return make_data_set(path, counts, num_shards=4, size_px=((16, 16),))


@pytest.fixture(scope="module")
def manifest(folder: pathlib.Path) -> Manifest:
    return load_manifest(str(folder))


@pytest.fixture(autouse=True)
def _no_global_seed() -> Iterator[None]:
    yield
    tf.random.set_seed(None)


def _keys(records: Any) -> list[str]:
    """The record's names, in order."""
    feature = {"image/filename": tf.io.FixedLenFeature([], tf.string)}
    parsed = records.map(lambda s: tf.io.parse_single_example(s, feature)["image/filename"])
    return [key.decode() for key in parsed.as_numpy_iterator()]


def _epoch(manifest: Manifest, seed: int, epoch: int) -> list[str]:
    split = manifest.splits["train"]
    return _keys(data.epoch_records(manifest, split, seed, tf.constant(epoch, tf.int64)))


def _labels(split: str, keys: list[str]) -> list[int]:
    return [int(key.removeprefix(f"{split}-")) % 3 for key in keys]


def test_every_pass_of_the_stream_holds_each_record_once(manifest: Manifest) -> None:
    everything = sorted(f"train-{i}" for i in range(NUM_RECORDS))
    stream = _keys(data.training_records(manifest, manifest.splits["train"], 3).take(69))
    passes = [stream[i : i + NUM_RECORDS] for i in range(0, 69, NUM_RECORDS)]
    assert [sorted(keys) for keys in passes] == [everything] * 3
    assert passes == [_epoch(manifest, 3, epoch) for epoch in range(3)]


def test_the_order_changes_with_the_epoch_and_with_the_seed(manifest: Manifest) -> None:
    orders = [tuple(_epoch(manifest, seed, epoch)) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert len(set(orders)) == len(orders)


@pytest.mark.parametrize("global_seed", [None, 0, 7])
def test_the_order_is_a_function_of_seed_and_epoch_alone(
    manifest: Manifest, global_seed: int | None
) -> None:
    expected = _epoch(manifest, 5, 1)
    tf.random.set_seed(global_seed)
    tf.random.uniform([])
    stream = data.training_records(manifest, manifest.splits["train"], 5)
    assert _keys(stream.skip(NUM_RECORDS).take(NUM_RECORDS)) == expected
    assert _keys(stream.skip(NUM_RECORDS).take(NUM_RECORDS)) == expected


def test_neighbours_in_a_shard_are_torn_apart(manifest: Manifest) -> None:
    shard = [f"train-{i}" for i in range(0, NUM_RECORDS, 4)]
    positions = [_epoch(manifest, 0, 0).index(key) for key in shard]
    assert positions != sorted(positions)


@pytest.mark.parametrize("batch_size", [4, 5, 23])
def test_left_over_records_open_the_next_epoch(manifest: Manifest, batch_size: int) -> None:
    split = manifest.splits["train"]
    steps = 3 * NUM_RECORDS // batch_size
    batches = data.training_batches(manifest, split, 9, batch_size, (16, 16)).take(steps)
    labels = np.concatenate([labels for _, labels in batches.as_numpy_iterator()])
    order = itertools.chain.from_iterable(_epoch(manifest, 9, epoch) for epoch in range(3))
    assert labels.tolist() == _labels("train", list(order))[: steps * batch_size]


def test_the_number_of_threads_changes_nothing(manifest: Manifest) -> None:
    split = manifest.splits["train"]

    def batches(threads: int) -> list[Any]:
        stream = data.training_batches(manifest, split, 2, 5, (12, 12), threads=threads)
        return list(itertools.islice(stream.as_numpy_iterator(), 9))

    for (images, labels), (other_images, other_labels) in zip(batches(1), batches(7), strict=True):
        np.testing.assert_array_equal(images, other_images)
        np.testing.assert_array_equal(labels, other_labels)


def test_training_batches_are_uint8_endless_and_of_static_shape(manifest: Manifest) -> None:
    batches = data.training_batches(manifest, manifest.splits["train"], 0, 4, (16, 16))
    assert batches.cardinality() == tf.data.INFINITE_CARDINALITY
    images, labels = batches.element_spec
    assert (images.shape, images.dtype) == ((4, 16, 16, 3), tf.uint8)
    assert (labels.shape, labels.dtype) == ((4,), tf.int64)
    assert len({images.tobytes() for images, _ in batches.take(5).as_numpy_iterator()}) == 5


@pytest.mark.parametrize("batch_size", [1, 3, 5, 10, 16])
def test_evaluation_holds_each_record_once_for_any_batch_size(
    manifest: Manifest, batch_size: int
) -> None:
    split = manifest.splits["validation"]
    batches = data.evaluation_batches(manifest, split, batch_size, (16, 16))
    found = list(batches.as_numpy_iterator())
    assert batches.cardinality() == len(found) == -(-10 // batch_size)
    images, labels, valid = (np.concatenate(part) for part in zip(*found, strict=True))
    assert valid.tolist() == [1.0] * 10 + [0.0] * (len(found) * batch_size - 10)
    assert sorted(labels[valid == 1].tolist()) == sorted(i % 3 for i in range(10))
    assert len({image.tobytes() for image in images[valid == 1]}) == 10
    assert not images[valid == 0].any()


def test_gzip_shards_read_like_plain_ones(tmp_path: pathlib.Path, manifest: Manifest) -> None:
    counts = {"train": NUM_RECORDS, "validation": 10}
    path = make_data_set(
        tmp_path / "z", counts, num_shards=4, size_px=((16, 16),), compression="gzip"
    )
    zipped = load_manifest(str(path))
    assert zipped.compression_type == "GZIP"
    assert _epoch(zipped, 1, 0) == _epoch(manifest, 1, 0)


@pytest.mark.parametrize("empty", [False, True])
def test_shards_without_records_do_no_harm(tmp_path: pathlib.Path, empty: bool) -> None:
    path = make_data_set(tmp_path / "few", {"train": 2}, num_shards=3, compression="gzip")
    few = load_manifest(str(path))
    if empty:
        pathlib.Path(few.splits["train"].shards[2].path).write_bytes(b"")
    assert sorted(_epoch(few, 0, 0)) == ["train-0", "train-1"]


def test_shards_of_one_class_each_are_mixed(tmp_path: pathlib.Path) -> None:
    path = make_data_set(
        tmp_path / "by_class", {"train": 60}, num_shards=3, size_px=((8, 8),), shard_by="class"
    )
    labels = _labels("train", _epoch(load_manifest(str(path)), 0, 0))
    assert all(len(set(labels[i : i + 15])) == 3 for i in range(0, 60, 15))


@pytest.mark.parametrize("change", [-1, 1])
def test_another_count_than_the_manifests_is_an_error(tmp_path: pathlib.Path, change: int) -> None:
    path = make_data_set(tmp_path / "off", {"train": 6}, num_shards=1, size_px=((8, 8),))
    wrong = load_manifest(str(path))
    shard = wrong.splits["train"].shards[0]
    split = Split("train", (type(shard)(shard.path, 6 + change, shard.num_bytes),))
    with pytest.raises(tf.errors.FailedPreconditionError):
        list(data.training_records(wrong, split, 0).take(20))


def test_grey_and_varying_pictures_come_in_one_shape(tmp_path: pathlib.Path) -> None:
    path = make_data_set(
        tmp_path / "grey",
        {"train": 9},
        size_px=((20, 30), (64, 16), (24, 24)),
        grey=True,
        mode="shortest",
    )
    edit_manifest(path, image={"size": 24, "mode": "shortest", "channels": 1})
    grey = load_manifest(str(path))
    batches = data.training_batches(grey, grey.splits["train"], 0, 3, (24, 24))
    images, _ = next(batches.as_numpy_iterator())
    assert images.shape == (3, 24, 24, 1) and images.std() > 5
