"""Checkpoints: variables, position and callbacks of a run, written whole or not at all.

    checkpoints/step-00000123/variables-2.npz   # every variable, with its path
    checkpoints/step-00000123/callbacks-2.npz   # arrays that callbacks remember
    checkpoints/step-00000123/state.json        # the position, here in the third epoch

`state.json` is written last and names the others by its number of epochs: a folder without it is no
checkpoint. On a disk and in a store alike, where a folder cannot be renamed.

The position is {seed, step, batch_size, fingerprint of the data}: the reader's order is a
pure function of it, so nothing of the reader has to be saved. Variables are saved by
value, so that the number of replicas may change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import IO, Any

import ml_dtypes  # noqa: F401  so that NumPy knows bfloat16 by name
import numpy as np

from imageshards import storage
from imageshards.errors import StorageError, UserError
from imageshards.form import (
    FormError,
    anything,
    flag,
    keyed,
    listed,
    loads,
    mapped,
    nullable,
    number,
    one_of,
    text,
    whole,
)
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.output_errors import output_errors
from trainer.training.output_folder import CHECKPOINTS_FOLDER

FORMAT_VERSION = 2
_STATE = "state.json"
_COMMITTED = re.compile(rf"/step-(\d+)/{re.escape(_STATE)}$")
_FOLDER = re.compile(r"step-\d")
_INDEX = "index"
_OF_REPLICAS = ", of every replica"


def _callback(value: Any) -> None:
    """Class of a callback, and what it remembers."""
    listed(anything)(value)
    if len(value) != 2:
        raise FormError(value, "a pair")
    text()(value[0])
    mapped(anything)(value[1])


_STATE_FORM = keyed(
    {
        "format_version": one_of(FORMAT_VERSION),
        "identity": mapped(anything),
        "callbacks": listed(_callback),
    },
    {
        "step": whole(),
        "epochs": whole(),
        "stopped": flag,
        "best_step": nullable(whole()),
        "best_value": nullable(number),
    },
)

Array = np.ndarray[Any, Any]
# (path, value) of every variable, in order.
Values = list[tuple[str, Array]]


@dataclasses.dataclass
class RunState:
    """The state of a run besides its variables.

    Attributes:
        identity: The settings a resumed run must share: see `trainer.training.resume_check`.
        step: Training steps done.
        epochs: Epochs finished, their validation included.
        stopped: Whether a callback ended the training.
        best_step: Where the best validation was; None before the first.
        best_value: Its val_loss.
        callbacks: What every callback remembers: its class, and JSON values by name.
        arrays: The arrays among these, by the names that stand in their place.
    """

    identity: Mapping[str, Any]
    step: int = 0
    epochs: int = 0
    stopped: bool = False
    best_step: int | None = None
    best_value: float | None = None
    callbacks: list[tuple[str, dict[str, Any]]] = dataclasses.field(default_factory=list)
    arrays: dict[str, Array] = dataclasses.field(default_factory=dict)


class Checkpoints:
    """The checkpoints of one run.

    Args:
        output: The run's folder, local or in a store.
        keep: How many of the last ones stay, besides the best.
    """

    def __init__(self, output: str, keep: int) -> None:
        self.folder = storage.join(output, CHECKPOINTS_FOLDER)
        self._output = output
        self._keep = keep

    def steps(self) -> list[int]:
        """The steps there are checkpoints of, ascending."""
        found = (_COMMITTED.search(file.path) for file in storage.files_below(self.folder))
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> str:
        """The folder of one checkpoint."""
        return storage.join(self.folder, f"step-{step:08d}")

    def save(self, state: RunState, variables: Values) -> str:
        """Writes a checkpoint, and deletes old ones.

        Where there is one of this step already, it stays whole until the new one is.

        Args:
            state: The run's state.
            variables: As `values_of` returns them.

        Returns:
            Its folder.

        Raises:
            UserError: It cannot be written.
        """
        path = self.path(state.step)
        with output_errors(
            self._output,
            f"the checkpoint of step {state.step}",
            "run the same command again to resume from the checkpoint before",
        ):
            arrays = list(state.arrays.items())
            for name, values in zip(_array_files(state), (variables, arrays), strict=True):
                with storage.open_write(storage.join(path, name)) as file:
                    _write_arrays(file, values)
            _sync(path)
            storage.write(storage.join(path, _STATE), _state_text(state))
            _sync(path, self.folder)
        self._delete_old(state)
        return path

    def load_latest(self) -> tuple[RunState, Values] | None:
        """The last checkpoint, or None where there is none.

        Raises:
            UserError: It cannot be read.
        """
        steps = self.steps()
        return self.load(steps[-1]) if steps else None

    def load(self, step: int) -> tuple[RunState, Values]:
        """The checkpoint of `step`: the run's state, and its variables in order.

        Raises:
            UserError: It cannot be read.
        """
        path = self.path(step)
        try:
            state = _parsed_state(storage.read(storage.join(path, _STATE)))
            variables, arrays = (
                _read_arrays(storage.join(path, name)) for name in _array_files(state)
            )
            state.arrays = dict(arrays)
            return state, variables
        except (EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, OSError) as e:
            remedy = "delete it to resume from the one before, or start over with ⟦--overwrite⟧"
            if isinstance(e, OSError) and not isinstance(e, FileNotFoundError):
                remedy = "run the same command again when it can be read"
            raise UserError(
                f"⟦--output⟧ holds the checkpoint {path}, which cannot be read ({e}); {remedy}."
            ) from e

    def _delete_old(self, state: RunState) -> None:
        """Deletes what the checkpoint of `state` replaces, and what killed processes left."""
        path, current = self.path(state.step), {_STATE, *_array_files(state)}
        # What cannot be deleted now is deleted after the next checkpoint.
        with contextlib.suppress(OSError, StorageError):
            steps = [*self.steps()[-self._keep :], state.best_step]
            kept = {self.path(step) for step in steps if step is not None}
            storage.delete(e.path for e in storage.list_folder(path) if e.name not in current)
            for entry in storage.list_folder(self.folder):
                if entry.is_folder and _FOLDER.match(entry.name) and entry.path not in kept:
                    # state.json first: if we are killed here, the rest is no checkpoint any more.
                    storage.delete([storage.join(entry.path, _STATE)])
                    storage.delete_folder(entry.path)


def _array_files(state: RunState) -> tuple[str, str]:
    """The files of arrays that belong to a state: its variables, and those of callbacks."""
    # By finished epochs, as the step with which one ends is saved before and after its validation.
    return f"variables-{state.epochs}.npz", f"callbacks-{state.epochs}.npz"


def from_chief(
    hosts: Hosts, load: Callable[[], tuple[RunState, Values] | None]
) -> tuple[RunState, Values] | None:
    """What the chief has loaded, on all hosts: others need not see the run's folder.

    Args:
        hosts: Of the run.
        load: Called on the chief.
    """
    found = load() if hosts.is_chief else None
    if hosts.count == 1:
        return found
    state, values = found or (None, [])
    text = hosts.share("checkpoint", lambda: _state_text(state).encode() if state else b"")
    if not text:
        return None
    variables = hosts.share("variables", lambda: _as_bytes(values))
    arrays = list(state.arrays.items()) if state else []
    callbacks = hosts.share("callbacks", lambda: _as_bytes(arrays))
    if found is not None:
        return found
    state = _parsed_state(text)
    state.arrays = dict(_parsed_arrays(io.BytesIO(callbacks)))
    return state, _parsed_arrays(io.BytesIO(variables))


def _state_text(state: RunState) -> str:
    raw = dataclasses.asdict(dataclasses.replace(state, arrays={}))
    del raw["arrays"]
    return json.dumps({"format_version": FORMAT_VERSION, **raw}, indent=1)


def _parsed_state(text: str | bytes) -> RunState:
    raw = loads(text, _STATE_FORM)
    del raw["format_version"]
    raw["callbacks"] = [(name, remembered) for name, remembered in raw["callbacks"]]
    return RunState(**raw)


def values_of(
    variables: Sequence[Any], own: Collection[int] = (), hosts: Hosts = ONE_HOST
) -> Values:
    """The paths and values of Keras variables.

    Args:
        variables: In any order.
        own: `id` of those that may have another value on every replica; of these all values are
            taken, [replicas, *shape], of others that of the first replica.
        hosts: Whose replicas these are.
    """
    found = []
    for variable in variables:
        parts = _parts(variable) if id(variable) in own else ()
        if parts:
            array = np.stack([part.numpy() for part in parts])
            found.append((variable.path + _OF_REPLICAS, array))
        else:
            found.append((variable.path, np.asarray(variable.numpy())))
    mine = {f"{i}": _as_bits(a) for i, (name, a) in enumerate(found) if name.endswith(_OF_REPLICAS)}
    for i, bits in hosts.concatenate("replicas", mine).items():
        name, array = found[int(i)]
        found[int(i)] = name, bits.view(array.dtype)
    return found


def restore(variables: Sequence[Any], values: Values, hosts: Hosts = ONE_HOST) -> None:
    """Assigns to every variable the value of the same path, on every replica.

    Of equal paths the first gets the first. Where Keras has numbered layers without a name
    otherwise, because others were made before in this process, the order decides. With another
    number of replicas each gets an equal share of what metrics have summed up, and of all else
    what the first one had.

    Raises:
        UserError: They do not fit: another model, or another version.
    """
    paths = [variable.path for variable in variables]
    names = [path.removesuffix(_OF_REPLICAS) for path, _ in values]
    saved = _by_path(names)
    if sorted(paths) != sorted(names):
        paths = [_unnumbered(path) for path in paths]
        if paths != (names := [_unnumbered(name) for name in names]):
            strangers = sorted(set(names) - set(paths))
            raise _other_model(f"a variable {strangers[0]!r}" if strangers else "other variables")
        saved = _by_path(names)
    for variable, path in zip(variables, paths, strict=True):
        name, array = values[saved[path].pop(0)]
        if name.endswith(_OF_REPLICAS):
            parts = _parts(variable)
            if len(parts) * hosts.count == len(array):
                for part, value in zip(parts, array[hosts.index * len(parts) :], strict=False):
                    part.assign(value)
                continue
            is_sum = getattr(variable, "synchronization", None) == "on_read"
            array = array.sum(0) if is_sum else array[0]
        if tuple(variable.shape) != array.shape:
            raise _other_model(f"{variable.path!r} of the shape {array.shape}")
        variable.assign(array)


def _parts(variable: Any) -> tuple[Any, ...]:
    """TensorFlow's variable of every replica; none where there is one replica."""
    return getattr(variable.value, "values", ())


