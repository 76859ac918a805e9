"""The examples run, and do what their first lines say."""

import pathlib
import re

import pytest

from tests.support.commands import run_forked
from tests.support.trainer_data import make_dataset

pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("shards")
    return make_dataset(folder, {"train": 72, "validation": 40}, size_px=((96, 96),))


def run(example: str, *arguments: object) -> str:
    done = run_forked(f"examples.{example}", *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_keras_fits_and_validates(shards: pathlib.Path) -> None:
    accuracies = re.findall(r"val_accuracy: ([\d.]+)", run("fit", shards))
    assert len(accuracies) == 5
    # Of 40 validation pictures, 8 of them in the second batch.
    assert all(abs(float(a) * 40 - round(float(a) * 40)) < 0.01 for a in accuracies)


def test_a_loop_of_one_s_own_goes_on_with_the_very_next_record(shards, tmp_path):
    whole = run("custom_loop", shards, tmp_path / "whole", 5).splitlines()
    assert [line.split()[1] for line in whole] == list("12345")
    parts = [run("custom_loop", shards, tmp_path / "parts", steps) for steps in (2, 5, 5)]
    assert "".join(parts).splitlines() == whole and parts[2] == ""


def test_fit_on_two_replicas_stops_and_is_called_again(shards, tmp_path):
    epochs = run("fit_resume", shards, tmp_path, 2).count("val_accuracy: ")
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert 4 <= epochs <= 5 and len(lines) == epochs and "val_loss" in lines[0]  # or stopped early
    # Finished: nothing is trained again, and nothing is lost.
    assert "val_accuracy" not in run("fit_resume", shards, tmp_path, 2)
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == lines
