"""Whole runs on TFRecords that others wrote: adopted, trained, evaluated."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from imageshards.adopt.command import main as adopt
from tests.support.external_sets import write_kaggle
from trainer import evaluate
from trainer.__main__ import main as train

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.slow

SMALL = ["--model", "tests.support.tiny_models:dense"]


def _run(command: Any, *arguments: Any) -> int:
    return int(command([str(argument) for argument in arguments]))


def test_kaggle_names_are_adopted_trained_and_evaluated(
    tmp_path: pathlib.Path, capsys: Any
) -> None:
    write_kaggle(tmp_path / "flowers" / "train", {"flowers00-9.tfrec": 9, "flowers01-8.tfrec": 8})
    write_kaggle(tmp_path / "flowers" / "val", {"flowers00-5.tfrec": 5})
    data, output = tmp_path / "flowers", tmp_path / "model"
    given = ["--feature_map", "image=image,label=class", "--class_names", "rose,tulip,daisy"]
    assert _run(adopt, data, *given) == 0
    told = f"wrote {data}/manifest.json: train 17 records, val 5 records; 3 classes"
    assert told in capsys.readouterr().out
    code = _run(
        train, "--data", data, "--output", output, "--image_size", 24, "--batch_size", 4,
        "--epochs", 2, *SMALL,
    )  # fmt: skip
    assert code == 0
    told = "17 records to train on in 2 shards, 5 to validate, 3 classes"
    assert told in capsys.readouterr().out
    last = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 2 * 17 // 4

    code = _run(
        evaluate.main, "--model_path", output, "--data", data, "--split", "val",
        "--batch_size", 3, "--json",
    )  # fmt: skip
    assert code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_examples"] == 5
    assert found["loss"] == pytest.approx(last["val_loss"], rel=1e-4)
    assert found["accuracy"] == pytest.approx(last["val_accuracy"])
