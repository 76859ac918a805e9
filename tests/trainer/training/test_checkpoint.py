"""Checkpoints: whole or not at all, the last ones and the best, put back by paths."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from imageshards import storage
from imageshards.errors import UserError
from tests.support.strangers import changed
from trainer.training.checkpoint import Checkpoints, RunState, Values, restore


class _Variable:
    """What `restore` needs of a Keras variable."""

    def __init__(self, path: str, shape: tuple[int, ...]) -> None:
        self.path = path
        self.shape = shape
        self.value: Any = None

    def assign(self, value: Any) -> None:
        self.value = value


def _values(step: int) -> Values:
    return [
        ("dense/kernel", np.full((2, 3), step, np.float32)),
        ("adam/iteration", np.array(step, np.int64)),
        ("dense/kernel", np.zeros(0, np.uint32)),
        ("half", np.array([step, 0.1], ml_dtypes.bfloat16)),
        ("half/scalar", np.array(step, ml_dtypes.bfloat16)),
    ]


def _state(step: int, **changes: Any) -> RunState:
    return RunState({"seed": 1}, step, **changes)


def _same(found: Values, expected: Values) -> bool:
    return [(path, a.dtype, a.tobytes()) for path, a in found] == [
        (path, a.dtype, a.tobytes()) for path, a in expected
    ]


def test_a_checkpoint_is_loaded_bit_for_bit(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    assert checkpoints.load_latest() is None
    remembered = [("EarlyStopping", {"wait": 2, "best_weights": [{"array": "0"}]})]
    state = _state(7, epochs=1, callbacks=remembered, best_step=7, best_value=0.3)
    state.arrays = {"0": np.arange(3, dtype=np.float32)}
    many = [*_values(7), *((f"v{i}", np.array([i], np.float32)) for i in range(12))]
    checkpoints.save(state, many)
    found = checkpoints.load_latest()
    assert found is not None and _same(found[1], many)
    assert found[0].arrays["0"].tolist() == [0, 1, 2]
    found[0].arrays = state.arrays
    assert found[0] == state


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    for step in (1, 2, 3, 4, 5):
        checkpoints.save(_state(step, best_step=2 if step > 1 else None), _values(step))
    assert checkpoints.steps() == [2, 4, 5]
    checkpoints.save(_state(6, best_step=5), _values(6))
    assert checkpoints.steps() == [5, 6]


class Killed(BaseException):
    """A process ends here."""


def kill_at_every_write(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills a process before each of its writes and deletions; another one finds a checkpoint.

    It saves the steps 1 and 2, and 2 again with its validation, and keeps one checkpoint.
    """
    writes = ("open_write", "write", "delete", "delete_folder")
    plain = {name: getattr(storage, name) for name in writes}
    left = 0

    def dying(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return plain[name](*arguments)

        return call

    states = [(1, 0), (2, 0), (2, 1)]
    found = []
    for name in writes:
        monkeypatch.setattr(storage, name, dying(name))
    for allowed in range(100):
        run = storage.join(output, f"run-{allowed}")
        left = allowed
        saved, killed = 0, False
        try:
            for step, epochs in states:
                number = step + epochs
                state = _state(step, epochs=epochs, arrays={"0": np.array([number])})
                Checkpoints(run, keep=1).save(state, _values(number))
                saved += 1
        except Killed:
            killed = True
        left = 10_000
        latest = Checkpoints(run, keep=1).load_latest()
        if latest is None:
            assert saved == 0
            found.append(0)
        else:
            state, values = latest
            number = state.step + state.epochs
            assert _same(values, _values(number)) and state.arrays["0"].tolist() == [number]
            at = states.index((state.step, state.epochs)) + 1
            assert at in (saved, saved + 1)
            found.append(at)
            # It goes on, and leaves nothing of the killed one.
            checkpoints = Checkpoints(run, keep=1)
            path = checkpoints.save(_state(3, epochs=1), _values(3))
            names = [file.path.removeprefix(path) for file in storage.files_below(run)]
            assert names == ["/callbacks-1.npz", "/state.json", "/variables-1.npz"]
        if not killed:
            break
    monkeypatch.undo()
    assert found == sorted(found) and set(found) == {0, 1, 2, 3}


def test_a_process_killed_at_any_write_leaves_a_whole_checkpoint(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at_every_write(str(tmp_path), monkeypatch)


def test_arrays_would_survive_a_power_cut_before_the_state_that_commits_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is on the disk when its folder is synced after it was given."""
    given: set[str] = set()  # names that a power cut would take away
    lost_at_commit: list[set[str]] = []
    replace, fsync = os.replace, os.fsync

    def renames(source: str, target: str) -> None:
        if os.path.basename(target) == "state.json":
            lost_at_commit.append(set(given))
        replace(source, target)
        given.add(target)

    def syncs(descriptor: int) -> None:
        fsync(descriptor)
        synced = os.readlink(f"/proc/self/fd/{descriptor}")
        given.difference_update({path for path in given if os.path.dirname(path) == synced})

    monkeypatch.setattr(os, "replace", renames)
    monkeypatch.setattr(os, "fsync", syncs)
    path = Checkpoints(str(tmp_path.resolve()), keep=1).save(_state(4), _values(4))
    assert lost_at_commit == [set()] and not given
    assert len(os.listdir(path)) == 3


@pytest.mark.parametrize("file", ["variables-0.npz", "state.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"PK\x03\x04", b'{"format_version": 1}'])
def test_a_corrupt_checkpoint_is_an_error_with_its_remedy(
    tmp_path: pathlib.Path, file: str, content: bytes
) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    path = pathlib.Path(checkpoints.save(_state(4), _values(4)))
    (path / file).write_bytes(content)
    with pytest.raises(UserError, match="step-00000004, which cannot be read .* delete it"):
        checkpoints.load_latest()


def test_a_failed_write_is_an_error_with_its_remedy(tmp_path: pathlib.Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="checkpoint of step 4 cannot be written .* make room"):
        Checkpoints(str(tmp_path), 1).save(_state(4), _values(4))


def test_values_are_put_back_by_their_paths() -> None:
    values = [("a/kernel", np.array([1.0])), ("b/kernel", np.array([2.0]))]
    swapped = [_Variable("b/kernel", (1,)), _Variable("a/kernel", (1,))]
    restore(swapped, values)
    assert [v.value[0] for v in swapped] == [2.0, 1.0]
    twice = [("total", np.array([1.0])), ("total", np.array([2.0]))]
    restore(swapped := [_Variable("total", (1,)), _Variable("total", (1,))], twice)
    assert [v.value[0] for v in swapped] == [1.0, 2.0]


def test_layers_that_keras_numbered_otherwise_are_taken_in_order() -> None:
    values = [
        ("dense/kernel", np.array([1.0])),
        ("dense_1/kernel", np.array([2.0])),
        ("adam/dense_1_kernel_velocity", np.array([3.0])),
    ]
    later = [
        _Variable("dense_7/kernel", (1,)),
        _Variable("dense_8/kernel", (1,)),
        _Variable("adam/dense_8_kernel_velocity", (1,)),
    ]
    restore(later, values)
    assert [v.value[0] for v in later] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("paths", "shapes", "what"),
    [
        (["a", "b"], [(2,), (2,)], "'c'"),
        (["a", "b", "c", "d"], [(2,)] * 4, "other variables"),
        (["a", "b", "x"], [(2,)] * 3, "'c'"),
        (["a", "b", "c"], [(2,), (2,), (3,)], r"'c' of the shape \(2,\)"),
    ],
)
def test_restoring_refuses_another_model(
    paths: list[str], shapes: list[tuple[int, ...]], what: str
) -> None:
    values = [(path, np.zeros(2, np.float32)) for path in "abc"]
    variables = [_Variable(path, shape) for path, shape in zip(paths, shapes, strict=True)]
    with pytest.raises(UserError, match=f"{what}.*--overwrite"):
        restore(variables, values)


@given(
    changed(
        {
            "format_version": 2, "identity": {"seed": 1}, "step": 7, "epochs": 1, "stopped": False,
            "best_step": 7, "best_value": 0.5, "callbacks": [["EarlyStopping", {"wait": 2}]],
        }
    )
)  # fmt: skip
@settings(max_examples=100, derandomize=True, deadline=None)
def test_any_state_is_loaded_as_one_or_refused(
    tmp_path_factory: pytest.TempPathFactory, raw: object
) -> None:
    checkpoints = Checkpoints(str(tmp_path_factory.mktemp("run")), keep=2)
    folder = pathlib.Path(checkpoints.save(_state(7, epochs=1), _values(7)))
    (folder / "state.json").write_text(json.dumps(raw))
    try:
        state, _ = checkpoints.load(7)
    except UserError as e:
        assert "which cannot be read" in str(e) and "\n" not in str(e)
        return
    assert {type(state.step), type(state.epochs)} == {int} and min(state.step, state.epochs) >= 0
    checkpoints.save(state, _values(7))
