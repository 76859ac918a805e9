"""Labels and weights of batches: what each record says, read alone."""

import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

import imageshards as ims
from imageshards.example import decode_example, encode_example
from imageshards.tfrecord import read_records, write_records
from tests.support.errors import refused
from tests.support.external_sets import flip_byte, records_of
from tests.support.target_sets import CHANNELS, WORDS, make_targets, read_columns
from trainer.config import ReadConfig
from trainer.dataset import subset
from trainer.reader.batches import open_data
from trainer.reader.unreadable import make_check

tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """24 records to train on, 10 to validate."""
    return make_targets(tmp_path_factory.mktemp("targets") / "set", {"train": 3, "validation": 1})


def hot(present, names):
    return [float(name in present) for name in names]


# Column → what the label of a record is, of its features.
LABELS = {
    "bright": lambda r: r["bright"][0],
    "one": lambda r: r["one"],
    "rgb": lambda r: r["rgb"],
    "shade": lambda r: [-5, 9, 10].index(r["shade"][0]),
    "name": lambda r: [b"dark", b"grey", b"light"].index(r["name"][0]),
    "channels": lambda r: hot(r["channels"], CHANNELS),
    "words": lambda r: hot([word.decode() for word in r["words"]], WORDS),
}


@pytest.mark.parametrize("column", LABELS)
@pytest.mark.one_row
def test_batches_hold_each_records_values_and_zeros_for_a_damaged_record(made, column, tmp_path):
    records = {split: read_columns(made, split) for split in ("train", "validation")}
    folder = pathlib.Path(shutil.copytree(made, tmp_path / "set"))
    (path, *_) = sorted(folder.glob("train*"))
    flip_byte(path, records_of(path)[3].offset_bytes + 30)
    data = ims.open(folder, skip_broken=1)
    kind = "class" if column == "shade" else None
    asked: dict[str, Any] = {"target": column, "target_kind": kind}
    train = data.train(batch_size=8, **asked, sample_weight="weight", augment="none")
    for batch in train.batches().take(3).as_numpy_iterator():
        of_batch = (batch["label"], batch["weight"], batch["record"])
        for label, weight, number in zip(*of_batch, strict=True):
            record = records["train"][number]
            expected = np.asarray(LABELS[column](record)) * (number != 3)
            np.testing.assert_array_equal(label, expected.astype(label.dtype))
            assert weight == record["weight"][0] * (number != 3)
    given = [y for _, y in data.evaluation(batch_size=3, **asked).as_numpy()]
    expected = np.array([LABELS[column](record) for record in records["validation"]])
    found = np.concatenate(given)
    np.testing.assert_array_equal(found, expected.astype(found.dtype))


@pytest.mark.parametrize(
    ("target", "augment_on"), [("words", "host"), ("words", "device"), ("rgb", "host")]
)
@pytest.mark.one_row
def test_labels_are_mixed_like_classes_and_values_are_not(made, target, augment_on):
    data = ims.open(made)

    def labels(augment, **place):
        train = data.train(batch_size=24, target=target, augment=augment, **place)
        (_, found), spec = next(train.as_numpy()), train.element_spec[1]
        assert (found.shape, found.dtype) == (tuple(spec.shape), spec.dtype.as_numpy_dtype)
        return found

    mixed, own = labels("strong", augment_on=augment_on), labels("none")
    if target == "rgb":
        np.testing.assert_array_equal(mixed, own)
        return
    # The shards are three pieces, so halves of the batch are mixed.
    partner = own.reshape(2, 12, 3)[::-1].reshape(-1, 3)
    assert not np.array_equal(mixed, own)
    assert np.all(mixed >= np.minimum(own, partner)) and np.all(mixed <= np.maximum(own, partner))


