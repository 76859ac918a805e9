"""What may change between the parts of one run, and what may not."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest

from imageshards.errors import UserError
from tests.support.trainer_data import edit_manifest, make_data_set
from trainer.cluster.hosts import ONE_HOST
from trainer.config import OptimizerConfig, ReadConfig, RunConfig
from trainer.reader.batches import open_data
from trainer.training.output_folder import begin_run
from trainer.training.resume_check import check_same, settings_of

AUGMENT = ("none", "light")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    pytest.importorskip("tensorflow")
    path = tmp_path_factory.mktemp("settings") / "shards"
    return make_data_set(path, {"train": 12, "validation": 3}, size_px=((8, 8),))


def _config(folder: pathlib.Path, read: dict[str, Any], **changes: Any) -> RunConfig:
    given: dict[str, Any] = {"batch_size": 4, "augment_on": "host", **read}
    return RunConfig(ReadConfig(str(folder), **given), "out", **changes)


def _settings(config: RunConfig, total: int = 9) -> dict[str, Any]:
    return settings_of(config, open_data(config.read)[0], total)


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        ({"cache": "disk"}, {}),
        ({"threads": 1, "skip_broken": 3}, {}),
        ({"image_size": (8, 8)}, {}),  # the data set's own
        ({}, {"replicas": 2}),
        ({}, {"checkpoint_steps": 1, "keep_checkpoints": 9}),
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
        ({"seed": 3}, {}, "--seed received 3, but the run in --output 'out' was started with 0"),
        ({"batch_size": 6}, {}, "--batch_size received 6"),
        ({}, {"model": "MobileNetV2"}, "--model"),
        ({"augment": "strong"}, {}, "--augment received strong"),
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
    host, device = (
        [_settings(_config(folder, {"augment_on": on, "augment": augment})) for augment in AUGMENT]
        for on in ("host", "device")
    )
    assert host[0] == device[0]
    with pytest.raises(UserError, match="--augment_on received device"):
        check_same("out", host[1], device[1])


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


def test_overwriting_reads_nothing_of_the_old_run(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Its list of broken records may be of other data, or no list at all."""
    import tensorflow as tf

    from trainer.training import run

    broken = tmp_path / "broken.json"
    broken.write_text("no list")
    (tmp_path / ".run").touch()
    config = _config(folder, {"skip_broken": 1}, overwrite=True)
    config = dataclasses.replace(config, output=str(tmp_path))
    data = open_data(config.read)
    with begin_run(str(tmp_path), config.overwrite):
        begun = run.open_run(config, *data, tf.distribute.get_strategy(), ONE_HOST)
    assert begun.broken_handler.found == [] and not broken.exists()
