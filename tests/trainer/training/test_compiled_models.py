"""`imageshards train` with models that are compiled already, and a user's callbacks and metrics."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from tests.support.commands import killed_train, run_forked
from tests.support.trainer_data import make_data_set

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.slow

MODELS = "tests.support.tiny_models"


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("compiled") / "shards"
    return make_data_set(path, {"train": 20, "validation": 5}, size_px=((12, 12),), hot=True)


def _train(
    shapes: pathlib.Path, output: pathlib.Path, *more: object, kill_in_step: int | None = None
) -> Any:
    flags = ["--data", shapes, "--output", output, "--batch_size", 8, "--epochs", 2, *more]
    if kill_in_step is None:
        return run_forked("trainer", *flags)
    return killed_train("SIGKILL", kill_in_step, *flags).result()


def _metrics(output: pathlib.Path) -> list[dict[str, Any]]:
    lines = (output / "metrics.jsonl").read_text().splitlines()
    measured = ("images_per_second", "wait_fraction")
    return [{k: v for k, v in json.loads(line).items() if k not in measured} for line in lines]


@pytest.mark.long
def test_a_step_of_its_own_trains_on_two_replicas_and_resumes(
    shapes: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    flags = ["--model", f"{MODELS}:contrastive", "--checkpoint_steps", 1, "--replicas", 2]
    one, killed = tmp_path / "one", tmp_path / "killed"
    ran = _train(shapes, one, *flags)
    assert ran.returncode == 0, ran.stderr
    found = _metrics(one)
    # Its own figure, of both splits; those of a classifier are there, and empty.
    assert [r["step"] for r in found] == [2, 5]
    assert all(r["distance"] > 0 and r["val_distance"] > 0 for r in found)
    assert found[0]["accuracy"] is found[0]["val_loss"] is None
    assert (one / "model.keras").is_file() and (one / "report" / "index.html").is_file()
    ran = _train(shapes, killed, *flags, kill_in_step=3)
    assert ran.returncode == -9, ran.stderr
    ran = _train(shapes, killed, *flags)
    assert ran.returncode == 0 and "resumes after step 2 of 5" in ran.stdout, ran.stderr
    assert _metrics(killed) == found
    digests = [(run / "weights.sha256").read_text() for run in (one, killed)]
    assert digests[0] == digests[1]


@pytest.mark.long
def test_several_labels_in_a_column_train_on_two_replicas_and_resume(
    shapes: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    flags = ["--model", f"{MODELS}:hot", "--inputs", "image,hot", "--replicas", 2]
    for epochs in (1, 2):
        ran = _train(shapes, tmp_path, *flags, "--epochs", epochs)
        assert ran.returncode == 0, ran.stderr
    found = _metrics(tmp_path)
    assert [r["step"] for r in found] == [2, 5]
    assert all(0 < r[name] < 1 for r in found for name in ("right", "auc", "val_right", "val_auc"))


def test_a_functional_model_brings_its_loss_metrics_and_optimizer(
    shapes: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    flags = ["--model", f"{MODELS}:multi_label", "--callbacks", f"{MODELS}:callbacks"]
    ran = _train(shapes, tmp_path, *flags, "--epochs", 9)
    assert ran.returncode == 0, ran.stderr
    names = "'accuracy', 'images_per_second', 'loss', 'val_accuracy', 'val_loss', 'wait_fraction'"
    assert f"enough: [{names}]" in ran.stdout
    found = _metrics(tmp_path)
    # The second epoch's steps were taken before a callback lowered the rate.
    assert [r["learning_rate"] for r in found] == pytest.approx([0.01, 0.01])
    assert len(found) == 2 and 0 < found[1]["loss"] < 2 and 0 <= found[1]["val_accuracy"] <= 1
    # The callback's word is remembered: the same command has nothing left to do.
    ran = _train(shapes, tmp_path, *flags, "--epochs", 9)
    assert ran.returncode == 0 and "enough" not in ran.stdout and _metrics(tmp_path) == found


def test_further_metrics_are_exact_and_in_every_epoch(
    shapes: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    flags = ["--model", f"{MODELS}:plain", "--metrics", "top5,AUC,f1", "--epochs", 1]
    ran = _train(shapes, tmp_path, *flags)
    assert ran.returncode == 0, ran.stderr
    found = _metrics(tmp_path)[0]
    # Of three classes every one is among the first five.
    assert found["top5"] == found["val_top5"] == 1.0
    assert 0 <= found["val_auc"] <= 1 and 0 <= found["f1"] <= 1 and "val_f1" in found
    ran = _train(shapes, tmp_path, *flags[:2], "--epochs", 1)
    assert ran.returncode == 2 and "--metrics received none, but the run" in ran.stderr


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--model", f"{MODELS}:contrastive", "--learning_rate", 0.5],
         "--learning_rate received 0.5, but --model tests.support.tiny_models:contrastive returns"),
        (["--model", f"{MODELS}:contrastive", "--metrics", "auc"], "--metrics received auc, but"),
        (["--metrics", "top_5"], "--metrics received 'top_5'; expected top5, auc, f1"),
        (["--metrics", "MeanIoU"], "--metrics received 'MeanIoU', which Keras cannot make"),
        (["--callbacks", f"{MODELS}:broken_callbacks"], "returned str; expected Keras callbacks"),
        (["--callbacks", f"{MODELS}:dense"], "expected no arguments"),
        (["--callbacks", f"{MODELS}:calbacks"], f"did you mean {MODELS}:callbacks?"),
        (["--callbacks", "nowhere:callbacks"], "--callbacks received 'nowhere:callbacks', but"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(
    shapes: pathlib.Path, tmp_path: pathlib.Path, flags: list[Any], sentence: str
) -> None:
    ran = _train(shapes, tmp_path, *flags)
    assert ran.returncode == 2 and sentence in ran.stderr, ran.stderr
    assert ran.stderr.count("\n") == 1
