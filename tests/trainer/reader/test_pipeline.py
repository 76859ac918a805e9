import dataclasses
import itertools
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.reader_sets import MODEL, SIDE_PX, choose, make_set, training_data, value_of
from tests.support.trainer_data import assert_same
from trainer.augment.augmentation import make_augmentation
from trainer.augment.pixels import Pairs
from trainer.dataset.batch import ReplicaSlices
from trainer.dataset.spec import ReadOptions
from trainer.reader import pipeline
from trainer.reader.described import EvaluationData
from trainer.reader.order import training_order
from trainer.strengths import Augment

SHARDS = [[0, 1, 2, 0, 1, 2], [0, 1, 2, 0, 1], [2, 2, 2, 2, 1, 1], [0] * 6]
LABELS = [label for shard in SHARDS for label in shard]
NUM_RECORDS = len(LABELS)
AUGMENTED: Any = {"image": MODEL.image, "size": (SIDE_PX, SIDE_PX), "seed": 3}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_set(tmp_path_factory.mktemp("reader") / "set", SHARDS)


def _train(subset, batch_size, steps, **changes):
    place = {name: changes.pop(name) for name in ("start_step", "slices") if name in changes}
    stream = pipeline.training_batches(training_data(subset, batch_size, **changes), **place)
    return list(itertools.islice(stream.as_numpy_iterator(), steps))


def _column(batches, name):
    return np.concatenate([batch[name] for batch in batches]).tolist()


@pytest.mark.parametrize("batch_size", [4, 23])
@pytest.mark.one_row
def test_left_over_records_open_the_next_epoch_for_any_number_of_threads(dataset, batch_size):
    steps = 3 * NUM_RECORDS // batch_size
    batches = _train(choose(dataset), batch_size, steps)
    assert_same(_train(choose(dataset), batch_size, steps, read_options=ReadOptions(7)), batches)
    order = training_order(choose(dataset), batch_size, 3)
    assert _column(batches, "record") == order.records_at(0, steps * batch_size).tolist()
    assert _column(batches, "position") == list(range(steps * batch_size))
    assert _column(batches, "label") == [LABELS[r] for r in _column(batches, "record")]
    assert set(_column(batches, "weight")) == {1.0}
    for batch in batches:
        for picture, record in zip(batch["inputs"]["image"], batch["record"], strict=True):
            np.testing.assert_allclose(picture, value_of(record), atol=3)


@pytest.mark.parametrize(("batch_size", "replicas"), [(5, 1), (23, 1), (64, 1), (6, 2), (46, 2)])
def test_evaluation_holds_each_record_once_and_fills_up_for_replicas(dataset, batch_size, replicas):
    data = EvaluationData(choose(dataset), ReadOptions(2), MODEL, batch_size)
    batches = data.batches(ReplicaSlices(replicas))
    found = list(batches.as_numpy_iterator())
    assert batches.cardinality() == len(found) == -(-NUM_RECORDS // batch_size) * replicas
    filling = -NUM_RECORDS % batch_size if replicas > 1 else 0
    numbers = _column(found, "record")
    assert sorted(numbers[:NUM_RECORDS]) == list(range(NUM_RECORDS))
    assert numbers[NUM_RECORDS:] == [-1] * filling
    assert _column(found, "weight") == [1.0] * NUM_RECORDS + [0.0] * filling
    assert _column(found, "present") == [True] * NUM_RECORDS + [False] * filling
    assert _column(found, "label") == [LABELS[r] if r >= 0 else 0 for r in numbers]
    assert _column(found, "position") == list(range(NUM_RECORDS + filling))
    assert not np.concatenate([b["inputs"]["image"] for b in found])[NUM_RECORDS:].any()


@pytest.mark.parametrize(
    ("augment", "augment_on", "hosts", "replicas"),
    [("strong", "host", 1, 2), ("strong", "device", 2, 1), ("light", "host", 2, 2)],
)
@pytest.mark.one_row
def test_hosts_make_the_shares_of_their_replicas(dataset, augment, augment_on, hosts, replicas):
    pairs = Pairs(3, lambda share: 2) if augment == "strong" else None
    augmentation = make_augmentation(Augment.of(augment), augment_on, **AUGMENTED, pairs=pairs)
    changes: dict[str, Any] = {"augmentation": augmentation, "start_step": 3}
    whole = _train(choose(dataset), 8, 3, **changes)
    slices = [ReplicaSlices(replicas, hosts, host) for host in range(hosts)]
    of_hosts = [_train(choose(dataset), 8, 3 * replicas, slices=one, **changes) for one in slices]
    steps = range(0, 3 * replicas, replicas)
    parts = [[one for made in of_hosts for one in made[i : i + replicas]] for i in steps]
    joined = [tf.nest.map_structure(lambda *one: np.concatenate(one), *step) for step in parts]
    assert_same(joined, whole)


@pytest.mark.parametrize(("threads", "level"), [(16, "light"), (96, "none")])
@pytest.mark.one_row
def test_all_threads_decode_at_batch_2048(tmp_path, monkeypatch, threads, level):
    """A simulation of larger hosts: decoding is waiting here, and those who wait are counted."""
    # Some of the pool carry the reader's own stages now and then, and cores may be busy elsewhere.
    wanted = threads * 7 // 8
    deciding, busy, most, enough = threading.Lock(), 0, 0, threading.Event()

    def wait(_):
        nonlocal busy, most
        with deciding:
            busy += 1
            most = max(most, busy)
            if busy >= wanted:
                enough.set()
        if not enough.wait(20):
            enough.set()  # it is too late for the others, too
        with deciding:
            busy -= 1
        return np.zeros((SIDE_PX, SIDE_PX, 3), np.uint8)

    def decode(encoded, *_, **__):
        # Not stateful: those would wait for each other.
        picture = tf.numpy_function(wait, [encoded], tf.uint8, stateful=False)
        return tf.ensure_shape(picture, (SIDE_PX, SIDE_PX, 3))

    monkeypatch.setattr(tf.io, "decode_jpeg", decode)
    monkeypatch.setattr(tf.io, "decode_and_crop_jpeg", decode)
    # As pictures of 224 px do: three batches may be in flight.
    monkeypatch.setattr(pipeline, "IN_FLIGHT_BYTES", 3 * 2048 * SIDE_PX * SIDE_PX * 3)
    subset = choose(make_set(tmp_path, [[0] * 512]))
    augmentation = make_augmentation(Augment.of(level), "host", **AUGMENTED)
    _train(subset, 2048, 1, read_options=ReadOptions(threads), augmentation=augmentation)
    assert wanted <= most <= threads


def test_batches_in_flight_take_a_bounded_memory():
    for side_px, batch_size in ((512, 256), (8, 4)):
        large = dataclasses.replace(MODEL, size=(side_px, side_px))
        calls, at_once = pipeline._parallel_calls(ReadOptions(threads=256), batch_size, large)
        picture_bytes = side_px * side_px * 3
        assert calls * batch_size * picture_bytes < 1.2 * pipeline.IN_FLIGHT_BYTES
        assert 256 <= calls * at_once  # all threads are busy
