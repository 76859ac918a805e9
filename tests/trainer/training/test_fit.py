import json
import pathlib
import signal
from typing import Any

import pytest

from tests.support.commands import run_forked

pytestmark = pytest.mark.slow
# Epochs end with the steps 2 and 5.
EVERYWHERE = [*(f"train_batch_end:{step}" for step in (1, 2, 3, 4, 5)), "epoch_end:5"]
TWICE = ["test_begin:2", "train_batch_end:4"]
EVERYWHERE[2:2] = ["test_begin:2", "epoch_end:2"]


def _fit(shapes: pathlib.Path, run: object, replicas: int, kill: str = "no") -> Any:
    return run_forked("tests.support.resumed_fit", shapes, run, replicas, kill)


def _result(done: Any) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("replicas", "kills"),
    [
        (1, TWICE),
        pytest.param(1, EVERYWHERE, marks=pytest.mark.long),
        pytest.param(2, TWICE, marks=pytest.mark.long),
    ],
)
def test_a_run_killed_anywhere_ends_up_as_if_undisturbed(shapes, tmp_path, replicas, kills):
    undisturbed = _result(_fit(shapes, tmp_path / "one", replicas))
    assert undisturbed["steps"] == 5 and undisturbed["epochs"] == [0, 1]
    assert undisturbed["rate"] == pytest.approx(0.001)  # the callback has acted
    for kill in kills:
        done = _fit(shapes, tmp_path / "killed", replicas, kill)
        assert done.returncode == -9, (kill, done.stderr)
    assert _result(_fit(shapes, tmp_path / "killed", replicas)) == undisturbed
    # Finished: called again it trains nothing, and gives the same.
    assert _result(_fit(shapes, tmp_path / "one", replicas)) == undisturbed


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.one_row
def test_a_signal_saves_and_is_a_keyboard_interrupt(shapes, tmp_path, name):
    resume = ": saved; run the same command again to"
    for folder, more in ((tmp_path, resume), ("none", "\n")):
        done = _fit(shapes, folder, 1, f"{name}:3")
        assert done.returncode == -signal.SIGINT, done.stderr
        assert f"\nKeyboardInterrupt: {name}{more}" in done.stderr
    steps = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert steps[-1] == "step-00000003.npz"


@pytest.mark.long
def test_replicas_whose_weights_differ_end_the_run(shapes, tmp_path):
    said = _result(_fit(shapes, tmp_path, 2, "apart:2"))
    assert len(said) == 2  # without a folder and with one, where nothing of it is saved
    for one in said:
        assert "weights of the replicas differ after step 2, with Keras 3.15" in one
    assert not (tmp_path / "checkpoints").exists()
