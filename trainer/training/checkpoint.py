"""Checkpoints: variables, position and callbacks of a run, in files that are whole or not there.

    checkpoints/step-00000123.npz
    checkpoints/step-00000123.npz.changes   # the step saved again, after validation and callbacks

Each is a NumPy archive: `state` is JSON, every other entry one array. The second has only the
arrays that are others than in the first, and counts only beside that very file, whose `id` it has.

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
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401  so that NumPy knows bfloat16 by name
import msgspec
import numpy as np

from imageshards import storage
from imageshards.errors import Arg, StorageError, Text, UserError
from imageshards.typed import convert
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.output_errors import output_errors
from trainer.training.output_folder import CHECKPOINT_FILE, CHECKPOINTS_FOLDER, OTHER_OUTPUT

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

FORMAT_VERSION = 4
_CHANGES = ".changes"
OF_REPLICAS = ", of every replica"

Array = np.ndarray[Any, Any]
# (path, value) of every variable, in order.
Values = list[tuple[str, Array]]


@dataclasses.dataclass
class RunState:
    """The state of a run.

    Attributes:
        identity: The settings a resumed run must share: see `trainer.training.open_run`.
        step, epochs: Steps done, and epochs finished, their validation included.
        stopped: Whether a callback ended the training.
        best_step, best_value: Where the best validation was, and its val_loss.
        optimizer: The optimizer that the run was started with: see
            `trainer.training.resumed_optimizer`; None where that is not known.
        callbacks: What every callback remembers: its class, and JSON values by name.
        arrays: The arrays among these, by the names that stand in their place.
        variables: Only while the state is written or read.
        id: Of the file with all of its arrays.
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
    id: str = ""

    def all_arrays(self) -> dict[str, Array]:
        """Arrays of callbacks and variables, by their names in a file."""
        found = {f"callback-{name}": array for name, array in self.arrays.items()}
        return found | {f"variable-{i}": array for i, (_, array) in enumerate(self.variables)}


class _Names(msgspec.Struct):
    """The arrays of a file: names of those of callbacks, and the paths of variables.

    `types` are those that NumPy's files do not know, by the names of arrays in the file.
    """

    id: str
    arrays: list[str]
    variables: list[str]
    types: dict[str, str]


class Checkpoints:
    """The checkpoints of one run: the last `keep`, and the best.

    The chief alone of the hosts that train together reads and writes, for all.
    """

    def __init__(self, output: str, keep: int, hosts: Hosts = ONE_HOST) -> None:
        self.folder = storage.join(output, CHECKPOINTS_FOLDER)
        self._output, self._keep, self._hosts = output, keep, hosts

    def steps(self) -> list[int]:
        """The steps there are checkpoints of, ascending."""
        names = (CHECKPOINT_FILE.fullmatch(one.name) for one in storage.list_folder(self.folder))
        return sorted(int(match[1]) for match in names if match)

    def path(self, step: int) -> str:
        """The file of one checkpoint."""
        return storage.join(self.folder, f"step-{step:08d}.npz")

    def save(self, state: RunState, base: RunState | None = None) -> str:
        """Writes a checkpoint, and deletes old ones; returns its path.

        Arrays that are those of `base`, saved whole at the same step, are not written again.

        Raises:
            UserError: It cannot be written.
        """
        state.id = base.id if base else uuid.uuid4().hex
        path = self.path(state.step) + (_CHANGES if base else "")
        with output_errors(
            self._output,
            f"the checkpoint of step {state.step}",
            "run the same command again to resume from the checkpoint before",
        ):
            with self._hosts.writing, storage.open_write(path) as file:
                _write(file, state, base)
            # So that its name survives a power cut, where the file system allows it.
            with contextlib.suppress(OSError):
                storage.sync(self.folder)
        # What cannot be deleted now is deleted after the next checkpoint.
        with contextlib.suppress(OSError, StorageError):
            self._delete_old(state)
        return path

    def load_latest(self) -> RunState | None:
        """The last checkpoint, or None where there is none."""
        steps = self._hosts.gather("checkpoints", self.steps())[0]
        return self.load(steps[-1]) if steps else None

    def load(self, step: int) -> RunState:
        """The checkpoint of `step`; a `UserError` where it cannot be read."""
        whole = self._load(self.path(step))
        changes = self.path(step) + _CHANGES
        has_changes = self._hosts.gather("changes", storage.exists(changes))[0]
        return self._load(changes, whole) if has_changes else whole

    def _load(self, path: str, base: RunState | None = None) -> RunState:
        try:
            return _parsed(self._hosts.share("checkpoint", lambda: storage.read(path)), base)
        except (EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, OSError) as e:
            remedy: Text = (
                "delete the file to resume from the checkpoint before, or start over with "
            )
            remedy = remedy + Arg("overwrite", True)
            if isinstance(e, OSError) and not isinstance(e, FileNotFoundError):
                remedy = "run the same command again when the file can be read"
            raise UserError(
                argument="output",
                received=f"a folder with the checkpoint {path}, which cannot be read ({e})",
                remedy=remedy,
            ) from e

    def _delete_old(self, state: RunState) -> None:
        """Deletes what the checkpoint of `state` replaces, and what killed processes left."""
        steps = [*self.steps()[-self._keep :], state.best_step]
        kept = {storage.name_of(self.path(step)) for step in steps if step is not None}
        kept |= {name + _CHANGES for name in kept}
        found = (one for one in storage.list_folder(self.folder) if not one.is_folder)
        # A process that was killed while it wrote left a file of this name and more.
        storage.delete(
            one.path for one in found if CHECKPOINT_FILE.match(one.name) and one.name not in kept
        )


