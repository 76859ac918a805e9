"""What may change between the parts of one run, and what may not."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest

from imageshards.errors import UserError
from tests.support.trainer_data import edit_manifest, make_data_set
from trainer.config import DataConfig, OptimizerConfig, TrainConfig
from trainer.dataset.open import open_inputs
from trainer.reader.batches import TrainingData
from trainer.training.output_folder import mark_run
from trainer.training.resume_check import check_same, settings_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    pytest.importorskip("tensorflow")
    path = tmp_path_factory.mktemp("settings") / "shards"
    return make_data_set(path, {"train": 12, "validation": 3}, size_px=((8, 8),))


def _config(folder: pathlib.Path, data: dict[str, Any], **changes: Any) -> TrainConfig:
    return TrainConfig(DataConfig(str(folder), **data), "out", batch_size=4, **changes)


def _settings(config: TrainConfig, place: str = "host", total: int = 9) -> dict[str, Any]:
    return settings_of(config, TrainingData.of(config, open_inputs(config), place), total)


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        ({"cache": "disk"}, {}),
        ({"threads": 1, "skip_broken": 3}, {}),
        ({"image_size": (8, 8)}, {}),  # the data set's own
        ({}, {"replicas": 2}),
        ({}, {"checkpoint_steps": 1, "keep_checkpoints": 9, "tensorboard": True}),
        ({}, {"epochs": 50}),
    ],
)
def test_settings_that_change_no_step_may_differ(
    folder: pathlib.Path, data: dict[str, Any], changes: dict[str, Any]
) -> None:
    begun = _settings(_config(folder, {}))
    check_same("out", begun, _settings(_config(folder, data, **changes), total=70))


@pytest.mark.parametrize(
    ("data", "changes", "flag"),
    [
        ({"classes": ("square", "circle")}, {}, "--classes received square,circle"),
        ({"image_size": (8, 16)}, {}, "--image_size received 8,16"),
        ({"balance": "sampling"}, {}, "--balance"),
        ({}, {"seed": 3}, "--seed received 3, but the run in --output 'out' was started with 0"),
        ({}, {"batch_size": 6}, "--batch_size received 6"),
        ({}, {"model": "MobileNetV2"}, "--model"),
        ({}, {"augment": "strong"}, "--augment received strong"),
        ({}, {"optimizer": OptimizerConfig(learning_rate=0.5)}, "--learning_rate received 0.5"),
        ({}, {"optimizer": OptimizerConfig(ema=0.9)}, "--ema received 0.9"),
    ],
)
def test_a_changed_setting_is_refused_by_its_flag(
    folder: pathlib.Path, data: dict[str, Any], changes: dict[str, Any], flag: str
) -> None:
    config = dataclasses.replace(_config(folder, data), **changes)
    with pytest.raises(UserError) as caught:
        check_same("out", _settings(_config(folder, {})), _settings(config))
    assert str(caught.value).startswith(flag) and "--overwrite" in str(caught.value)


def test_augment_on_may_differ_without_augmentation(folder: pathlib.Path) -> None:
    plain = _config(folder, {}, augment="none")
    assert _settings(plain, "host") == _settings(plain, "device")
    with pytest.raises(UserError, match="--augment_on received device"):
        check_same("out", _settings(_config(folder, {})), _settings(_config(folder, {}), "device"))


@pytest.mark.parametrize(
    ("optimizer", "longer"),
    [
        (OptimizerConfig(), True),
        (OptimizerConfig(schedule="step", decay_steps=5), True),
        (OptimizerConfig(schedule="step"), False),
        (OptimizerConfig(schedule="cosine"), False),
    ],
)
def test_a_run_may_become_longer_unless_its_schedule_depends_on_the_length(
    folder: pathlib.Path, optimizer: OptimizerConfig, longer: bool
) -> None:
    config = _config(folder, {}, optimizer=optimizer)
    begun, wanted = _settings(config, total=9), _settings(config, total=18)
    if longer:
        check_same("out", begun, wanted)
        return
    with pytest.raises(UserError, match="--steps received 18"):
        check_same("out", begun, wanted)


def test_another_data_set_is_refused(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other = make_data_set(tmp_path / "o", {"train": 12, "validation": 3}, size_px=((8, 8),))
    edit_manifest(other, classes=["circle", "square", "oval"])
    with pytest.raises(UserError, match="a run on other data: the manifest has changed"):
        check_same("out", _settings(_config(folder, {})), _settings(_config(other, {})))


def test_a_run_in_another_order_is_not_resumed(folder: pathlib.Path) -> None:
    settings = _settings(_config(folder, {}))
    older = {name: value for name, value in settings.items() if name != "order_version"}
    with pytest.raises(UserError, match="version 1 of their order, .* --overwrite") as caught:
        check_same("out", older, settings)
    assert "order_version" not in str(caught.value)


def test_overwriting_reads_nothing_of_the_old_run_and_says_where_curves_are(
    folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its list of broken records may be of other data, or no list at all."""
    import tensorflow as tf

    from trainer.training import run

    broken = tmp_path / "broken.json"
    broken.write_text("no list")
    mark_run(str(tmp_path))
    data = DataConfig(str(folder), skip_broken=1)
    config = TrainConfig(data, str(tmp_path), batch_size=4, overwrite=True, tensorboard=True)
    begun = run._Run(config, open_inputs(config), tf.distribute.get_strategy())
    assert begun.broken_handler.found == [] and not broken.exists()
    begun.print_plan()
    assert f": tensorboard --logdir {tmp_path}/tensorboard\n" in capsys.readouterr().out
