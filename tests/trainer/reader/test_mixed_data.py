"""A mix of data sets: order, shares, resuming, broken records."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
from typing import Any, NamedTuple

import numpy as np
import pytest

import imageshards as ims
from imageshards.tfrecord import read_records
from tests.support.resumed_stream import assert_resumes
from tests.support.trainer_data import CLASSES, make_data_set
from trainer.api import Data
from trainer.reader.broken_records import BrokenRecordHandler, explain

tf = pytest.importorskip("tensorflow")


COUNTS = {"a": 13, "b": 22}
VALIDATION = {"a": 3, "b": 5}
ALL = sum(COUNTS.values())
MIX = {"a": 0.7, "b": 0.3}


class Sets(NamedTuple):
    """Two data sets, and where they are."""

    a: Data
    b: Data
    both: Data


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    home = tmp_path_factory.mktemp("sets")
    for seed, (name, count) in enumerate(COUNTS.items()):
        splits = {"train": count, "validation": VALIDATION[name]}
        make_data_set(home / name, splits, num_shards=2 + seed, size_px=((16, 16),), seed=seed)
    paths = [home / name for name in COUNTS]
    return Sets(ims.open(paths[0]), ims.open(paths[1]), ims.open(*paths))


def _records(train: Any, steps: int, start: int = 0) -> list[list[int]]:
    """The numbers of the records of each batch."""
    batches = train.batches(start).take(steps).as_numpy_iterator()
    return [batch["record"].tolist() for batch in batches]


def _flat(batches: list[list[int]]) -> list[int]:
    return [record for batch in batches for record in batch]


def _names(data: Data, split: str) -> list[str]:
    """The class of each record, as its own data set says it."""
    return [
        data.classes[label]
        for shard in data.dataset.splits[split].shards
        for label in _labels(shard.path)
    ]


def _labels(path: str) -> list[int]:
    found = [ims.decode_example(one.payload, {"image/class/label"}) for one in read_records(path)]
    return [int(values["image/class/label"][0]) for values in found]


def test_several_data_sets_describe_themselves_as_one(sets: Sets) -> None:
    assert sets.both.classes == CLASSES and sets.both.splits == {"train": ALL, "validation": 8}
    assert len(sets.both.config.paths) == 2
    train = sets.both.train(batch_size=4, mix=MIX)
    assert (train.num_records, train.steps_per_epoch) == (ALL, ALL // 4)
    prints = {one.dataset.fingerprint for one in sets}
    assert len(prints) == 3 and train.identity["data"] == sets.both.dataset.fingerprint
    assert train.identity["mix"] == [0.7, 0.3]
    json.dumps(train.identity)


def test_each_data_set_of_a_mix_has_its_share_and_passes_of_its_own(sets: Sets) -> None:
    mixed = sets.both.train(batch_size=8, augment="none", seed=3, mix=MIX)
    assert mixed.num_records == ALL
    stream = _flat(_records(mixed, 64))
    of_a = [record for record in stream if record < COUNTS["a"]]
    of_b = [record - COUNTS["a"] for record in stream if record >= COUNTS["a"]]
    # Of 64 streams 45 are a's, in any 64 positions and nearly so in fewer.
    for end in range(8, len(stream) + 1, 8):
        share = sum(record < COUNTS["a"] for record in stream[:end])
        assert abs(share - 45 / 64 * end) < 2 and (end % 64 or share == 45 * end // 64)
    for found, count in ((of_a, COUNTS["a"]), (of_b, COUNTS["b"])):
        passes = [found[i : i + count] for i in range(0, len(found) - count + 1, count)]
        assert len(passes) > 4 and all(sorted(one) == list(range(count)) for one in passes)
    other = sets.both.train(batch_size=8, augment="none", seed=4, mix=MIX)
    assert _flat(_records(other, 20)) != stream[:160]


@pytest.mark.parametrize("more", [{}, {"where": ["image/class/label>0"]}, {"classes": ["square"]}])
def test_a_mix_goes_on_at_any_step_with_the_batch_that_comes_there(
    sets: Sets, more: dict[str, Any]
) -> None:
    train = sets.both.train(batch_size=4, augment="none", seed=5, mix={"a": 1, "b": 2}, **more)
    assert_resumes(lambda step: train.batches(step).as_numpy_iterator(), 6 if more else 21)


def test_weights_balance_the_classes_as_often_as_a_mix_reads_them(sets: Sets) -> None:
    train = sets.both.train(batch_size=4, augment="none", mix=MIX, balance="weights")
    names = [_names(one, "train") for one in (sets.a, sets.b)]
    often = [
        sum(ALL * s * of.count(name) / len(of) for s, of in zip((0.7, 0.3), names, strict=True))
        for name in CLASSES
    ]
    weights = train.subset.class_weights
    assert weights is not None
    np.testing.assert_allclose([n * w for n, w in zip(often, weights, strict=True)], ALL / 3)


def test_evaluation_counts_every_record_of_all_data_sets_once(sets: Sets) -> None:
    joined = list(_evaluated(sets.both))
    alone = [*_evaluated(sets.a), *_evaluated(sets.b)]
    assert len(joined) == 8
    key = lambda one: (one[0], one[1].tobytes())  # noqa: E731
    assert sorted(map(key, joined)) == sorted(map(key, alone))


def _evaluated(data: Data) -> Any:
    """(class name, picture) of every record."""
    for images, labels in data.evaluation(batch_size=3).as_numpy():
        for image, label in zip(images, labels, strict=True):
            yield data.classes[label], image


def test_a_broken_record_of_a_mix_keeps_its_place(sets: Sets, tmp_path: pathlib.Path) -> None:
    for part in sets.both.dataset.parts:
        shutil.copytree(part.data, tmp_path / pathlib.Path(part.data).name)
    shard = sorted((tmp_path / "b").glob("train-*"))[1]
    payloads = [record.payload for record in read_records(str(shard))]
    payloads[2] = b"\xff" * 9 + payloads[2][9:]
    ims.write_records(str(shard), payloads)
    number = COUNTS["a"] + sets.b.dataset.splits["train"].starts[1] + 2
    data = ims.open(tmp_path / "a", tmp_path / "b", skip_broken=1)
    train = data.train(batch_size=4, augment="none", mix=MIX)
    whole = sets.both.train(batch_size=4, augment="none", mix=MIX)
    with pytest.raises((tf.errors.OpError, UnicodeDecodeError)) as caught:
        _records(train, 30)
    handler = BrokenRecordHandler(1, str(tmp_path / "out"), data.config.data)
    subset = handler.handle(train.subset, np.array([number]), caught.value)
    (found,) = handler.found
    assert (found.path, found.number) == (str(shard), 2)
    told = str(explain(caught.value, train.subset, [found]))
    assert f"received {str(tmp_path / 'b')!r}" in told and f"verify {tmp_path / 'b'}," in told
    repaired = dataclasses.replace(train, subset=subset)
    batches = list(repaired.batches().take(30).as_numpy_iterator())
    assert [batch["record"].tolist() for batch in batches] == _records(whole, 30)
    for batch in batches:
        assert ((batch["weight"] == 0) == (batch["record"] == found.record)).all()


def test_what_cannot_be_joined_is_told_in_the_words_of_the_caller(
    sets: Sets, tmp_path: pathlib.Path
) -> None:
    other = make_data_set(tmp_path / "c", {"train": 4}, num_shards=1, size_px=((24, 24),))
    a = sets.a.config.data
    with pytest.raises(ims.UserError, match="path received .*option size is 16 in .* and 24 in"):
        ims.open(a, other)
    with pytest.raises(ims.UserError, match="several data sets; expected one: each has an index"):
        sets.both.index()
    with pytest.raises(
        ims.UserError, match="mix received a share for 'c', which names 0 of the data sets"
    ):
        sets.both.train(batch_size=4, mix={"a": 1, "c": 2})
    with pytest.raises(ims.UserError, match="mix received 'x' for 'a'; expected a number"):
        sets.both.train(batch_size=4, mix={"a": "x", "b": 2})  # type: ignore[dict-item]
    remedy = "imageshards build --input .*/a --input .*/b --output ALL .*copied.*, or .* by mix"
    with pytest.raises(ims.UserError, match=f"several data sets without mix; .*{remedy}"):
        sets.both.train(batch_size=4)
    parts = tuple(dataclasses.replace(part.dataset, adopted=True) for part in (sets.a, sets.b))
    theirs = dataclasses.replace(sets.both.dataset, parts=parts)
    with pytest.raises(ims.UserError, match="imageshards adopt .*/a --output ALL, with --split"):
        dataclasses.replace(sets.both, dataset=theirs).train(batch_size=4)