def _write(file: IO[bytes], state: RunState, base: RunState | None) -> None:
    held = base.all_arrays() if base else {}
    arrays = {name: a for name, a in state.all_arrays().items() if a is not held.get(name)}
    raw = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    raw |= {
        "format_version": FORMAT_VERSION,
        "arrays": list(state.arrays),
        "variables": [path for path, _ in state.variables],
        # NumPy's files know no bfloat16: it is written as bits without a type.
        "types": {name: a.dtype.name for name, a in arrays.items() if a.dtype.kind == "V"},
    }
    np.savez(file, state=np.array(json.dumps(raw).encode()), **arrays)  # type: ignore[arg-type]


def _parsed(data: bytes, base: RunState | None) -> RunState:
    held = base.all_arrays() if base else {}
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        # Callbacks may remember infinite numbers, which only Python's own decoder of JSON knows.
        raw = json.loads(found["state"].item())
        if (version := raw["format_version"]) != FORMAT_VERSION:
            raise ValueError(f"format_version is {version}; expected {FORMAT_VERSION}")
        names = convert(raw, _Names)
        if base is not None and names.id != base.id:
            return base  # changes of a file that was replaced

        def array(name: str) -> Array:
            if name not in found:
                return held[name]
            return found[name].view(names.types[name]) if name in names.types else found[name]

        arrays = {name: array(f"callback-{name}") for name in names.arrays}
        variables = [(path, array(f"variable-{i}")) for i, path in enumerate(names.variables)]
    return convert(raw | {"arrays": arrays, "variables": variables}, RunState)


def reused(old: Array | None, array: Array) -> Array:
    """`old` where it has the type, the shape and the bits of `array`, else `array`."""
    if old is None or (old.dtype, old.shape) != (array.dtype, array.shape):
        return array
    return old if old.tobytes() == array.tobytes() else array


def restore(variables: Sequence[keras.Variable], values: Values, hosts: Hosts = ONE_HOST) -> None:
    """Assigns to every variable the value of the same path, on every replica.

    Of equal paths the first gets the first. Where Keras has numbered layers without a name
    otherwise, because others were made before in this process, the order decides. With another
    number of replicas each gets an equal share of what metrics have summed up, and of all else
    what the first one had.

    Raises:
        UserError: They do not fit: another model, or another version.
    """
    mine = sorted(variables, key=lambda variable: variable.path)
    saved = sorted(values, key=_path)
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
            # There is a value for each replica of all hosts, in their order: ours lie together.
            if len(parts) * hosts.count == len(array):
                for part, value in zip(parts, array[hosts.index * len(parts) :], strict=False):
                    part.assign(value)
                continue
            is_sum = getattr(variable, "synchronization", None) == "on_read"
            array = array.sum(0) if is_sum else array[0]
        if tuple(variable.shape) != array.shape:
            raise _other_model(f"{variable.path!r} of the shape {array.shape}")
        variable.assign(array)


def parts_of(variable: keras.Variable) -> tuple[tf.Variable, ...]:
    """TensorFlow's variable of every replica; none where there is one replica."""
    return getattr(variable.value, "values", ())


def _path(value: tuple[str, Array]) -> str:
    return value[0].removesuffix(OF_REPLICAS)


def unnumbered(path: str) -> str:
    """The path of a variable as another process has it: `dense_7/kernel` → `dense/kernel`."""
    return re.sub(r"_\d+(?=[/_]|$)", "", path.removesuffix(OF_REPLICAS))


def _other_model(what: str) -> UserError:
    return UserError(
        argument="output",
        received=f"a checkpoint with {what}, which this model and optimizer do not have",
        expected="the same " + Arg("model"),
        remedy=OTHER_OUTPUT,
    )
