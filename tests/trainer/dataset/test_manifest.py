import dataclasses

import msgspec
import pytest

from imageshards.manifest import RECORD_FEATURES, TRAIN_NAMES
from tests.support.errors import refused
from tests.support.trainer_data import edit_manifest, make_dataset, write_manifest
from trainer.config import ReadConfig
from trainer.dataset.manifest import check_shards, load_manifest, needed_split, validation_split
from trainer.dataset.spec import FeatureSpec
from trainer.reader.batches import open_data

LEVELS = {"mean": [0.1, 0.2, 0.3], "std": [0.2, 0.2, 0.2]}
IMAGE = {"size": 32, "mode": "crop", "channels": 3, **LEVELS}


def _splits(folder, **num_records):
    """Splits of one shard of 1000 bytes each."""
    folder.mkdir(exist_ok=True)
    splits = {}
    for name, count in num_records.items():
        file = f"{name}-00000-of-00001.tfrecord"
        (folder / file).write_bytes(b"\0" * 1000)
        shard = {"file": file, "num_records": count, "num_bytes": 1000, "sha256": "0" * 64}
        shard |= {"classes": {}, "index": shard | {"file": "index/any.parquet"}}
        splits[name] = {"num_records": count, "shards": [shard]}
    return splits


def trained_on(dataset, name):
    return needed_split(dataset, "train_split", name, TRAIN_NAMES)


@pytest.fixture
def folder(tmp_path):
    write_manifest(tmp_path, splits=_splits(tmp_path, train=20, validation=5), image=IMAGE)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "size", "varies"),
    [
        ({"size": [24, 32]}, (24, 32), False),
        ({"mode": "shortest"}, (32, 32), True),
        ({"mode": "none", "size": None}, None, True),
        ({"mode": "pad"}, (32, 32), False),
        ({"only_shrink": True}, (32, 32), True),
    ],
)
def test_picture_sizes_vary_by_resize_mode(folder, changes, size, varies):
    edit_manifest(folder, image=IMAGE | changes)
    image = load_manifest(str(folder)).image
    assert (image.size, image.varies, image.mean) == (size, varies, (0.1, 0.2, 0.3))
    # Unmeasured pixels are normalised by the middle of the range.
    edit_manifest(folder, image=IMAGE | {"mean": None, "std": None, "channels": 1})
    image = load_manifest(str(folder)).image
    assert (image.mean, image.std) == ((0.5,), (0.25,))


@pytest.mark.parametrize(
    ("names", "train", "validation"),
    [
        (("train", "validation", "test"), "train", "validation"),
        (("training", "test"), "training", None),
        (("train", "valid", "val"), "train", "val"),
    ],
)
def test_the_usual_split_names_are_found(folder, names, train, validation):
    edit_manifest(folder, splits=_splits(folder, **dict.fromkeys(names, 7)))
    manifest = load_manifest(str(folder))
    found, trained = validation_split(manifest, None), trained_on(manifest, None)
    assert (trained.name, trained.num_records) == (train, 7)
    assert trained_on(manifest, "training").name == train  # another word for it
    assert (found.name if found else None) == validation


def test_splits_can_be_named_and_validation_left_out(folder):
    edit_manifest(folder, splits=_splits(folder, train=20, holdout=3, validation=0))
    manifest = load_manifest(str(folder))
    holdout = validation_split(manifest, "holdout")
    assert holdout is not None and holdout.num_records == 3
    assert trained_on(manifest, "holdout").name == "holdout"
    assert validation_split(manifest, "none") is validation_split(manifest, None) is None
    with refused("validation_split", "'x'"):
        validation_split(manifest, "x")
    edit_manifest(folder, splits=_splits(folder, a=20, train=0))
    with refused("train_split", "one of a ("):
        trained_on(load_manifest(str(folder)), None)


def test_a_validation_may_share_no_record_of_several_splits_that_train(tmp_path):
    folder = make_dataset(tmp_path, {"fold0": 4, "fold1": 5, "fold2": 3}, size_px=((8, 8),))
    config = ReadConfig(
        str(folder), train_split="fold0,fold1", validation_split="fold2", batch_size=2
    )
    training, validation = open_data(config)
    assert validation is not None and validation.num_records == 3
    assert (training.num_records, training.identity["train_split"]) == (9, "fold0,fold1")
    shares = dataclasses.replace(config, validation_split="fold2,fold1")
    with refused("validation_split", "'fold1,fold2' with 5 records that the training reads"):
        open_data(shares)
    with refused("validation_split", "with 2 records"):
        open_data(dataclasses.replace(shares, classes=("circle",)))
    _, validation = open_data(dataclasses.replace(shares, allow_overlap=True))
    assert validation is not None and validation.num_records == 8


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"features": {}}, "'image/encoded'"),
        ({"classes": []}, "class"),
        ({"splits": {"train": {"num_records": 3, "shards": []}}}, "3 records"),
        ({"image": IMAGE | {"mean": [0.5], "std": [0.5]}}, "3 numbers"),
    ],
)
def test_an_unusable_manifest_is_refused_in_one_sentence(folder, changes, word):
    edit_manifest(folder, **changes)
    with refused("data", repr(str(folder)), word) as caught:
        load_manifest(str(folder))
    assert "\n" not in str(caught.value)


def test_shards_must_be_there_with_their_size(folder):
    manifest = load_manifest(str(folder))
    splits = list(manifest.splits.values())
    check_shards(manifest, splits)
    shard = folder / "validation-00000-of-00001.tfrecord"
    shard.write_bytes(b"\0" * 7)
    with refused("data", f"{shard.name} has 7 bytes", "1000 bytes"):
        check_shards(manifest, splits)
    shard.unlink()
    (folder / "train-00000-of-00001.tfrecord").unlink()
    with refused("data", "train-00000", "(and 1 more) is missing"):
        check_shards(manifest, splits)


def test_unused_splits_are_not_checked_and_a_missing_size_is_refused(folder):
    (folder / "validation-00000-of-00001.tfrecord").unlink()
    config = ReadConfig(str(folder), batch_size=8, validation_split="none")
    train, validation = open_data(config)
    assert (train.num_records, train.model_inputs.size) == (20, (32, 32)) and validation is None
    edit_manifest(folder, image=IMAGE | {"mode": "none", "size": None})
    with refused("data", "image_size=224"):
        open_data(config)
    assert open_data(dataclasses.replace(config, image_size=(8, 8)))[0].model_inputs.size == (8, 8)


def test_features_shard_classes_and_a_fingerprint_are_read(folder):
    before = load_manifest(str(folder))
    assert before.filename_feature is None and not before.adopted
    splits = _splits(folder, train=20)
    splits["train"]["shards"][0]["classes"] = {"circle": 20}
    more = {"tokens": FeatureSpec("int64", None), "m": FeatureSpec("float32", (3,))}
    edit_manifest(folder, splits=splits, features=msgspec.to_builtins(RECORD_FEATURES | more))
    after = load_manifest(str(folder))
    assert after.features == RECORD_FEATURES | more
    assert after.filename_feature == "image/filename"
    assert after.splits["train"].shards[0].classes == {"circle": 20}
    assert len(after.fingerprint) == 64 and after.fingerprint != before.fingerprint
    # Built again, with another time stamp or path in its options, it is the same data.
    edit_manifest(folder, options={"pinned_classes": ["circle"]}, listed=99)
    assert load_manifest(str(folder)).fingerprint == after.fingerprint
