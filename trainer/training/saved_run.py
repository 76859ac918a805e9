"""Saves and restores a run: variables, the position, and the state of callbacks."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
from keras.callbacks import Callback

from imageshards.errors import UserError
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.models.keras_internals import check_weights, trained_variables
from trainer.models.model import state_variables
from trainer.training.checkpoint import (
    OF_REPLICAS,
    Array,
    Checkpoints,
    RunState,
    Values,
    parts_of,
    restore,
)
from trainer.training.resumed_optimizer import changes, describe_optimizer

_SAVING = ("best", "_batches_seen_since_last_saving", "_last_batch_seen")
# The attributes that Keras's callbacks carry from one step or epoch to the next. A test compares
# them with Keras's source. All further callbacks of Keras carry nothing.
REMEMBERED: dict[type[Callback], tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "cooldown_counter", "best"),
    keras.callbacks.ModelCheckpoint: (*_SAVING, "_current_epoch"),
    keras.callbacks.OrbaxCheckpoint: (*_SAVING, "_total_batches_seen"),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch"),
    keras.callbacks.History: ("epoch", "history"),
}


@dataclasses.dataclass(frozen=True)
class Saving:
    """How a run is saved.

    Attributes:
        folder: Folder of the run, local or in a store; None to save nothing.
        settings: JSON values by name that a resumed run must share.
        every_steps: Steps between checkpoints; the end of an epoch saves, too.
        keep: Number of last checkpoints to keep, besides the one with the lowest val_loss.
    """

    folder: str | None = None
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    every_steps: int = 1000
    keep: int = 2


class SavedRun:
    """The saved state of a run, written every `saving.every_steps` steps and after every epoch.

    The state has every variable (weights, optimizer, averages, metrics, states of random layers),
    the position in the data, and the state of callbacks. A callback of the user is saved by
    `state_dict()`, which returns plain values and NumPy arrays by name, and restored by
    `load_state_dict(state)`. Callbacks without these methods begin anew, and a note says so when a
    run is resumed.

    A thread writes copies of the state while training continues, checkpoint by checkpoint; leaving
    `with` waits for the last checkpoint. Until they are written, the copies take as much memory as
    the variables.

    Args:
        saving: Where and how often the state is saved.
        hosts: The hosts that train together; only the chief uses the folder.

    Attributes:
        checkpoints: The files; None to save nothing.
        state: The state of the run so far.
    """

    def __init__(self, saving: Saving, hosts: Hosts = ONE_HOST) -> None:
        self._hosts = hosts
        self._every_steps, folder = saving.every_steps, saving.folder
        self.checkpoints = Checkpoints(folder, saving.keep, hosts) if folder is not None else None
        latest = self.checkpoints.load_latest() if self.checkpoints else None
        self.state = latest or RunState(saving.settings)
        self._is_restored = latest is None
        # (step, epochs) of the last checkpoint, or of the last check without checkpoints.
        self._saved = (latest.step, latest.epochs) if latest is not None else None
        self._warned = False
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[str] | None = None

    def __enter__(self) -> SavedRun:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self.wait(all_hosts=kind is None)

    def saved_step(self) -> int | None:
        """Returns the step of the last checkpoint, 0 for none yet; None if nothing is saved."""
        if self.checkpoints is None:
            return None
        return self._saved[0] if self._saved else 0

    def wait(self, all_hosts: bool = True) -> None:
        """Waits until the last checkpoint is written."""
        if self._writing is not None:
            self._writing.result()
        # After an error some hosts never get here, so this host must not wait for them.
        if all_hosts:
            self._hosts.gather("checkpoint saved", None, patient=True)

    def attach(self, model: keras.Model, callbacks: Sequence[Callback]) -> None:
        """Names the model and the callbacks to save and restore, before training begins."""
        self._model, self._callbacks = model, list(callbacks)
        # Callbacks change the learning rate later, so the compiled rate is only known now.
        self._compiled = describe_optimizer(model)
        self._started = self.state.optimizer or self._compiled
        self.state.optimizer = self._started

    def restore(self) -> None:
        """Restores the last checkpoint, if any; refuses a checkpoint of another model."""
        if self._is_restored:
            return
        state = self.state
        changed = changes(self._started, self._compiled)
        if changed and self._hosts.is_chief:
            print(
                f"note: the optimizer of model.compile differs from that of this run ({changed}); "
                "its variables are those of the checkpoint, also a learning rate that is a number, "
                "which only a callback like LearningRateScheduler changes",
                file=sys.stderr,
            )
        restore(state_variables(self._model), state.variables, self._hosts)
        self._is_restored, self._saved = True, (state.step, state.epochs)
        self._model.stop_training |= state.stopped  # a callback may have stopped it before
        remembered = list(state.callbacks)
        for callback in self._callbacks:
            name = type(callback).__name__
            mine = next((i for i, (other, _) in enumerate(remembered) if other == name), None)
            if mine is not None:
                _remind(callback, remembered.pop(mine)[1], state.arrays)
            if isinstance(callback, keras.callbacks.TensorBoard) and self._model.optimizer:
                # TensorBoard divides the steps since this number by the seconds of this process.
                callback._previous_epoch_iterations = float(self._model.optimizer.iterations)
            if _forgets(callback) and self._hosts.is_chief:
                print(
                    f"note: {name} begins anew, as it has no state_dict() and "
                    "load_state_dict(state)",
                    file=sys.stderr,
                )
        state.variables, state.arrays = [], {}  # frees memory: the model holds these values now

    def save(self) -> None:
        """Saves the current state, as soon as the checkpoint before is written.

        Refuses weights that are infinite, not a number, or different on two replicas.
        """
        state = self.state
        if self._saved == (state.step, state.epochs):
            return
        check_weights(self._model, state.step, self._hosts.gather)
        if self.checkpoints is not None:
            self.wait()
            values = list(state_values(self._model, self._hosts))
            trained = {variable.path for variable in self._model.trainable_variables}
            for path, array in values:
                if path in trained and not np.isfinite(array).all():
                    self._refuse(path)
                    return
            self._write(self.checkpoints, values)
        self._saved = state.step, state.epochs

    def _write(self, checkpoints: Checkpoints, values: Values) -> None:
        arrays: dict[str, Array] = {}
        callbacks = [(type(one).__name__, _remembered(one, arrays)) for one in self._callbacks]
        self.state.stopped = bool(self._model.stop_training)
        state = dataclasses.replace(
            self.state, callbacks=callbacks, arrays=arrays, variables=values
        )
        if self._hosts.is_chief:
            self._writing = self._writer.submit(checkpoints.save, state)

    def _refuse(self, bad: str) -> None:
        """Ends the run because of the weight or the loss `bad`, unless a callback ends the run."""
        good = self._saved and self._saved[0]
        first = (good or 0) + 1
        what = (
            f"{bad} became infinite or not a number between the steps {first} and "
            f"{max(first, self.state.step)} (last good checkpoint: "
            f"{'none' if good is None else f'step {good}'})"
        )
        # If a callback ends such a run, the run ends without an error, as in Keras's `fit`.
        ends = any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in self._callbacks)
        if not (ends or self._model.stop_training):
            raise UserError(
                f"The optimizer received a learning rate for which {what}",
                expected="a run that converges",
                remedy="try a tenth of the rate, or a warm-up, in another folder or over this run",
            )
        if self._hosts.is_chief and not self._warned:
            print(f"{what}, so it is not saved", file=sys.stderr)
        self._warned = True

    def is_due(self) -> bool:
        """Returns whether `count_step` will save."""
        return (self.state.step + 1) % self._every_steps == 0

    def count_step(self) -> None:
        """Counts a step, and saves if `every_steps` is reached."""
        is_due = self.is_due()
        self.state.step += 1
        if is_due:
            self.save()

    def end_epoch(self, logs: Mapping[str, float]) -> None:
        """Counts an epoch after its validation, and saves; refuses a loss that is not finite."""
        state = self.state
        # A scaled loss of float16 keeps the weights finite, as such steps change nothing.
        if self.checkpoints is not None and not np.isfinite(logs.get("loss", 0.0)).all():
            self._refuse("the loss")
        state.epochs += 1
        loss = logs.get("val_loss")
        best = state.best_value
        if loss is not None and math.isfinite(loss) and (best is None or loss < best):
            state.best_step, state.best_value = state.step, float(loss)
        self.save()


def state_values(model: keras.Model, hosts: Hosts = ONE_HOST) -> Iterator[tuple[str, Array]]:
    """Yields the path of each variable of a compiled model, and a copy of its value.

    A variable that may differ between replicas has an array of all values, [replicas, *shape].
    """
    # Each replica counts its metrics and averages its unsynchronised statistics separately.
    own = {id(one) for one in [*model.non_trainable_variables, *model.metrics_variables]}
    own -= {id(one) for one in trained_variables(model)}  # frozen weights never differ
    variables = state_variables(model)
    parts = {f"{i}": parts_of(one) for i, one in enumerate(variables) if id(one) in own}
    mine = {i: np.stack([part.numpy() for part in of_one]) for i, of_one in parts.items() if of_one}
    joined = hosts.concatenate("replicas", mine)
    for i, variable in enumerate(variables):
        if (array := mine.get(f"{i}")) is not None:
            # Connections between hosts turn bfloat16 into bits without a type.
            yield variable.path + OF_REPLICAS, joined[f"{i}"].view(array.dtype)
        else:
            yield variable.path, variable.numpy()


def _remembered(callback: Callback, arrays: dict[str, Array]) -> dict[str, Any]:
    """Returns a callback's state as JSON values; adds its arrays to `arrays`."""
    if hasattr(callback, "state_dict"):
        state = callback.state_dict()
    else:
        names = [n for kind, own in REMEMBERED.items() if isinstance(callback, kind) for n in own]
        state = {name: vars(callback)[name] for name in names if name in vars(callback)}
    try:
        return {name: _to_json(value, arrays) for name, value in state.items()}
    except TypeError as e:
        raise UserError(
            argument="callbacks",
            received=f"{type(callback).__name__}, whose state_dict() returned {e}",
            expected="numbers, texts and NumPy arrays, or lists and dictionaries of them",
        ) from e


