import contextlib
import inspect
import math
import pathlib
import re
import signal
import threading
from collections.abc import Iterator
from typing import IO, Any

import keras
import numpy as np
import pytest

from imageshards import storage
from tests.support import tiny_models
from tests.support.errors import refused
from trainer.training.saved_run import REMEMBERED, SavedRun, Saving, state_values
from trainer.training.signals import Stopped


class Remembers(keras.callbacks.Callback):
    def __init__(self, **values: Any) -> None:
        super().__init__()
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


class Forgets(keras.callbacks.Callback):
    """Has an attribute, and no way to tell that it is to be saved."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0


def _saved(run: pathlib.Path, *callbacks: Any) -> tuple[SavedRun, keras.Model]:
    model = keras.Sequential([keras.Input((200,)), keras.layers.Dense(100)])
    model.compile(keras.optimizers.Adam(0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    saved = SavedRun(Saving(str(run), every_steps=1, keep=1))
    saved.attach(model, callbacks)
    return saved, model


def _all(run: SavedRun | keras.Model) -> dict[str, Any]:
    """What a run finds when it begins, or what a model holds."""
    values = run.state.variables if isinstance(run, SavedRun) else state_values(run)
    return {path: array.tolist() for path, array in values}


def test_training_goes_on_while_a_consistent_checkpoint_is_written(tmp_path, monkeypatch):
    goes_on, plain = threading.Event(), storage.open_write

    @contextlib.contextmanager
    def slow(path: str) -> Iterator[IO[bytes]]:
        assert goes_on.wait(60)
        with plain(path) as file:
            yield file

    monkeypatch.setattr(storage, "open_write", slow)
    saved, model = _saved(tmp_path, Remembers(sums=(sums := np.zeros(3))))
    before = _all(model)
    with saved:
        saved.count_step()
        for variable in model.variables + model.optimizer.variables:
            variable.assign_add(keras.ops.ones_like(variable))
        sums += 1  # in place
        goes_on.set()
    assert _all(model) != before
    found, _ = _saved(tmp_path)
    assert _all(found) == before
    assert [array.tolist() for array in found.state.arrays.values()] == [[0, 0, 0]]


@pytest.mark.parametrize("end", ["the next save", "the end", "a stop"])
def test_a_failed_write_ends_the_run_later(tmp_path: pathlib.Path, end: str) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    saved, _ = _saved(tmp_path)
    with refused("output", "step 1"):
        with saved:
            saved.count_step()
            if end == "the next save":
                saved.count_step()
                raise AssertionError("not reached")
            if end == "a stop":
                raise Stopped(signal.SIGTERM)


def test_the_end_of_an_epoch_saves_what_callbacks_changed(tmp_path: pathlib.Path) -> None:
    stopping = keras.callbacks.EarlyStopping("loss", mode="min")
    saved, model = _saved(tmp_path, stopping, Remembers(sums=(sums := np.zeros(3))))
    stopping.best_weights = model.get_weights()  # of an epoch before
    with saved:
        saved.count_step()
        model.optimizer.learning_rate = 0.25
        sums += 1
        saved.end_epoch({"val_loss": 0.5})
    found, _ = _saved(tmp_path)
    assert _all(found) == _all(model)
    assert (found.state.epochs, found.state.best_step) == (1, 1)
    again = [array.tolist() for array in found.state.arrays.values()]
    assert again[-1] == [1, 1, 1] and again[0] == stopping.best_weights[0].tolist()


def test_a_loss_that_is_not_finite_ends_the_run_though_the_weights_are_finite(tmp_path):
    saved, _ = _saved(tmp_path)
    with refused("", "the loss became infinite or not a number between the steps 3 and 3"), saved:
        saved.count_step()
        saved.count_step()
        saved.end_epoch({"loss": math.nan})


def test_the_state_of_callbacks_is_restored_or_a_note_names_the_callback(tmp_path, capsys):
    by_epoch = {3: [0.5], "arrays": [np.arange(3), {"one": np.float32(1.5)}]}
    values = {"steps": 2, "name": "x", "by_epoch": by_epoch}
    stopping, again = (keras.callbacks.EarlyStopping("loss", mode="min") for _ in range(2))
    stopping.wait, stopping.best, stopping.best_weights = 3, np.float32(0.5), [np.ones(2)]
    saved, _ = _saved(tmp_path, Remembers(**values), Forgets(), stopping)
    with saved:
        saved.save()
    other, silent = Remembers(), tiny_models.StopAfter()
    _saved(tmp_path, other, Forgets(), silent, again)[0].restore()
    assert (again.wait, again.best) == (3, 0.5) and again.best_weights[0].tolist() == [1, 1]
    np.testing.assert_equal(other.values, values)
    told = capsys.readouterr().err
    assert told.startswith("note: Forgets begins anew, as it has no state_dict()")
    assert told.count("\n") == 1
    with refused("callbacks", "Remembers", "set among its"):
        _saved(tmp_path, Remembers(seen={1}))[0].count_step()


# What Keras's callbacks change after they were made, and make anew where training begins again:
# open files, clocks, what is shown of a batch. `BackupAndRestore` is refused.
_MADE_ANEW = {
    "BackupAndRestore": {"_batches_seen_since_last_saving", "_current_epoch", "_last_batch_seen"},
    "CSVLogger": {"append_header", "csv_file", "keys", "writer"},
    "OrbaxCheckpoint": {"_async_futures"},
    "ProgbarLogger": {"_called_in_fit", "progbar", "seen", "target"},
    "TensorBoard": {
        "_batch_start_time", "_batch_trace_context", "_epoch_start_time", "_is_tracing",
        "_prev_summary_state", "_previous_epoch_iterations", "_profiler_started",
        "_should_write_train_graph", "_summary_module", "_writers",
    },
}  # fmt: skip
_BEFORE_TRAINING = (
    "__init__", "set_model", "set_params", "_configure_embeddings", "_init_profile_batch",
    "_set_monitor_op",
)  # fmt: skip
_CHANGE = re.compile(
    r"self\.(\w+)(?:(?:\[[^]]*\])? [-+*/]?= |\.(?:append|clear|extend|pop|setdefault|update)\()"
)


def _changed(kind: type) -> set[str]:
    """The attributes that methods of one of Keras's callbacks change after it was made."""
    methods = (getattr(one, "fget", one) for one in vars(kind).values())
    return {
        match[1]
        for method in methods
        if inspect.isfunction(method) and method.__name__ not in _BEFORE_TRAINING
        for match in _CHANGE.finditer(inspect.getsource(method))
    }


def test_all_state_of_keras_callbacks_is_saved() -> None:
    public = {*filter(inspect.isclass, vars(keras.callbacks).values())}
    public -= {keras.callbacks.CallbackList}
    assert len(public) > 10
    for kind in public:
        found = set().union(*map(_changed, kind.__mro__))
        assert found == {*REMEMBERED.get(kind, ())} | _MADE_ANEW.get(kind.__name__, set()), kind


def test_tensorboard_counts_steps_per_second_from_the_resumed_step(tmp_path):
    board = keras.callbacks.TensorBoard(tmp_path / "events", write_steps_per_second=True)
    saved, model = _saved(tmp_path)
    model.optimizer.iterations.assign(7)
    with saved:
        saved.count_step()
    resumed, _ = _saved(tmp_path, board)
    resumed.restore()
    assert board._previous_epoch_iterations == 7