def test_chosen_labels_select_the_records_with_one_of_them(made):
    data = ims.open(made)
    train = data.train(batch_size=4, target="words", classes=["red", "blue"], augment="none")
    expected = [
        hot([word.decode() for word in record["words"]], ("red", "blue"))
        for record in read_columns(made, "train")
    ]
    wanted = {i for i, label in enumerate(expected) if any(label)}
    assert train.num_records == len(wanted) < 24
    assert train.subset.class_counts == tuple(np.sum(expected, 0, int))
    seen = set()
    for batch in train.batches().take(len(wanted) // 4).as_numpy_iterator():
        for label, number in zip(batch["label"], batch["record"], strict=True):
            assert label.tolist() == expected[number]
            seen.add(int(number))
    assert seen <= wanted and train.class_weight is None
    others = data.train(batch_size=4, target="words", where=["bright>0.5"])
    bright = [record["bright"][0] > 0.5 for record in read_columns(made, "train")]
    assert others.num_records == sum(bright)


@pytest.mark.parametrize(
    ("asked", "argument", "words"),
    [
        ({"target": "far"}, "target", ["'far'", "inf in record 6 of the split train"]),
        ({"target": "lost"}, "target", ["lost", "24 records"]),
        (
            {"target": "bright", "inputs": ["image", "gap"]},
            "inputs",
            ["'gap'", "nan in record 4", "1 more", "where, for example 'gap>=-1e+30'"],
        ),
        (
            {"target": "bright", "inputs": ["image", "hole"]},
            "inputs",
            ["'hole'", "1,nan", "another column"],
        ),
        ({"sample_weight": "gap"}, "sample_weight", ["'gap'", "nan in record 4"]),
        ({"sample_weight": "rgb"}, "sample_weight", ["float32 of shape [3]"]),
    ],
)
def test_unfit_targets_are_refused_before_a_record_is_read(made, asked, argument, words):
    with refused(argument, *words):
        ims.open(made).train(batch_size=4, **asked)


@pytest.mark.parametrize("target", ["gap", "hole"])
def test_records_without_the_target_are_left_out_and_counted(made, target):
    data = ims.open(made)
    train = data.train(batch_size=11, target=target, augment="none")
    assert (train.num_records, train.steps_per_epoch, train.subset.missing_target) == (22, 2, 2)
    assert f", target {target}, " in repr(train)
    batches = [*train.batches().take(2).as_numpy_iterator()]
    read = np.concatenate([batch["record"] for batch in batches])
    assert sorted(read.tolist()) == sorted({*range(24)} - {4, 5})
    val = data.evaluation(batch_size=4, target=target, split="train", where=["bright>0.5"])
    bright = {i for i, r in enumerate(read_columns(made, "train")) if r["bright"][0] > 0.5}
    assert val.num_records == len(bright - {4, 5})
    assert val.subset.missing_target == len(bright & {4, 5})
    assert data.evaluation(batch_size=4, target="bright").subset.missing_target == 0


def test_mean_and_deviation_describe_the_selected_records(made):
    data, records = ims.open(made), read_columns(made, "train")

    def found(target, *where):
        return data.train(batch_size=2, target=target, where=where).target_mean_std

    for target, some in (("rgb", lambda r: True), ("rgb", lambda r: r["bright"][0] > 0.5)):
        values = np.array([r[target] for r in records if some(r)], np.float32).astype(np.float64)
        mean, std = found(target, *["bright>0.5"] * (len(values) < 24))
        assert (mean, std) == (pytest.approx(values.mean(0)), pytest.approx(values.std(0)))
    bright = [float(r["bright"][0]) for r in records]
    assert found("bright").mean == pytest.approx((np.mean(bright),))
    # A value that never varies has no deviation to be divided by; records 4 and 5 have no `gap`.
    assert found("gap") == ((1.0,), (1.0,)) and found("words") is None


def test_mean_and_deviation_of_long_lists_are_read_from_the_records(made, tmp_path, monkeypatch):
    folder = pathlib.Path(shutil.copytree(made, tmp_path / "set"))
    (path, *_) = sorted(folder.glob("train*"))
    flip_byte(path, records_of(path)[3].offset_bytes + 30)
    data = ims.open(folder, skip_broken=1)
    expected = np.array([i for i in range(24) if i != 3], float)
    mean, std = data.train(batch_size=4, target="wide").target_mean_std or ((), ())
    assert mean == pytest.approx((*[expected.mean()] * 16, -1.0))
    assert std == pytest.approx((*[expected.std()] * 16, 1.0))
    monkeypatch.setattr(subset, "MAX_SAMPLED", 2)
    mean, _ = data.train(batch_size=4, target="wide").target_mean_std or ((), ())
    assert mean[0] == (0 + 23) / 2


def test_missing_inputs_matter_only_in_selected_records(made):
    data, where = ims.open(made), ["gap>=-1e30"]
    assert data.train(batch_size=4, target="gap", where=where).subset.missing_target == 0
    inputs = ["image", "gap"]
    train = data.train(batch_size=4, target="bright", inputs=inputs, where=where, augment="none")
    assert train.num_records == 22
    with refused("inputs", "'gap'", "nan in record 4"):
        data.evaluation(batch_size=4, target="bright", inputs=inputs, split="train")
    splits: dict[str, Any] = {"train_split": "validation", "validation_split": "train"}
    config = ReadConfig(str(made), target="bright", inputs=("image", "gap"), batch_size=4, **splits)
    with refused("inputs", "'gap'", "record 4 of the split train"):
        open_data(config)


@pytest.mark.parametrize(
    ("column", "changed", "reason"),
    [
        ("bright", [0.5], ""),
        ("bright", [], "its bright is missing, or has another type or length than it should"),
        ("rgb", [0.5, float("nan"), 1.0], "its rgb is no number: nan"),
        ("shade", [7], "its shade is no class: 7"),
        ("words", [], ""),
        ("words", [b"red", b"pink"], "its words is no class: pink"),
        ("weight", [-1.0], "its weight weight is no number of at least 0: -1"),
        ("weight", [], "its weight is missing, or has another type or length than it should"),
    ],
)
def test_a_record_without_target_or_weight_is_named_with_the_reason(made, column, changed, reason):
    record = {**read_columns(made, "train")[0], column: changed}
    asked: dict[str, Any] = {"target": column}
    if column == "shade":
        asked["target_kind"] = "class"
    elif column == "weight":
        asked = {"target": "words", "sample_weight": "weight"}
    train = ims.open(made).train(batch_size=4, **asked)
    assert make_check(train.subset.dataset)(encode_example(record)) == reason


def test_a_cache_of_pixels_is_independent_of_targets(made, tmp_path):
    folder = shutil.copytree(made, tmp_path / "set")
    (path, *_) = sorted(folder.glob("train*"))
    rows = [dict(decode_example(record.payload)) for record in read_records(str(path))]
    del rows[2]["bright"]
    write_records(str(path), map(encode_example, rows))
    cache: Any = {"cache": "pixels", "cache_folder": str(tmp_path / "cache"), "augment": "none"}
    data = ims.open(folder, skip_broken=9)
    (batch,) = data.train(batch_size=24, target="words", **cache).batches().take(1)
    assert int(np.sum(batch["weight"])) == 24
    with pytest.raises(tf.errors.InvalidArgumentError, match="bright"):
        list(data.train(batch_size=24, target="bright", **cache).batches().take(1))
