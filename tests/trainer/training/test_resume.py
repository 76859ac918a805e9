"""Runs that are killed by real signals go on with the very next record, to the same bits."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import pytest

from tests.support.commands import run_module
from tests.support.trainer_data import make_data_set
from trainer.training.checkpoint import Checkpoints

pytest.importorskip("tensorflow")

_train = functools.partial(run_module, "trainer")
STEPS = 7
MEASURED = ("images_per_second", "wait_fraction")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("resume") / "shards"
    return make_data_set(path, {"train": 22, "validation": 5}, size_px=((24, 24),))


def _flags(data: pathlib.Path, output: pathlib.Path, *more: object) -> list[str]:
    flags = ["--data", data, "--output", output, "--batch_size", 8, "--seed", 3]
    flags += ["--steps", STEPS, "--checkpoint_steps", 1, "--augment", "strong", *more]
    return [str(flag) for flag in flags]


def _metrics(output: pathlib.Path) -> list[dict[str, Any]]:
    """What does not depend on how fast the machine is."""
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in MEASURED} for line in lines]


def _digest(output: pathlib.Path) -> str:
    return (output / "weights.sha256").read_text().split()[0]


@pytest.fixture(scope="module")
def undisturbed(shapes: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("undisturbed")
    ran = _train(*_flags(shapes, output, "--replicas", 2))
    assert ran.returncode == 0, ran.stderr
    return output


@pytest.mark.slow
def test_killed_at_every_step_the_weights_end_up_bit_identical(
    shapes: pathlib.Path, tmp_path: pathlib.Path, undisturbed: pathlib.Path
) -> None:
    flags = _flags(shapes, tmp_path, "--replicas", 2)
    for step in range(1, STEPS + 1):
        ran = run_module("tests.support.killed_trainer", "SIGKILL", str(step), *flags)
        assert ran.returncode == -9, ran.stderr
        # Killed before its own checkpoint: the step is done again by the next process.
        steps = Checkpoints(str(tmp_path), 1).steps()
        assert (steps[-1] if steps else 0) == step - 1
    ran = _train(*flags)
    assert ran.returncode == 0, ran.stderr
    assert f"goes on after step {STEPS - 1} of {STEPS}" in ran.stdout
    assert _digest(tmp_path) == _digest(undisturbed)
    assert _metrics(tmp_path) == _metrics(undisturbed)
    assert [record["step"] for record in _metrics(tmp_path)] == [2, 5, 7]


@pytest.mark.slow
def test_sigterm_saves_and_the_run_goes_on_with_another_number_of_replicas(
    shapes: pathlib.Path, tmp_path: pathlib.Path, undisturbed: pathlib.Path
) -> None:
    flags = [*_flags(shapes, tmp_path), "--checkpoint_steps", "1000"]
    ran = run_module("tests.support.killed_trainer", "SIGTERM", "4", *flags, "--replicas", "2")
    assert ran.returncode == 143
    assert "SIGTERM: saved; run the same command again to resume" in ran.stderr
    assert Checkpoints(str(tmp_path), 1).steps()[-1] == 4
    ran = _train(*flags, "--replicas", "1")
    assert ran.returncode == 0, ran.stderr
    assert "goes on after step 4 of 7" in ran.stdout
    found, expected = _metrics(tmp_path), _metrics(undisturbed)
    assert [r["step"] for r in found] == [r["step"] for r in expected]
    for name in ("loss", "val_loss"):
        assert [r[name] for r in found] == pytest.approx([r[name] for r in expected], abs=2e-3)
    # The finished run is left as it is, and longer ones go on from it.
    digest = _digest(tmp_path)
    ran = _train(*flags, "--replicas", "1")
    assert ran.returncode == 0 and "all 7 steps are done already" in ran.stdout
    assert _digest(tmp_path) == digest
    ran = _train(*[f if f != str(STEPS) else "9" for f in flags], "--replicas", "1")
    assert ran.returncode == 0 and "goes on after step 7 of 9" in ran.stdout, ran.stderr
    assert [record["step"] for record in _metrics(tmp_path)] == [2, 5, 8, 9]
    ran = _train(*flags, "--seed", "4")
    assert ran.returncode == 2
    assert "--seed received 4, but the run in --output" in ran.stderr


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_with_steps_and_the_last_good_checkpoint(
    shapes: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    ran = run_module(
        "trainer", *_flags(shapes, tmp_path, "--optimizer", "sgd", "--learning_rate", 1e30)
    )
    assert ran.returncode == 2
    assert "between the steps" in ran.stderr and "last good checkpoint" in ran.stderr
    assert ran.stderr.count("\n") == 1 and not (tmp_path / "model.keras").exists()
