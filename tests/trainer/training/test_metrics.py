"""TensorBoard's event files, read back as TensorBoard reads them."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
from typing import Any

import numpy as np
import pytest

from imageshards.errors import UserError
from trainer.training import metrics

tf = pytest.importorskip("tensorflow")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
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
