"""Reads and writes checkpoints: variables, position and callbacks of a run, in whole files.

    checkpoints/step-00000123.npz

Each file is a NumPy archive of arrays, with JSON in `state`. The end of an epoch writes the file of
its step twice: before the validation, and after the callbacks.

The position is {seed, step, batch_size, fingerprint of the data}. The reader's order depends on
these alone, so a checkpoint holds no state of the reader. Variables are saved by value, so the
number of replicas may change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401  so that NumPy knows bfloat16 by name
import numpy as np

from imageshards import storage
from imageshards.commands.output_folder import output_errors
from imageshards.errors import Arg, StorageError, UserError
from imageshards.typed import convert
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.training.output_folder import CHECKPOINT_FILE, CHECKPOINTS_FOLDER, OTHER_OUTPUT

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

FORMAT_VERSION = 5
OF_REPLICAS = ", of every replica"

Array = np.ndarray[Any, Any]
# (path, value) of every variable, in order.
Values = list[tuple[str, Array]]


@dataclasses.dataclass
class RunState:
    """The state of a run.

    Attributes:
        identity: The settings that a resumed run must share: see `trainer.training.open_run`.
        step, epochs: Number of steps, and of epochs whose validation has ended.
        stopped: Whether a callback ended the training.
        best_step, best_value: Step and val_loss of the best validation.
        optimizer: The optimizer at the start of the run, see `trainer.training.resumed_optimizer`;
            None if unknown.
        callbacks: Class and state of every callback, as JSON values by name.
        arrays: The arrays of these states, by the names that replace them in the JSON values.
        variables: Values of the variables, only while the state is written or read.
    """

    identity: Mapping[str, Any]
    step: int = 0
    epochs: int = 0
    stopped: bool = False
    best_step: int | None = None
    best_value: float | None = None
    optimizer: dict[str, Any] | None = None
    callbacks: list[tuple[str, dict[str, Any]]] = dataclasses.field(default_factory=list)
    arrays: dict[str, Array] = dataclasses.field(default_factory=dict)
    variables: Values = dataclasses.field(default_factory=list)


class Checkpoints:
    """The checkpoints of one run: the last `keep` checkpoints, and the best.

    Only the chief reads and writes files, for all hosts that train together.
    """

    def __init__(self, output: str, keep: int, hosts: Hosts = ONE_HOST) -> None:
        self.folder = storage.join(output, CHECKPOINTS_FOLDER)
        self._output, self._keep, self._hosts = output, keep, hosts

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint, ascending."""
        names = (CHECKPOINT_FILE.fullmatch(one.name) for one in storage.list_folder(self.folder))
        return sorted(int(match[1]) for match in names if match)

    def path(self, step: int) -> str:
        """Returns the file of a checkpoint."""
        return storage.join(self.folder, f"step-{step:08d}.npz")

    def save(self, state: RunState) -> str:
        """Writes a checkpoint, deletes old checkpoints, and returns the path."""
        path = self.path(state.step)
        with output_errors(self._output, f"the checkpoint of step {state.step}"):
            with self._hosts.writing, storage.open_write(path) as file:
                _write(file, state)
            # The folder is synced so that the name survives a power cut, if the file system can.
            with contextlib.suppress(OSError):
                storage.sync(self.folder)
        # The next checkpoint deletes files that cannot be deleted now.
        with contextlib.suppress(OSError, StorageError):
            self._delete_old(state)
        return path

    def load_latest(self) -> RunState | None:
        """Returns the last checkpoint, or None without a checkpoint."""
        steps = self._hosts.gather("checkpoints", self.steps())[0]
        return self.load(steps[-1]) if steps else None

    def load(self, step: int) -> RunState:
        """Returns the checkpoint of `step`; raises a `UserError` if it cannot be read."""
        path = self.path(step)
        try:
            mine = storage.read(path) if self._hosts.is_chief else b""
            return _parsed(self._hosts.exchange("checkpoint", mine)[0])
        except (EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, OSError) as e:
            delete = "delete the file to resume from the checkpoint before, or start over with "
            remedy = delete + Arg("overwrite", True)
            if isinstance(e, OSError) and not isinstance(e, FileNotFoundError):
                remedy = "run the same command again when the file can be read"
            raise UserError(
                argument="output",
                received=f"a folder with the checkpoint {path}, which cannot be read ({e})",
                remedy=remedy,
            ) from e

    def _delete_old(self, state: RunState) -> None:
        """Deletes checkpoints that `state` replaces, and unfinished files of killed processes."""
        steps = [*self.steps()[-self._keep :], state.best_step]
        kept = {storage.name_of(self.path(step)) for step in steps if step is not None}
        found = (one for one in storage.list_folder(self.folder) if not one.is_folder)
        # `match` also finds names with an ending, which killed processes leave.
        storage.delete(
            one.path for one in found if CHECKPOINT_FILE.match(one.name) and one.name not in kept
        )


