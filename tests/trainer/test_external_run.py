"""Whole runs on TFRecords that others wrote: trained, resumed, evaluated, predicted."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any

import pytest

from tests.support.commands import run_module
from tests.support.external_sets import flip_byte, write_kaggle, write_slim
from trainer.training.epochs import total_steps

pytest.importorskip("tensorflow")


def _run(cache: pathlib.Path, *command: Any) -> subprocess.CompletedProcess[str]:
    return run_module(*command, XDG_CACHE_HOME=str(cache))


@pytest.mark.slow
def test_kaggle_names_train_evaluate_and_predict(tmp_path: pathlib.Path) -> None:
    write_kaggle(tmp_path / "flowers" / "train", {"flowers00-9.tfrec": 9, "flowers01-8.tfrec": 8})
    write_kaggle(tmp_path / "flowers" / "val", {"flowers00-5.tfrec": 5})
    data, output = tmp_path / "flowers", tmp_path / "model"
    external = ["--feature_map", "image=image,label=class", "--class_names", "rose,tulip,daisy"]
    ran = _run(
        tmp_path, "trainer", "--data", data, "--output", output, *external, "--image_size", 24,
        "--batch_size", 4, "--epochs", 2, "--replicas", 2,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "17 records to train on in 2 shards, 5 to validate, 3 classes" in ran.stdout
    last = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == total_steps(2, None, 17, 4)

    ran = _run(
        tmp_path, "trainer.evaluate", "--model_path", output, "--data", data, *external,
        "--split", "val", "--batch_size", 3, "--json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["num_examples"] == 5
    assert found["loss"] == pytest.approx(last["val_loss"], rel=1e-4)
    assert found["accuracy"] == pytest.approx(last["val_accuracy"])


@pytest.mark.slow
def test_one_based_labels_are_counted_once_and_their_damage_is_left_out(
    tmp_path: pathlib.Path,
) -> None:
    shards = {"train-00000-of-00002": [1, 2, 1, 2, 1], "train-00001-of-00002": [2, 1, 2, 1]}
    write_slim(tmp_path / "slim", shards, {1: "tench", 2: "shark"})
    flags = ["--data", tmp_path / "slim", "--output", tmp_path / "model", "--batch_size", 4]
    flags += ["--image_size", 16, "--epochs", 1]
    ran = _run(tmp_path, "trainer", *flags, "--label_offset", 2)
    assert ran.returncode == 2
    assert "--label_offset" in ran.stderr and ran.stderr.splitlines()[-1].startswith("python -m")
    ran = _run(tmp_path, "trainer", *flags, "--label_offset", 1)
    assert ran.returncode == 0, ran.stderr
    assert "9 records to train on in 2 shards, 0 to validate, 2 classes" in ran.stdout

    flip_byte(tmp_path / "slim" / "train-00001-of-00002", 60)
    flags[3] = tmp_path / "other"
    ran = _run(tmp_path, "trainer", *flags, "--label_offset", 1)
    assert ran.returncode == 2
    assert "train-00001-of-00002" in ran.stderr and "--skip_broken" in ran.stderr
    ran = _run(tmp_path, "trainer", *flags, "--label_offset", 1, "--skip_broken", 1)
    assert ran.returncode == 0, ran.stderr
    assert "1 broken record left out:" in ran.stdout