def _by_path(paths: Sequence[str]) -> dict[str, list[int]]:
    """Where each path stands."""
    found: dict[str, list[int]] = defaultdict(list)
    for i, path in enumerate(paths):
        found[path].append(i)
    return found


def _unnumbered(path: str) -> str:
    """`dense_7/kernel` → `dense/kernel`."""
    return re.sub(r"_\d+(?=[/_]|$)", "", path)


def _other_model(what: str) -> UserError:
    return UserError(
        f"⟦--output⟧ holds a checkpoint with {what}, which this model and optimizer do not have; "
        "expected the same ⟦--model⟧ in the same version: use another ⟦--output⟧, or start over "
        "with ⟦--overwrite⟧."
    )


def _write_arrays(file: IO[bytes], arrays: Values) -> None:
    # NumPy's files know no bfloat16: bits are written, and the type beside them.
    bits = {f"{i:05d}": _as_bits(array) for i, (_, array) in enumerate(arrays)}
    index = json.dumps([[name, array.dtype.name] for name, array in arrays])
    np.savez(file, **{_INDEX: np.array(index)}, **bits)  # type: ignore[arg-type]


def _as_bytes(arrays: Values) -> bytes:
    file = io.BytesIO()
    _write_arrays(file, arrays)
    return file.getvalue()


def _read_arrays(path: str) -> Values:
    with storage.open_read(path) as file:
        return _parsed_arrays(file)


def _parsed_arrays(file: IO[bytes]) -> Values:
    with np.load(file, allow_pickle=False) as found:
        index = json.loads(str(found[_INDEX]))
        return [
            (name, found[f"{i:05d}"].view(np.dtype(dtype))) for i, (name, dtype) in enumerate(index)
        ]


def _as_bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def _sync(*folders: str) -> None:
    """Makes the names in folders survive a power cut, where the file system allows it."""
    with contextlib.suppress(OSError):
        storage.sync(*folders)