def _write(file: IO[bytes], state: RunState) -> None:
    arrays = {f"callback-{name}": array for name, array in state.arrays.items()}
    arrays |= {f"variable-{i}": array for i, (_, array) in enumerate(state.variables)}
    raw = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    raw |= {
        "format_version": FORMAT_VERSION,
        "arrays": list(state.arrays),
        "variables": [path for path, _ in state.variables],
        # NumPy's files have no bfloat16: the type of these arrays is written apart from their bits.
        "types": {name: a.dtype.name for name, a in arrays.items() if a.dtype.kind == "V"},
    }
    np.savez(file, state=np.array(json.dumps(raw).encode()), **arrays)  # type: ignore[arg-type]


def _parsed(data: bytes) -> RunState:
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        # Only Python's decoder of JSON accepts infinite numbers, which callbacks may remember.
        raw = json.loads(found["state"].item())
        if (version := raw["format_version"]) != FORMAT_VERSION:
            raise ValueError(f"format_version is {version}; expected {FORMAT_VERSION}")
        types = raw["types"]

        def array(name: str) -> Array:
            return found[name].view(types[name]) if name in types else found[name]

        arrays = {name: array(f"callback-{name}") for name in raw["arrays"]}
        variables = [(path, array(f"variable-{i}")) for i, path in enumerate(raw["variables"])]
    return convert(raw | {"arrays": arrays, "variables": variables}, RunState)


def restore(variables: Sequence[keras.Variable], values: Values, hosts: Hosts = ONE_HOST) -> None:
    """Assigns to every variable the saved value of its path, on every replica.

    Refuses values whose paths or shapes differ, as another model has saved them.
    """
    # Of equal paths the first variable gets the first value.
    mine = sorted(variables, key=lambda variable: variable.path)
    saved = sorted(values, key=_path)
    # Keras numbers layers without a name over the whole process. If these numbers differ between
    # processes, the order of creation decides.
    if [variable.path for variable in mine] != [_path(value) for value in saved]:
        mine, saved = list(variables), values
        paths = [unnumbered(variable.path) for variable in mine]
        names = [unnumbered(_path(value)) for value in saved]
        if paths != names:
            strangers = sorted(set(names) - set(paths))
            raise _other_model(f"a variable {strangers[0]!r}" if strangers else "other variables")
    for variable, (name, array) in zip(mine, saved, strict=True):
        if name.endswith(OF_REPLICAS):
            parts = parts_of(variable)
            # The array has a value for each replica, and a host's replicas are neighbours.
            if len(parts) * hosts.count == len(array):
                for part, value in zip(parts, array[hosts.index * len(parts) :], strict=False):
                    part.assign(value)
                continue
            # If the number of replicas has changed, each gets an equal share of the metrics' sums.
            # All further variables get the value of the first replica.
            is_sum = getattr(variable, "synchronization", None) == "on_read"
            array = array.sum(0) if is_sum else array[0]
        if tuple(variable.shape) != array.shape:
            raise _other_model(f"{variable.path!r} of the shape {array.shape}")
        variable.assign(array)


def parts_of(variable: keras.Variable) -> tuple[tf.Variable, ...]:
    """Returns TensorFlow's variable of every replica; empty with a single replica."""
    return getattr(variable.value, "values", ())


def _path(value: tuple[str, Array]) -> str:
    return value[0].removesuffix(OF_REPLICAS)


def unnumbered(path: str) -> str:
    """Returns a path without numbers, which vary by process: `dense_7/kernel` → `dense/kernel`."""
    return re.sub(r"_\d+(?=[/_]|$)", "", path.removesuffix(OF_REPLICAS))


def _other_model(what: str) -> UserError:
    return UserError(
        argument="output",
        received=f"a checkpoint with {what}, which this model and optimizer do not have",
        expected="the same " + Arg("model"),
        remedy=OTHER_OUTPUT,
    )
