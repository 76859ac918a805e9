"""Checkpoints: every variable of a run and its position, written whole or not at all.

    checkpoints/step-00000123/arrays.npz   # every variable, in order, named 00000, 00001, …
    checkpoints/step-00000123/state.json   # the position and what was measured so far

The position is {seed, step, batch_size, fingerprint of the data}: the reader's order is a
pure function of it, so nothing of the reader has to be saved. Variables are saved by
value, so that the number of replicas may change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from imageshards import storage
from imageshards.errors import UserError
from trainer.training.output_folder import CHECKPOINTS_FOLDER

FORMAT_VERSION = 1
_ARRAYS, _STATE = "arrays.npz", "state.json"
_NAME = re.compile(r"step-(\d+)$")


@dataclasses.dataclass
class RunState:
    """The state of a run besides its variables; JSON values only.

    Attributes:
        identity: The settings a resumed run must share: see `trainer.training.resume_check`.
        step: Training steps done.
        sums: Loss, correct weight and weight of the unfinished epoch.
        train_sec, wait_sec: Seconds of the unfinished epoch, and those of them in which
            the model waited for data.
        images: Images of the unfinished epoch behind these seconds.
        history: One object per finished epoch, as in metrics.jsonl.
        best_step: Where the best validation was; None before the first.
        best_value: Its val_loss.
    """

    identity: Mapping[str, Any]
    step: int = 0
    sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    train_sec: float = 0.0
    wait_sec: float = 0.0
    images: int = 0
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best_step: int | None = None
    best_value: float | None = None


class Checkpoints:
    """The checkpoints of one run.

    Args:
        output: The run's folder.
        keep: How many of the last ones stay, besides the best.
    """

    def __init__(self, output: str, keep: int) -> None:
        self.folder = os.path.join(output, CHECKPOINTS_FOLDER)
        self._keep = keep

    def steps(self) -> list[int]:
        """The steps there are checkpoints of, ascending."""
        if not os.path.isdir(self.folder):
            return []
        found = (_NAME.match(name) for name in os.listdir(self.folder))
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> str:
        """The folder of one checkpoint."""
        return os.path.join(self.folder, f"step-{step:08d}")

    def save(self, state: RunState, arrays: Sequence[np.ndarray[Any, Any]]) -> str:
        """Writes a checkpoint under a temporary name, renames it, and deletes old ones.

        Args:
            state: The run's state.
            arrays: Every variable, as `values_of` returns them.

        Returns:
            Its folder.

        Raises:
            UserError: It cannot be written.
        """
        path = self.path(state.step)
        temporary = os.path.join(self.folder, f".{os.path.basename(path)}-{os.getpid()}")
        try:
            os.makedirs(temporary, exist_ok=True)
            _write_arrays(os.path.join(temporary, _ARRAYS), arrays)
            _write_state(os.path.join(temporary, _STATE), state)
            if os.path.isdir(path):
                shutil.rmtree(path)
            os.replace(temporary, path)
            _sync(self.folder)
        except OSError as e:
            shutil.rmtree(temporary, ignore_errors=True)
            raise self._unwritable(state.step, e) from e
        self._delete_old(state.best_step)
        return path

    def save_state(self, state: RunState) -> None:
        """Adds to the checkpoint of `state.step` what was measured after it was written.

        Raises:
            UserError: It cannot be written.
        """
        try:
            _write_state(os.path.join(self.path(state.step), _STATE), state)
        except OSError as e:
            raise self._unwritable(state.step, e) from e

    def load_latest(self) -> tuple[RunState, list[np.ndarray[Any, Any]]] | None:
        """The last checkpoint, or None where there is none.

        Raises:
            UserError: It cannot be read.
        """
        steps = self.steps()
        return self.load(self.path(steps[-1])) if steps else None

    def load(self, path: str) -> tuple[RunState, list[np.ndarray[Any, Any]]]:
        """One checkpoint: the run's state, and its variables in order.

        Raises:
            UserError: It cannot be read.
        """
        try:
            return load_state(path), _read_arrays(os.path.join(path, _ARRAYS))
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as e:
            raise UserError(
                f"--output holds the checkpoint {path}, which cannot be read ({e}); delete it to "
                "resume from the one before, or start over with --overwrite."
            ) from e

    def _unwritable(self, step: int, error: OSError) -> UserError:
        return UserError(
            f"--output received {os.path.dirname(self.folder)!r}, where the checkpoint of step "
            f"{step} cannot be written ({error.strerror}); make room, then run the same command "
            "again to resume from the checkpoint before."
        )

    def _delete_old(self, best_step: int | None) -> None:
        for step in self.steps()[: -self._keep]:
            if step != best_step:
                shutil.rmtree(self.path(step), ignore_errors=True)
        for name in os.listdir(self.folder):
            # Left behind by a process that was killed while it wrote.
            if name.startswith(".step-"):
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)


def load_state(path: str) -> RunState:
    """The state of the checkpoint in the folder `path`."""
    with open(os.path.join(path, _STATE), encoding="utf-8") as f:
        raw = json.load(f)
    if raw.pop("format_version", None) != FORMAT_VERSION:
        raise ValueError(f"format_version is not {FORMAT_VERSION}")
    raw["sums"] = tuple(raw["sums"])
    return RunState(**raw)


def values_of(variables: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The values of Keras variables, those of the first replica."""
    return [np.asarray(variable.numpy()) for variable in variables]


def restore(variables: Sequence[Any], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Assigns `arrays` to `variables`, on every replica.

    Raises:
        UserError: They are not of the same shapes: another model, or another version.
    """
    have = [tuple(variable.shape) for variable in variables]
    want = [array.shape for array in arrays]
    if have != want:
        raise UserError(
            f"--output holds a checkpoint of {len(want)} variables, but this model and optimizer "
            f"have {len(have)}, or their shapes differ; expected the same --model in the same "
            "version: use another --output, or start over with --overwrite."
        )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def _write_arrays(path: str, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    named = {f"{i:05d}": array for i, array in enumerate(arrays)}
    with open(path, "wb") as f:
        np.savez(f, **named)  # type: ignore[arg-type]
        f.flush()
        os.fsync(f.fileno())


def _read_arrays(path: str) -> list[np.ndarray[Any, Any]]:
    with np.load(path, allow_pickle=False) as arrays:
        return [arrays[name] for name in sorted(arrays.files)]


def _write_state(path: str, state: RunState) -> None:
    raw = {"format_version": FORMAT_VERSION, **dataclasses.asdict(state)}
    storage.write(path, json.dumps(raw, indent=1))


def _sync(folder: str) -> None:
    """Makes a rename inside `folder` survive a power cut, where the system allows it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