def _forgets(callback: Callback) -> bool:
    """Returns whether a user's callback has attributes, but no method that returns its state."""
    if hasattr(callback, "state_dict") or isinstance(callback, tuple(REMEMBERED)):
        return False
    ours = type(callback).__module__.startswith(("keras.", "trainer."))
    return not ours and bool(vars(callback).keys() - vars(Callback()).keys())


def _remind(callback: Callback, state: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    values = {name: _from_json(value, arrays) for name, value in state.items()}
    if hasattr(callback, "load_state_dict"):
        callback.load_state_dict(values)
        return
    # Keras's callbacks that watch a metric choose the sign of `min_delta` at the first comparison.
    if getattr(callback, "monitor_op", callback) is None:
        callback._set_monitor_op()
    vars(callback).update(values)


def _to_json(value: object, arrays: dict[str, Array]) -> Any:
    """Returns `value` with {"array": name} for arrays; raises TypeError for unknown types."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        name = f"{len(arrays)}"
        arrays[name] = value.copy()  # the callback may change its array during the writing
        return {"array": name}
    if isinstance(value, list | tuple):
        return [_to_json(one, arrays) for one in value]
    if isinstance(value, dict):  # by pairs, as keys may be numbers
        return {"dict": [[_to_json(k, {}), _to_json(v, arrays)] for k, v in value.items()]}
    raise TypeError(f"{type(value).__name__} among its values")


def _from_json(value: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(value, list):
        return [_from_json(one, arrays) for one in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    return {key: _from_json(one, arrays) for key, one in value["dict"]}
