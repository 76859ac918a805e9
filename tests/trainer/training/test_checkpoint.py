import contextlib
import dataclasses
import functools
import io
import json
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

from imageshards import storage
from tests.support.errors import refused
from trainer.training.checkpoint import Checkpoints, RunState, Values, restore


def _state(step: int, **changes: Any) -> RunState:
    values: Values = [
        ("dense/kernel", np.full((2, 3), step, np.float32)),
        ("adam/iteration", np.array(step, np.int64)),
        ("dense/kernel", np.zeros(0, np.uint32)),
        ("half", np.array([step, 0.1], ml_dtypes.bfloat16)),
        ("half/scalar", np.array(step, ml_dtypes.bfloat16)),
    ]
    arrays = {"0": np.array([step]), "1": np.array(["a text"])}
    return RunState({"seed": 1}, step, arrays=arrays, variables=values, **changes)


def _bits(state: RunState) -> Any:
    arrays = [*state.variables, *state.arrays.items()]
    return (
        dataclasses.replace(state, arrays={}, variables=[]),
        [(name, array.dtype, array.shape, array.tobytes()) for name, array in arrays],
    )


def test_a_checkpoint_is_loaded_bit_for_bit(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    assert checkpoints.load_latest() is None
    remembered = [("EarlyStopping", {"wait": 2, "best_weights": [{"array": "0"}]})]
    remembered += [("Own", {"best": math.inf, "seen": {"dict": [[1, -math.inf]]}})]
    state = _state(7, epochs=1, callbacks=remembered, best_step=7, best_value=0.3)
    state.variables += [(f"v{i}", np.array([i], np.float32)) for i in range(12)]
    checkpoints.save(state)
    found = checkpoints.load_latest()
    assert found is not None and _bits(found) == _bits(state)


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    for step in (1, 2, 3, 4, 5):
        checkpoints.save(_state(step, best_step=2 if step > 1 else None))
    assert checkpoints.steps() == [2, 4, 5]
    checkpoints.save(_state(6, best_step=5))
    assert checkpoints.steps() == [5, 6]


def test_a_process_killed_at_any_write_leaves_a_whole_checkpoint(tmp_path, monkeypatch):
    """It saves the steps 1 and 2, and 2 again after its validation, and keeps one checkpoint."""
    left = 0

    def dying(plain: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt  # A process ends here.
        return plain(*arguments)

    for name in ("open_write", "delete"):
        monkeypatch.setattr(storage, name, functools.partial(dying, getattr(storage, name)))
    states = [_state(1), _state(2), _state(2, epochs=1)]
    found: list[int] = []
    saved = 0
    while saved < len(states):
        run = str(tmp_path / f"run-{len(found)}")
        left, saved = len(found), 0
        with contextlib.suppress(KeyboardInterrupt):
            for state in states:
                Checkpoints(run, keep=1).save(state)
                saved += 1
        left = 10_000
        latest = Checkpoints(run, keep=1).load_latest()
        found.append([_bits(state) for state in states].index(_bits(latest)) + 1 if latest else 0)
        assert found[-1] in (saved, saved + 1)
        # It goes on, and leaves nothing of the killed one.
        storage.write(storage.join(run, "checkpoints", "step-00000002.npz.tmp-7"), b"")
        path = Checkpoints(run, keep=1).save(_state(3, epochs=1))
        assert [file.path for file in storage.files_below(run)] == [path]
    assert found == sorted(found) and set(found) == {0, 1, 2, 3}


def test_the_name_of_a_checkpoint_survives_a_power_cut(tmp_path, monkeypatch):
    synced: list[Any] = []
    monkeypatch.setattr(storage, "sync", lambda path: synced.append((path, os.listdir(path))))
    checkpoints = Checkpoints(str(tmp_path), keep=1)
    checkpoints.save(_state(4))
    assert synced == [(checkpoints.folder, ["step-00000004.npz"])]


def test_a_corrupt_checkpoint_is_an_error_with_its_remedy(tmp_path):
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    path = pathlib.Path(checkpoints.save(_state(4)))
    whole = path.read_bytes()
    np.savez(older := io.BytesIO(), state=np.array(b'{"format_version": 1}'))
    with np.load(path) as found:
        entries = dict(found)
    raw = json.loads(entries["state"].item()) | {"step": "4"}
    entries["state"] = np.array(json.dumps(raw).encode())
    np.savez(wrong_type := io.BytesIO(), **entries)
    with_another_bit = whole.replace(b"adam/iteration", b"bdam/iteration", 1)
    others = (older.getvalue(), wrong_type.getvalue())
    for corrupt in (b"", b"{", whole[: len(whole) // 2], with_another_bit, *others):
        path.write_bytes(corrupt)
        with refused("output", "step-00000004.npz", "overwrite=True"):
            checkpoints.load_latest()


@pytest.mark.parametrize(
    ("saved", "paths", "order"),
    [
        ("a/kernel b/kernel", "b/kernel a/kernel", [1, 0]),
        ("total total", "total total", [0, 1]),
        # Layers that Keras has numbered otherwise are taken in their order.
        ("dense/k dense_1/k adam/dense_1_k_v", "dense_7/k dense_8/k adam/dense_8_k_v", [0, 1, 2]),
    ],
)
def test_values_are_restored_by_their_paths(saved: str, paths: str, order: list[int]) -> None:
    variables = [mock.Mock(path=path, shape=(1,)) for path in paths.split()]
    restore(variables, [(path, np.array([i])) for i, path in enumerate(saved.split())])
    assert [variable.assign.call_args[0][0][0] for variable in variables] == order


@pytest.mark.parametrize(
    ("shapes", "what"),
    [
        ({"a": 2, "b": 2}, "'c'"),
        ({"a": 2, "b": 2, "c": 2, "d": 2}, "other variables"),
        ({"a": 2, "b": 2, "x": 2}, "'c'"),
        ({"a": 2, "b": 2, "c": 3}, "'c' of the shape (2,)"),
    ],
)
def test_restoring_refuses_another_model(shapes, what):
    values = [(path, np.zeros(2, np.float32)) for path in "abc"]
    variables = [mock.Mock(path=path, shape=(size,)) for path, size in shapes.items()]
    with refused("output", what, "overwrite=True"):
        restore(variables, values)
