"""Checkpoints of a model in training: consistent, written beside it, small after an epoch."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import threading
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import pytest

from imageshards import storage
from imageshards.errors import UserError

pytest.importorskip("tensorflow")

import keras

from trainer.training.saved_run import SavedRun, state_values
from trainer.training.signals import Stopped


class Sums(keras.callbacks.Callback):
    """Remembers an array, which it changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = np.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums = state["sums"]


def _saved(run: pathlib.Path, *callbacks: Any) -> tuple[SavedRun, keras.Model]:
    model = keras.Sequential([keras.Input((200,)), keras.layers.Dense(100)])
    model.compile(keras.optimizers.Adam(0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    saved = SavedRun(str(run), 1, 1, {})
    saved.attach(model, callbacks)
    return saved, model


def _all(run: SavedRun | keras.Model) -> dict[str, Any]:
    """What a run finds when it begins, or what a model holds."""
    values = run.state.variables if isinstance(run, SavedRun) else state_values(run)
    return {path: array.tolist() for path, array in values}


def test_training_goes_on_while_a_consistent_checkpoint_is_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, plain = threading.Event(), storage.open_write

    @contextlib.contextmanager
    def slow(path: str) -> Iterator[IO[bytes]]:
        assert goes_on.wait(60)
        with plain(path) as file:
            yield file

    monkeypatch.setattr(storage, "open_write", slow)
    callback = Sums()
    saved, model = _saved(tmp_path, callback)
    before = _all(model)
    with saved:
        saved.count_steps()
        for variable in model.variables + model.optimizer.variables:
            variable.assign_add(keras.ops.ones_like(variable))
        callback.sums += 1
        goes_on.set()
    assert _all(model) != before
    found, _ = _saved(tmp_path)
    assert _all(found) == before
    assert [array.tolist() for array in found.state.arrays.values()] == [[0, 0, 0]]


@pytest.mark.parametrize("end", ["the next save", "the end", "a stop"])
def test_what_cannot_be_written_ends_the_run_later(tmp_path: pathlib.Path, end: str) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    saved, _ = _saved(tmp_path)
    with pytest.raises(UserError, match="the checkpoint of step 1 cannot be written .* make room"):
        with saved:
            saved.count_steps()
            if end == "the next save":
                saved.count_steps()
                raise AssertionError("not reached")
            if end == "a stop":
                raise Stopped(signal.SIGTERM)


def test_the_end_of_an_epoch_writes_what_callbacks_changed(tmp_path: pathlib.Path) -> None:
    stopping = keras.callbacks.EarlyStopping("loss", mode="min")
    saved, model = _saved(tmp_path, stopping, callback := Sums())
    stopping.best_weights = model.get_weights()  # of an epoch before
    with saved:
        saved.count_steps()
        model.optimizer.learning_rate = 0.25
        callback.sums += 1
        saved.end_epoch({"val_loss": 0.5})
    whole, changes = sorted((tmp_path / "checkpoints").iterdir())
    assert whole.stat().st_size > 3 * 80_000 and changes.stat().st_size < 4_000
    found, _ = _saved(tmp_path)
    assert _all(found) == _all(model)
    assert (found.state.epochs, found.state.best_step) == (1, 1)
    again = [array.tolist() for array in found.state.arrays.values()]
    assert again[-1] == [1, 1, 1] and again[0] == stopping.best_weights[0].tolist()
    # It goes on, and keeps both files of the best epoch.
    with found:
        found.attach(model, [])
        found.restore()
        found.count_steps()
        found.count_steps()
    kept = {whole.name, changes.name, "step-00000003.npz"}
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == kept
