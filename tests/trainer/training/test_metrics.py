"""Seconds of training and of waiting, the record of an epoch, TensorBoard's event files."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
from typing import Any

import numpy as np
import pytest

from imageshards.errors import UserError
from trainer.training import metrics
from trainer.training.checkpoint import RunState
from trainer.training.metrics import StepClock, epoch_line, epoch_record, finite

tf = pytest.importorskip("tensorflow")


def test_fetching_during_a_step_is_no_waiting() -> None:
    clock = StepClock()
    clock.fetched(0.3)
    assert clock.wait_sec == pytest.approx(0.3)  # nothing known of a step yet
    clock.dispatch_sec = 0.01
    clock.step_sec = 0.11  # 0.1 s go on after the step was handed over
    clock.fetched(0.08)
    assert clock.wait_sec == pytest.approx(0.3)
    clock.fetched(0.25)
    assert clock.wait_sec == pytest.approx(0.3 + 0.15)


def test_fetching_after_a_synchronous_step_is_waiting() -> None:
    clock = StepClock()
    clock.dispatch_sec = 0.5
    clock.step_sec = 0.5
    clock.fetched(0.2)
    assert clock.wait_sec == pytest.approx(0.2)


def test_a_resumed_epoch_keeps_its_seconds() -> None:
    clock = StepClock()
    clock.reset(5.0, 1.0)
    clock.pause()
    assert 5.0 <= clock.train_sec < 5.5 and clock.wait_sec == 1.0


def test_an_epochs_record_divides_by_the_weight_and_holds_no_nan() -> None:
    record = epoch_record(2, RunState({}, 40, (30.0, 15.0, 20.0), 4.0, 1.0, 1280), 0.01)
    assert record == {
        "epoch": 2,
        "step": 40,
        "loss": 1.5,
        "accuracy": 0.75,
        "val_loss": None,
        "val_accuracy": None,
        "images_per_second": 320.0,
        "wait_fraction": 0.25,
        "learning_rate": 0.01,
    }
    assert "epoch 2/3" in epoch_line(record, 3) and "waited 25% for data" in epoch_line(record, 3)
    slow = epoch_record(1, RunState({}, 1, (1.0, 1.0, 1.0), 10.0, 0.0, 8), 0.1)
    assert "0.8 images/s" in epoch_line(slow, 1) and "320 images/s" in epoch_line(record, 3)
    empty = epoch_record(1, RunState({}, 1), 0.1)
    assert empty["loss"] is empty["images_per_second"] is empty["wait_fraction"] is None
    assert epoch_line(empty, 1) == "epoch 1/1"
    assert finite(float("nan")) is finite(float("inf")) is finite(None) is None


def test_a_missing_tensorboard_is_an_error_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"--tensorboard .*imageshards\[tensorboard\]"):
        metrics.check_tensorboard()


def test_scalars_and_pictures_are_read_back(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tensorboard")
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    metrics.check_tensorboard()
    pictures = np.random.default_rng(1).integers(0, 256, (20, 6, 9, 3), np.uint8)
    for step in (3, 6):  # A resumed run writes another file.
        board = metrics.TensorBoard(str(tmp_path / "new"))
        board.epoch({"step": step, "loss": 1 / step, "val_loss": None})
        board.images(step, "augmented", pictures)
    found = events.EventAccumulator(str(tmp_path / "new"), {"tensors": 0}).Reload()
    losses: list[Any] = found.Tensors("loss")
    assert [event.step for event in losses] == [3, 6]
    assert [float(tf.make_ndarray(event.tensor_proto)) for event in losses] == pytest.approx(
        [1 / 3, 1 / 6]
    )
    assert {"step", "val_loss"}.isdisjoint(found.Tags()["tensors"])
    panel = tf.make_ndarray(found.Tensors("augmented")[0].tensor_proto)
    # Width, height, then the pictures as PNG.
    assert [int(x) for x in panel[:2]] == [9, 6]
    assert len(panel) == 2 + metrics.MAX_IMAGES
    np.testing.assert_array_equal(tf.io.decode_png(panel[2]), pictures[0])
