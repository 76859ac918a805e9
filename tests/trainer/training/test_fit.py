"""`ims.fit`: Keras's fit with a user's own compiled model, killed anywhere and called again."""

from __future__ import annotations

import json
import pathlib
import signal
from typing import Any

import pytest

from tests.support.commands import run_forked

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.slow


def _fit(shapes: pathlib.Path, run: pathlib.Path, replicas: int, kill: str = "no") -> Any:
    return run_forked("tests.support.resumed_fit", shapes, run, replicas, kill)


def _result(done: Any) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# Epochs end with the steps 2 and 5.
_EVERYWHERE = [
    *(f"batch_end:{step}" for step in range(1, 6)), "test_begin:2", "epoch_end:2", "epoch_end:5",
]  # fmt: skip


@pytest.mark.parametrize(
    ("replicas", "kills"),
    [
        (1, _EVERYWHERE),
        pytest.param(2, ["test_begin:2", "batch_end:4"], marks=pytest.mark.long),
    ],
)
def test_killed_anywhere_everything_ends_up_as_if_it_had_not_been(
    shapes: pathlib.Path, tmp_path: pathlib.Path, replicas: int, kills: list[str]
) -> None:
    undisturbed = _result(_fit(shapes, tmp_path / "one", replicas))
    assert undisturbed["steps"] == 5 and undisturbed["epochs"] == [0, 1]
    assert undisturbed["rate"] == pytest.approx(0.001)  # the callback has acted
    for kill in sorted(kills, key=lambda kill: int(kill.partition(":")[2])):
        done = _fit(shapes, tmp_path / "killed", replicas, kill)
        assert done.returncode == -9, (kill, done.stderr)
    assert _result(_fit(shapes, tmp_path / "killed", replicas)) == undisturbed
    # Finished: called again it trains nothing, and gives the same.
    assert _result(_fit(shapes, tmp_path / "one", replicas)) == undisturbed


def test_sigterm_saves_at_once(shapes: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = _fit(shapes, tmp_path, 1, "sigterm:3")
    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stderr.endswith(
        "KeyboardInterrupt: SIGTERM: saved; run the same command again to resume.\n"
    )
    steps = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert steps[-1] == "step-00000003.npz"


def test_replicas_that_train_models_of_their_own_end_the_run(
    shapes: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    said = _result(_fit(shapes, tmp_path, 2, "apart:2"))
    assert len(said) == 2  # without a folder and with one, where nothing of it is saved
    assert all(
        "weights of the replicas differ after step 2, with Keras 3.15" in one for one in said
    )
    assert not (tmp_path / "checkpoints").exists()
