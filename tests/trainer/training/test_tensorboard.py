"""TensorBoard's event files, read back as TensorBoard reads them."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
from typing import Any

import numpy as np
import pytest

from imageshards.errors import UserError
from trainer.training import tensorboard

tf = pytest.importorskip("tensorflow")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"--tensorboard .*imageshards\[tensorboard\]"):
        tensorboard.check()


def test_scalars_and_pictures_are_read_back(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tensorboard")
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    tensorboard.check()
    pictures = np.random.default_rng(1).integers(0, 256, (20, 6, 9, 3), np.uint8)
    for step in (3, 6):  # A second writer: the run went on.
        writer = tensorboard.Writer(str(tmp_path / "new"))
        writer.scalars(step, {"loss": 1 / step, "val_loss": 0.5})
        writer.images(step, "augmented", pictures)
        writer.close()
    # A run that goes on writes another file.
    found = events.EventAccumulator(str(tmp_path / "new"), {"tensors": 0}).Reload()
    losses: list[Any] = found.Tensors("loss")
    assert [event.step for event in losses] == [3, 6]
    assert [float(tf.make_ndarray(event.tensor_proto)) for event in losses] == pytest.approx(
        [1 / 3, 1 / 6]
    )
    panel = tf.make_ndarray(found.Tensors("augmented")[0].tensor_proto)
    # Width, height, then the pictures as PNG.
    assert [int(x) for x in panel[:2]] == [9, 6]
    assert len(panel) == 2 + tensorboard.MAX_IMAGES
    np.testing.assert_array_equal(tf.io.decode_png(panel[2]), pictures[0])
