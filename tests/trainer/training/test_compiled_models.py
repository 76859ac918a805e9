"""`imageshards train` with models that are compiled already, and a user's callbacks and metrics."""

from __future__ import annotations

import pathlib

import pytest

from tests.support.runs import metrics
from trainer.__main__ import main

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.slow

MODELS = "tests.support.tiny_models"


def _flags(shapes: pathlib.Path, output: pathlib.Path, *more: object) -> list[str]:
    flags = ["--data", shapes, "--output", output, "--batch_size", 8, "--epochs", 2, *more]
    return [str(flag) for flag in flags]


def test_a_functional_model_brings_its_loss_metrics_and_optimizer(shapes, tmp_path, capsys):
    flags = _flags(shapes, tmp_path, "--model", f"{MODELS}:multi_label", "--callbacks")
    flags += [f"{MODELS}:callbacks", "--epochs", "9"]
    assert main(flags) == 0
    names = "'accuracy', 'images_per_second', 'loss', 'val_accuracy', 'val_loss', 'wait_fraction'"
    assert f"enough: [{names}]" in capsys.readouterr().out
    found = metrics(tmp_path)
    # The second epoch's steps were taken before a callback lowered the rate.
    assert [r["learning_rate"] for r in found] == pytest.approx([0.01, 0.01])
    assert len(found) == 2 and 0 < found[1]["loss"] < 2 and 0 <= found[1]["val_accuracy"] <= 1
    # The callback's word is remembered: the same command has nothing left to do.
    assert main(flags) == 0
    again = capsys.readouterr().out
    assert "enough" not in again
    assert "a callback ended this run after step 5 of 24, so nothing is trained; --weight" in again
    assert metrics(tmp_path) == found


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--model", f"{MODELS}:contrastive", "--learning_rate", 0.5],
         "--learning_rate received 0.5, but --model tests.support.tiny_models:contrastive returns"),
        (["--metrics", "top_5"], "--metrics received 'top_5'; expected top5, auc, f1"),
        (["--metrics", "MeanIoU"], "--metrics received 'MeanIoU', which Keras cannot make"),
        (["--callbacks", f"{MODELS}:broken_callbacks"], "returned str; expected a list of"),
        (["--callbacks", f"{MODELS}:calbacks"], f"did you mean {MODELS}:callbacks?"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(shapes, tmp_path, flags, sentence, capsys):
    assert main(_flags(shapes, tmp_path, *flags)) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1, said
