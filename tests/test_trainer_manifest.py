"""What the trainer takes from a manifest, and what it says of one it cannot use."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from tests.trainer_data import edit_manifest, write_manifest
from trainer.config import TrainConfig
from trainer.errors import UserError
from trainer.inputs import open_inputs
from trainer.manifest import Manifest, check_shards, load_manifest

IMAGE = {
    "size": 32,
    "mode": "crop",
    "channels": 3,
    "mean": [0.1, 0.2, 0.3],
    "std": [0.2, 0.2, 0.2],
}


def _splits(folder: pathlib.Path, **num_records: int) -> dict[str, Any]:
    """Splits of one shard of 10 bytes each."""
    splits = {}
    for name, count in num_records.items():
        file = f"{name}-00000-of-00001.tfrecord"
        (folder / file).write_bytes(b"\0" * 10)
        shard = {"file": file, "num_records": count, "num_bytes": 10}
        splits[name] = {"num_records": count, "shards": [shard]}
    return splits


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    write_manifest(tmp_path, splits=_splits(tmp_path, train=20, validation=5), image=IMAGE)
    return tmp_path


def _load(folder: pathlib.Path) -> Manifest:
    return load_manifest(str(folder))


def test_a_manifest_gives_counts_classes_and_pictures(folder: pathlib.Path) -> None:
    manifest = _load(folder)
    train = manifest.train_split(None)
    assert (train.num_records, train.num_bytes, len(train.shards)) == (20, 10, 1)
    assert manifest.classes == ("circle", "square", "triangle")
    assert manifest.image.size == (32, 32) and not manifest.image.varies
    assert manifest.image.mean == (0.1, 0.2, 0.3)
    assert manifest.compression_type == ""


@pytest.mark.parametrize(
    ("changes", "size", "varies"),
    [
        ({"size": [24, 32]}, (24, 32), False),
        ({"mode": "shortest"}, (32, 32), True),
        ({"mode": "none"}, (32, 32), True),
        ({"mode": "none", "size": None}, None, True),
        ({"mode": "pad"}, (32, 32), False),
        ({"only_shrink": True}, (32, 32), True),
    ],
)
def test_pictures_vary_where_the_mode_lets_them(
    folder: pathlib.Path, changes: dict[str, Any], size: Any, varies: bool
) -> None:
    edit_manifest(folder, image=IMAGE | changes)
    image = _load(folder).image
    assert (image.size, image.varies) == (size, varies)


def test_unmeasured_pixels_are_normalised_by_the_middle_of_the_range(folder: pathlib.Path) -> None:
    edit_manifest(folder, image=IMAGE | {"mean": None, "std": None, "channels": 1})
    assert (_load(folder).image.mean, _load(folder).image.std) == ((0.5,), (0.25,))


@pytest.mark.parametrize(
    ("names", "train", "validation"),
    [
        (("train", "validation", "test"), "train", "validation"),
        (("training", "test"), "training", "test"),
        (("train", "valid", "val"), "train", "val"),
        (("train",), "train", None),
    ],
)
def test_the_usual_split_names_are_found(
    folder: pathlib.Path, names: tuple[str, ...], train: str, validation: str | None
) -> None:
    edit_manifest(folder, splits=_splits(folder, **dict.fromkeys(names, 7)))
    manifest = _load(folder)
    found = manifest.validation_split(None)
    assert manifest.train_split(None).name == train
    assert (found.name if found else None) == validation


def test_splits_can_be_named_and_validation_left_out(folder: pathlib.Path) -> None:
    edit_manifest(folder, splits=_splits(folder, train=20, holdout=3))
    manifest = _load(folder)
    holdout = manifest.validation_split("holdout")
    assert holdout is not None and holdout.num_records == 3
    assert manifest.train_split("holdout").name == "holdout"
    assert manifest.validation_split("none") is None
    with pytest.raises(
        UserError, match="--validation_split received 'x'; expected one of train, h"
    ):
        manifest.validation_split("x")


def test_an_empty_validation_split_counts_as_none(folder: pathlib.Path) -> None:
    edit_manifest(folder, splits=_splits(folder, train=20, validation=0))
    assert _load(folder).validation_split(None) is None


def test_no_split_to_train_on_is_an_error_that_lists_the_splits(folder: pathlib.Path) -> None:
    edit_manifest(folder, splits=_splits(folder, a=20, train=0))
    with pytest.raises(UserError, match="whose splits with records are a; expected one called"):
        _load(folder).train_split(None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format_version 2; this trainer understands up to 1"),
        ({"format_version": "1"}, "has no format_version"),
        ({"splits": None}, "lacks 'splits'"),
        ({"features": {}}, "lacks 'image/encoded'"),
        ({"classes": []}, "names no class"),
        ({"compression": "zip"}, "compression is 'zip'"),
        ({"splits": {"train": {"num_records": 3, "shards": []}}}, "counts 3 records, its shards 0"),
        ({"image": {"size": 8, "mean": [0.5], "std": [0.5]}}, "are not 3 numbers each"),
        ({"image": {"size": 8, "channels": 4}}, "channels is 4"),
        ({"image": {"size": [1, 2, 3]}}, "unexpected value"),
    ],
)
def test_a_manifest_that_does_not_do_is_named_in_one_sentence(
    folder: pathlib.Path, changes: dict[str, Any], message: str
) -> None:
    edit_manifest(folder, **changes)
    with pytest.raises(UserError, match=message) as caught:
        _load(folder)
    assert str(caught.value).startswith(f"--data received {str(folder)!r}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "\ufffe"])
def test_text_that_is_no_manifest_is_refused(folder: pathlib.Path, text: str) -> None:
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="manifest.json"):
        _load(folder)


@pytest.mark.parametrize("below", ["absent", "file/below"])
def test_a_folder_without_a_manifest_is_not_a_data_set(tmp_path: pathlib.Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="a directory without a manifest is not a data set"):
        load_manifest(str(tmp_path / below))


def test_shards_must_be_there_with_their_size(folder: pathlib.Path) -> None:
    manifest = _load(folder)
    splits = list(manifest.splits.values())
    check_shards(str(folder), splits)
    shard = folder / "validation-00000-of-00001.tfrecord"
    shard.write_bytes(b"\0" * 7)
    with pytest.raises(UserError, match=f"shard {shard.name} has 7 bytes; expected 10 bytes"):
        check_shards(str(folder), splits)
    shard.unlink()
    (folder / "train-00000-of-00001.tfrecord").unlink()
    with pytest.raises(UserError, match=r"train-00000\S+ \(and 1 more\) is missing; expected 10"):
        check_shards(str(folder), splits)


def test_inputs_count_full_batches_and_leave_unused_splits_alone(folder: pathlib.Path) -> None:
    (folder / "validation-00000-of-00001.tfrecord").unlink()
    config = TrainConfig(str(folder), "out", batch_size=8, validation_split="none")
    inputs = open_inputs(config)
    assert (inputs.steps_per_epoch, inputs.size, inputs.validation) == (2, (32, 32), None)


def test_inputs_refuse_fewer_records_than_a_batch_and_a_missing_size(folder: pathlib.Path) -> None:
    with pytest.raises(UserError, match="--batch_size received 21, but the split train has 20 rec"):
        open_inputs(TrainConfig(str(folder), "out", batch_size=21))
    edit_manifest(folder, image={"mode": "none", "channels": 3})
    with pytest.raises(UserError, match="names no picture size; give one by --image_size"):
        open_inputs(TrainConfig(str(folder), "out", batch_size=4))
    assert open_inputs(TrainConfig(str(folder), "out", image_size=(8, 8), batch_size=4)).size == (
        8,
        8,
    )
