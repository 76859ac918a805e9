"""Trained models that find labels or values: evaluated, asked about files, exported, on a page."""

from __future__ import annotations

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.commands import run_forked
from tests.support.html_page import Page
from tests.support.runs import metrics
from tests.support.target_sets import make_targets, read_columns
from trainer import evaluate, predict

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402

from trainer.__main__ import main as train  # noqa: E402
from trainer.evaluation import labels  # noqa: E402

WORDS = ("blue", "green", "red")
FLAGS = ("--steps", 24, "--batch_size", 16, "--augment", "none", "--learning_rate", 0.01)


class Trained(NamedTuple):
    """A data set, and the folder of a run for each of its columns that was a target."""

    shards: pathlib.Path
    runs: dict[str, pathlib.Path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("targets")
    shards = make_targets(folder / "set", {"train": 4, "validation": 2}, 16)
    runs = {}
    for column in ("words", "rgb"):
        runs[column] = folder / column
        flags = ("--data", shards, "--target", column, "--output", runs[column], *FLAGS)
        assert train([*map(str, flags), "--model", "tests.support.tiny_models:dense"]) == 0
    return Trained(shards, runs)


def evaluated(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    code = evaluate.main([*map(str, argv), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)


def expected_outputs(trained: Trained, column: str) -> tuple[Any, Any]:
    """What the model gives for the validation split, and the features of its records."""
    rows = read_columns(trained.shards, "validation")
    pixels = np.stack([tf.io.decode_jpeg(row["image/encoded"][0]) for row in rows])
    model = keras.saving.load_model(trained.runs[column] / "model.keras", compile=False)
    return np.asarray(model(pixels)).astype(np.float64), rows


def test_labels_are_evaluated_exactly_for_any_batch_and_replicas(trained, tmp_path, capsys):
    given = ("--model_path", trained.runs["words"], "--last", "--data", trained.shards)
    found = evaluated(capsys, *given, "--batch_size", 7, "--report", tmp_path / "page")
    logits, rows = expected_outputs(trained, "words")
    has = np.array([[word.encode() in row["words"] for word in WORDS] for row in rows])
    losses = np.log1p(np.exp(-np.abs(logits))) + np.maximum(logits, 0) - logits * has
    assert found["target"] == "labels" and found["classes"] == list(WORDS)
    assert found["num_examples"] == 32 and "accuracy" not in found
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    outputs = {one["label"]: one for one in found["outputs"]}
    for i, name in enumerate(WORDS):
        one, said = outputs[name], logits[:, i] >= 0
        counts = (has[:, i].sum(), said.sum(), (said & has[:, i]).sum())
        assert (one["examples"], one["predicted"], one["right"]) == counts
    told = run_forked("trainer.evaluate", *given, "--replicas", 2, "--json")
    assert told.returncode == 0, told.stderr
    again = json.loads(told.stdout)
    assert again["replicas"] == 2 and again["outputs"] == found["outputs"]
    assert again["loss"] == pytest.approx(found["loss"], rel=1e-6)
    page = Page((tmp_path / "page" / "index.html").read_text("utf-8"))
    assert "Labels" in page.words and "Confusion" not in page.words
    assert len(page.all("img")) == sum(np.any((logits >= 0) != has, 1))


def test_average_precisions_of_too_many_logits_are_said_to_be_estimates(
    trained: Trained, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    argv = ("--model_path", trained.runs["words"], "--data", trained.shards)
    assert evaluated(capsys, *argv)["estimate"] is None
    monkeypatch.setattr(labels, "MAX_LOGITS", 32 * 3 - 1)
    assert evaluate.main([*map(str, (*argv, "--report", tmp_path / "page"))]) == 0
    said = "Average precisions are estimates, of logits rounded down to multiples of "
    assert f"\n{said}" in capsys.readouterr().out
    page = Page((tmp_path / "page" / "index.html").read_text("utf-8"))
    assert said in " ".join(page.words)


def test_values_are_evaluated_exactly_for_any_batch(trained, capsys):
    given = ("--model_path", trained.runs["rgb"], "--last", "--data", trained.shards)
    found = evaluated(capsys, *given, "--batch_size", 5)
    outputs, rows = expected_outputs(trained, "rgb")
    true = np.array([row["rgb"] for row in rows])
    off = outputs - true
    assert found["target"] == "values" and found["classes"] == []
    # Of the training split.
    std = np.array([row["rgb"] for row in read_columns(trained.shards, "train")]).std(0)
    assert found["loss"] == pytest.approx(((off / std) ** 2).mean(), rel=1e-5)
    assert found["mse"] == pytest.approx((off**2).mean(), rel=1e-5)
    assert found["mae"] == pytest.approx(np.abs(off).mean(), rel=1e-5)
    assert found["rmse"] == pytest.approx((off**2).mean() ** 0.5, rel=1e-5)
    explained = 1 - (off**2).sum(0) / ((true - true.mean(0)) ** 2).sum(0)
    assert found["r2"] == pytest.approx(explained.mean(), rel=1e-4)
    assert [one["value"] for one in found["outputs"]] == ["rgb[0]", "rgb[1]", "rgb[2]"]
    assert [one["r2"] for one in found["outputs"]] == pytest.approx(explained, rel=1e-4)


def test_the_page_of_a_training_shows_its_kind(trained: Trained) -> None:
    shown = {
        "words": ["Area under precision against recall"],
        "rgb": ["Predicted against true", "Mean absolute error", "rgb[2]"],
    }
    for name, titles in shown.items():
        page = Page((trained.runs[name] / "report" / "index.html").read_text("utf-8"))
        assert {*titles} <= {*page.words} and not {"Confusion", "Accuracy"} & {*page.words}
    assert metrics(trained.runs["words"])[-1]["val_auc_pr"] > 0.5
    assert metrics(trained.runs["rgb"])[-1]["val_mae"] < 1


def test_the_labels_of_files_are_predicted(trained, tmp_path, capsys):
    files = []
    for number, row in enumerate(read_columns(trained.shards, "validation")[:3]):
        files.append(tmp_path / f"{number}.jpg")
        files[-1].write_bytes(row["image/encoded"][0])
    shares = 1 / (1 + np.exp(-expected_outputs(trained, "words")[0][:3]))
    argv = ("--model_path", trained.runs["words"], "--last", *files, "--json", "--top", 1)
    assert predict.main([*map(str, argv)]) == 0
    for row, own in zip(json.loads(capsys.readouterr().out), shares, strict=True):
        assert {*row["labels"]} == {WORDS[i] for i in np.flatnonzero(own > 0.5)}
        assert row["top"][0]["probability"] == pytest.approx(own.max(), abs=0.05)


def test_classes_of_whole_numbers_are_evaluated_without_a_flag(trained, tmp_path, capsys):
    flags = ("--data", trained.shards, "--target", "shade", "--output", tmp_path / "run")
    assert train([*map(str, flags)]) == 2
    assert "or give --target_kind class if each number is a class" in capsys.readouterr().err
    more = ("--target_kind", "class", "--steps", 1, "--model", "tests.support.tiny_models:plain")
    assert train([*map(str, (*flags, *more))]) == 0
    capsys.readouterr()
    found = evaluated(capsys, "--model_path", tmp_path / "run", "--data", trained.shards)
    assert (found["target"], found["classes"]) == ("class", ["-5", "9", "10"])


def test_an_input_that_is_missing_ends_no_evaluation_in_nan(trained, tmp_path, capsys):
    flags = ("--data", trained.shards, "--target", "bright", "--inputs", "image,gap", "--steps", 1)
    more = ("--output", tmp_path / "run", "--model", "tests.support.tiny_models:with_gap")
    assert train([*map(str, (*flags, *more))]) == 2
    assert "--inputs received 'gap', which is nan in record 4" in capsys.readouterr().err
    assert train([*map(str, (*flags, *more, "--where", "gap>=0"))]) == 0
    argv = ("--model_path", tmp_path / "run", "--data", trained.shards, "--split", "train")
    assert evaluate.main([*map(str, argv)]) == 2
    assert "--inputs received 'gap', which is nan in record 4" in capsys.readouterr().err
    assert evaluate.main([*map(str, (*argv, "--where", "gap>=0"))]) == 0
