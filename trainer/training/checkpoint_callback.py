"""What saves a run and puts it back: variables, the position, and what callbacks remember."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras.callbacks import Callback

from imageshards.errors import UserError, names_arguments
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.models.keras_internals import check_weights
from trainer.models.model import state_variables
from trainer.training.checkpoint import (
    Array,
    Checkpoints,
    RunState,
    Values,
    from_chief,
    restore,
    values_of,
)

# Set by Keras for every callback: not what it remembers.
_NOT_REMEMBERED = "params"


class Checkpoint(Callback):
    """Saves everything that training remembers, every `every_steps` steps and after every epoch.

    That is every variable (weights, optimizer, averages, metrics, states of random layers), the
    position in the data, and what the other callbacks remember: what `state_dict()` returns
    where a callback has it, put back by `load_state_dict(state)`; else those of its attributes
    that training changed and that are plain values or NumPy arrays.

    In Keras's own `fit` it saves, too; with `identity=train.identity` `ims.fit` goes on from there.

    Args:
        folder: Of the run; checkpoints go into `checkpoints/` there.
        every_steps: Steps between two checkpoints, besides those at the ends of epochs.
        keep: How many of the last ones stay, besides the one with the lowest val_loss.
        identity: JSON values that a resumed run must share.
        others: The callbacks whose memory is saved, where Keras's `fit` is used.
        hosts: Those that train together; the chief alone uses `folder`.

    Attributes:
        step: Training steps done.
        epochs: Epochs finished.
    """

    @names_arguments(output="folder")
    def __init__(
        self,
        folder: str,
        every_steps: int = 1000,
        keep: int = 2,
        identity: Mapping[str, Any] | None = None,
        others: Sequence[Callback] = (),
        hosts: Hosts = ONE_HOST,
    ) -> None:
        super().__init__()
        self._hosts = hosts
        self.checkpoints = Checkpoints(folder, keep)
        self.state = RunState(identity or {})
        self._every_steps = every_steps
        self._others = list(others)
        self._at_begin: list[dict[str, str]] = []
        self._loaded: Values | None = None
        self._saved: tuple[int, int] | None = None
        self._told = False
        latest = from_chief(hosts, self.checkpoints.load_latest)
        if latest is not None:
            self.state, self._loaded = latest
        self.step, self.epochs = self.state.step, self.state.epochs

    def watch(self, callbacks: Sequence[Callback]) -> None:
        """Says whose memory is saved; called when training begins."""
        self._others = [callback for callback in callbacks if callback is not self]
        self._at_begin = [_plain_attributes(callback, None) for callback in self._others]

    @names_arguments(output="folder")
    def restore(self) -> None:
        """Puts back what the last checkpoint holds; does nothing where there is none.

        Raises:
            UserError: The model, or a callback, is another one.
        """
        if self._loaded is None:
            return
        restore(state_variables(self.model), self._loaded, self._hosts)
        self._loaded, self._saved = None, (self.step, self.epochs)
        self.model.stop_training = self.state.stopped
        remembered = list(self.state.callbacks)
        for callback in self._others:
            name = type(callback).__name__
            mine = next((i for i, (other, _) in enumerate(remembered) if other == name), None)
            if mine is not None:
                _remind(callback, remembered.pop(mine)[1], self.state.arrays)

    def load(self, step: int) -> Values:
        """The variables of an earlier checkpoint.

        Raises:
            UserError: It cannot be read.
        """
        found = from_chief(self._hosts, lambda: self.checkpoints.load(step))
        return found[1] if found else []

    def save(self) -> None:
        """Saves now.

        Raises:
            UserError: It cannot be written, or a weight is no finite number, or another one on
                another replica.
        """
        if self._saved == (self.step, self.epochs):
            return
        check_weights(self.model, self.step, self._hosts)
        values = state_values(self.model, self._hosts)
        if (bad := self._no_number(values)) is not None:
            what = f"{bad} became infinite or not a number"
            # Where a callback ends such a run, it ends as in Keras's `fit`.
            ends = any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in self._others)
            if not (ends or self.model.stop_training):
                raise self.diverged(what)
            if self._hosts.is_chief and not self._told:
                print(f"{what} {self._since()}, so it is not saved", file=sys.stderr)
            self._told = True
            return
        state = self.state
        state.step, state.epochs = self.step, self.epochs
        state.stopped = bool(self.model.stop_training)
        state.arrays = {}
        state.callbacks = [
            (type(callback).__name__, _remembered(callback, at_begin, state.arrays))
            for callback, at_begin in zip(self._others, self._at_begin, strict=True)
        ]
        if self._hosts.is_chief:
            self.checkpoints.save(state, values)
        # All hosts wait until the checkpoint is written.
        self._hosts.gather("checkpoint saved", None, patient=True)
        self._saved = self.step, self.epochs

    def diverged(self, what: str) -> UserError:
        """What a person is told whose run does not converge."""
        return UserError(
            f"The optimizer received a learning rate for which {what} {self._since()}; expected a "
            "run that converges: try a tenth of it, or a warm-up, in a folder of its own or over "
            "this run."
        )

    def _since(self) -> str:
        since, good = 0, "none"
        if self._saved:
            since = self._saved[0]
            good = self.checkpoints.path(since) if self._hosts.is_chief else f"that of step {since}"
        return (
            f"between the steps {since + 1} and {max(since + 1, self.step)} (last good "
            f"checkpoint: {good})"
        )

    def _no_number(self, values: Values) -> str | None:
        """The path of a weight that is no finite number."""
        trained = {variable.path for variable in self.model.trainable_variables}
        bad = (path for path, one in values if path in trained and not np.isfinite(one).all())
        return next(bad, None)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Looks at what callbacks remember from the beginning.

        Raises:
            UserError: Keras's `fit` takes more steps in an epoch than it says.
        """
        at_once, steps = self.model.steps_per_execution, self.params.get("steps")
        if at_once > 1 and (steps is None or steps % at_once):
            raise UserError(
                f"steps_per_execution received {at_once} in model.compile with {steps} steps in an "
                "epoch, of which Keras takes more, or less, than it says; expected a "
                "steps_per_epoch that is a multiple, so that the checkpoint knows the position."
            )
        self.watch(self._others)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Counts the steps of one call of Keras's train function."""
        self.count(self.model.steps_per_execution)

    def count(self, steps: int) -> None:
        """Counts steps that were taken, and saves after some of them."""
        before, self.step = self.step, self.step + steps
        if self.step // self._every_steps > before // self._every_steps:
            self.save()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Saves the end of an epoch."""
        self.epochs = epoch + 1
        loss = (logs or {}).get("val_loss")
        best = self.state.best_value
        if loss is not None and math.isfinite(loss) and (best is None or loss < best):
            self.state.best_step, self.state.best_value = self.step, float(loss)
        self.save()


def state_values(model: keras.Model, hosts: Hosts = ONE_HOST) -> Values:
    """Everything that a compiled model remembers between two steps, on every replica."""
    # Replicas count metrics, and average statistics that are not synchronised, by themselves.
    own = [*model.non_trainable_variables, *model.metrics_variables]
    return values_of(state_variables(model), {id(variable) for variable in own}, hosts)


def _remembered(
    callback: Callback, at_begin: Mapping[str, str], arrays: dict[str, Array]
) -> dict[str, Any]:
    """What a callback remembers, as JSON values; its arrays are added to `arrays`."""
    if hasattr(callback, "state_dict"):
        return {name: _to_json(value, arrays) for name, value in callback.state_dict().items()}
    found = _plain_attributes(callback, arrays)
    return {k: json.loads(v) for k, v in found.items() if at_begin.get(k) != v}


def _remind(callback: Callback, state: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    values = {name: _from_json(value, arrays) for name, value in state.items()}
    if hasattr(callback, "load_state_dict"):
        callback.load_state_dict(values)
        return
    # Keras's own that watch a metric turn `min_delta` round when they first compare.
    if getattr(callback, "monitor_op", callback) is None:
        callback._set_monitor_op()
    for name, value in values.items():
        current = vars(callback).get(name)
        if isinstance(current, dict | set):  # also a Counter, a defaultdict
            current.clear()
            current.update(value)
        else:
            setattr(callback, name, value)


def _plain_attributes(callback: Callback, arrays: dict[str, Array] | None) -> dict[str, str]:
    """Attributes that JSON and NumPy have values for, as JSON texts.

    Args:
        callback: Whose.
        arrays: Gets the arrays; None leaves attributes with arrays out.
    """
    found = {}
    for name, value in vars(callback).items():
        mine: dict[str, Array] = {}
        try:
            text = json.dumps(_to_json(value, mine, len(arrays or ())))
        except TypeError:
            continue
        if name == _NOT_REMEMBERED or (mine and arrays is None):
            continue
        found[name] = text
        if arrays is not None:
            arrays.update(mine)
    return found


def _to_json(value: Any, arrays: dict[str, Array], first: int = 0) -> Any:
    """`value`, its arrays replaced by {"array": name}, dictionaries and sets in the same way.

    Raises:
        TypeError: It is more than plain values and arrays.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        name = f"{first + len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, list | tuple):
        return [_to_json(one, arrays, first) for one in value]
    if isinstance(value, dict):  # by pairs, as keys may be numbers
        pairs = [[_to_json(k, {}), _to_json(v, arrays, first)] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, set):
        return {"set": sorted((_to_json(one, {}) for one in value), key=repr)}
    raise TypeError(f"{type(value).__name__} is no plain value")


def _from_json(value: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(value, list):
        return [_from_json(one, arrays) for one in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    if "set" in value:
        return set(value["set"])
    return {key: _from_json(one, arrays) for key, one in value["dict"]}
