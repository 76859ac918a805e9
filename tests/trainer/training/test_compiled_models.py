"""`imageshards train` with models that are compiled already, and a user's callbacks and metrics."""

from __future__ import annotations

import pathlib

import pytest

from tests.support.commands import run_forked
from tests.support.runs import metrics
from trainer.__main__ import main

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.slow

MODELS = "tests.support.tiny_models"


def _flags(shapes: pathlib.Path, output: pathlib.Path, *more: object) -> list[str]:
    flags = ["--data", shapes, "--output", output, "--batch_size", 8, "--epochs", 2, *more]
    return [str(flag) for flag in flags]


def _train(shapes: pathlib.Path, output: pathlib.Path, *more: object) -> str:
    """What the command prints."""
    ran = run_forked("trainer", *_flags(shapes, output, *more))
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.long
def test_a_step_of_its_own_trains_on_two_replicas_and_resumes(shapes, tmp_path):
    flags = ["--model", f"{MODELS}:contrastive", "--replicas", 2]
    one, resumed = tmp_path / "one", tmp_path / "resumed"
    _train(shapes, one, *flags)
    found = metrics(one)
    # Its own figure, of both splits; those of a classifier are there, and empty.
    assert [r["step"] for r in found] == [2, 5]
    assert all(r["distance"] > 0 and r["val_distance"] > 0 for r in found)
    assert found[0]["accuracy"] is found[0]["val_loss"] is None
    assert (one / "model.keras").is_file() and (one / "report" / "index.html").is_file()
    _train(shapes, resumed, *flags, "--epochs", 1)
    assert "resumes after step 2 of 5" in _train(shapes, resumed, *flags)
    assert metrics(resumed) == found
    digests = [(run / "weights.sha256").read_text() for run in (one, resumed)]
    assert digests[0] == digests[1]


@pytest.mark.long
def test_several_labels_in_a_column_train_on_two_replicas(shapes, tmp_path):
    flags = ["--model", f"{MODELS}:hot", "--inputs", "image,hot", "--replicas", 2]
    _train(shapes, tmp_path, *flags)
    found = metrics(tmp_path)
    assert [r["step"] for r in found] == [2, 5]
    assert all(0 < r[name] < 1 for r in found for name in ("right", "auc", "val_right", "val_auc"))


def test_a_functional_model_brings_its_loss_metrics_and_optimizer(shapes, tmp_path):
    flags = ["--model", f"{MODELS}:multi_label", "--callbacks", f"{MODELS}:callbacks"]
    names = "'accuracy', 'images_per_second', 'loss', 'val_accuracy', 'val_loss', 'wait_fraction'"
    assert f"enough: [{names}]" in _train(shapes, tmp_path, *flags, "--epochs", 9)
    found = metrics(tmp_path)
    # The second epoch's steps were taken before a callback lowered the rate.
    assert [r["learning_rate"] for r in found] == pytest.approx([0.01, 0.01])
    assert len(found) == 2 and 0 < found[1]["loss"] < 2 and 0 <= found[1]["val_accuracy"] <= 1
    # The callback's word is remembered: the same command has nothing left to do.
    again = _train(shapes, tmp_path, *flags, "--epochs", 9)
    assert "enough" not in again
    assert "a callback ended this run after step 5 of 24, so nothing is trained; --weight" in again
    assert metrics(tmp_path) == found


def test_further_metrics_are_exact_and_in_every_epoch(shapes, tmp_path):
    flags = ["--model", f"{MODELS}:plain", "--metrics", "top5,AUC,f1", "--epochs", 1]
    _train(shapes, tmp_path, *flags)
    found = metrics(tmp_path)[0]
    # Of three classes every one is among the first five.
    assert found["top5"] == found["val_top5"] == 1.0
    assert 0 <= found["val_auc"] <= 1 and 0 <= found["f1"] <= 1 and "val_f1" in found


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--model", f"{MODELS}:contrastive", "--learning_rate", 0.5],
         "--learning_rate received 0.5, but --model tests.support.tiny_models:contrastive returns"),
        (["--model", f"{MODELS}:contrastive", "--metrics", "auc"], "--metrics received auc, but"),
        (["--metrics", "top_5"], "--metrics received 'top_5'; expected top5, auc, f1"),
        (["--metrics", "MeanIoU"], "--metrics received 'MeanIoU', which Keras cannot make"),
        (["--callbacks", f"{MODELS}:broken_callbacks"], "returned str; expected a list of"),
        (["--callbacks", f"{MODELS}:dense"], "expected no arguments"),
        (["--callbacks", f"{MODELS}:calbacks"], f"did you mean {MODELS}:callbacks?"),
        (["--callbacks", "nowhere:callbacks"], "--callbacks received 'nowhere:callbacks', but"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(shapes, tmp_path, flags, sentence, capsys):
    assert main(_flags(shapes, tmp_path, *flags)) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1, said
