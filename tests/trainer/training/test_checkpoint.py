"""Checkpoints: whole or not at all, the last ones and the best."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from imageshards.errors import UserError
from trainer.training.checkpoint import Checkpoints, RunState, load_state, restore


class _Variable:
    """What `restore` needs of a Keras variable."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.value: Any = None

    def assign(self, value: Any) -> None:
        self.value = value


def _arrays(step: int) -> list[Any]:
    return [np.full((2, 3), step, np.float32), np.array(step, np.int64), np.zeros(0, np.uint32)]


def _state(step: int, **changes: Any) -> RunState:
    return RunState({"seed": 1}, step, (0.1, 2.0, 3.0), **changes)


def test_a_checkpoint_is_loaded_bit_for_bit(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    assert checkpoints.load_latest() is None
    state = _state(7, history=[{"epoch": 1, "val_loss": None}], best_step=7, best_value=0.3)
    many = [*_arrays(7), *(np.array([i], np.float32) for i in range(12))]
    checkpoints.save(state, many)
    found = checkpoints.load_latest()
    assert found is not None and found[0] == state
    assert [a.dtype for a in found[1]] == [a.dtype for a in many]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found[1], many, strict=True))


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    for step in (1, 2, 3, 4, 5):
        checkpoints.save(_state(step, best_step=2 if step > 1 else None), _arrays(step))
    assert checkpoints.steps() == [2, 4, 5]
    checkpoints.save(_state(6, best_step=5), _arrays(6))
    assert checkpoints.steps() == [5, 6]


def test_a_half_written_checkpoint_is_ignored_and_deleted(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    checkpoints.save(_state(1), _arrays(1))
    half = tmp_path / "checkpoints" / ".step-00000002-4711"
    half.mkdir()
    (half / "arrays.npz").write_bytes(b"PK")
    assert checkpoints.steps() == [1]
    checkpoints.save(_state(3), _arrays(3))
    assert not half.exists() and checkpoints.steps() == [1, 3]


def test_the_same_step_can_be_saved_again(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=1)
    checkpoints.save(_state(4), _arrays(4))
    checkpoints.save(_state(4, images=9), _arrays(5))
    found = checkpoints.load_latest()
    assert found is not None and found[0].images == 9 and found[1][1] == 5
    found[0].best_value = 0.5
    checkpoints.save_state(found[0])
    assert load_state(checkpoints.path(4)).best_value == 0.5


@pytest.mark.parametrize("file", ["arrays.npz", "state.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"PK\x03\x04", b'{"format_version": 9}'])
def test_a_corrupt_checkpoint_is_an_error_with_its_remedy(
    tmp_path: pathlib.Path, file: str, content: bytes
) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    path = pathlib.Path(checkpoints.save(_state(4), _arrays(4)))
    (path / file).write_bytes(content)
    with pytest.raises(UserError, match="step-00000004, which cannot be read .* delete it"):
        checkpoints.load_latest()


def test_a_failed_write_is_an_error_with_its_remedy(tmp_path: pathlib.Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="checkpoint of step 4 cannot be written .* make room"):
        Checkpoints(str(tmp_path), 1).save(_state(4), _arrays(4))


def test_restoring_refuses_variables_of_other_shapes() -> None:
    variables = [_Variable((2, 3)), _Variable(()), _Variable((0,))]
    restore(variables, _arrays(3))
    assert [v.value.sum() for v in variables] == [18.0, 3, 0]
    for other in (variables[:2], [*variables, _Variable(())], [_Variable((3, 2)), *variables[1:]]):
        with pytest.raises(UserError, match="checkpoint of 3 variables.*--overwrite"):
            restore(other, _arrays(3))


def test_the_state_is_json(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=1)
    path = pathlib.Path(checkpoints.save(_state(4), _arrays(4)))
    raw = json.loads((path / "state.json").read_text())
    assert raw["format_version"] == 1 and raw["step"] == 4 and raw["identity"] == {"seed": 1}
