"""Trained models that find labels or values: evaluated, asked about files, exported, on a page."""

from __future__ import annotations

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.commands import run_forked
from tests.support.html_page import Page
from tests.support.manifests import write_manifest
from tests.support.target_sets import make_targets, read_columns
from trainer import evaluate, export, predict

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


def test_labels_are_evaluated_exactly_for_any_batch_and_replicas(
    trained: Trained, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--model_path", trained.runs["words"], "--last", "--data", trained.shards)
    found = evaluated(capsys, *given, "--batch_size", 7, "--report", tmp_path / "page")
    logits, rows = expected_outputs(trained, "words")
    has = np.array([[word.encode() in row["words"] for word in WORDS] for row in rows])
    losses = np.log1p(np.exp(-np.abs(logits))) + np.maximum(logits, 0) - logits * has
    assert found["target"] == "labels" and found["classes"] == list(WORDS)
    assert found["num_examples"] == 32 and "accuracy" not in found
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    outputs = {one["label"]: one for one in found["outputs"]}
    precisions = []
    for i, name in enumerate(WORDS):
        one, said = outputs[name], logits[:, i] >= 0
        counts = (has[:, i].sum(), said.sum(), (said & has[:, i]).sum())
        assert (one["examples"], one["predicted"], one["right"]) == counts
        scores = logits[has[:, i], i]
        # Of each example the precision where the threshold is its own score.
        hits = [has[logits[:, i] >= score, i].mean() for score in scores]
        precisions.append(np.mean(hits))
        assert one["average_precision"] == pytest.approx(np.mean(hits), rel=1e-6)
    assert found["mean_average_precision"] == pytest.approx(np.mean(precisions), rel=1e-6)
    told = run_forked("trainer.evaluate", *given, "--replicas", 2, "--json")
    assert told.returncode == 0, told.stderr
    again = json.loads(told.stdout)
    assert again["replicas"] == 2 and again["outputs"] == found["outputs"]
    assert again["loss"] == pytest.approx(found["loss"], rel=1e-6)
    page = Page((tmp_path / "page" / "index.html").read_text("utf-8"))
    assert "Labels" in page.words and "Confusion" not in page.words
    assert len(page.all("img")) == sum(np.any((logits >= 0) != has, 1))


def test_average_precisions_of_too_many_logits_are_said_to_be_estimates(
    trained: Trained,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = ("--model_path", trained.runs["words"], "--last", "--data", trained.shards)
    exact = evaluated(capsys, *given)
    assert exact["estimate"] is None
    monkeypatch.setattr(labels, "MAX_LOGITS", 32 * 3 - 1)
    found = evaluated(capsys, *given, "--report", tmp_path / "page")
    said = "Average precisions are estimates, of logits rounded down to multiples of 2.13333"
    assert found["estimate"].startswith(said) and "32 records of 3 labels" in found["estimate"]
    assert evaluate.main([*map(str, given)]) == 0
    assert f"\n{found['estimate']}\n" in capsys.readouterr().out
    page = Page((tmp_path / "page" / "index.html").read_text("utf-8"))
    assert found["estimate"] in page.words and "every label counts alike, estimated" in page.words
    # All other figures stay exact.
    assert found["loss"] == exact["loss"]
    counts = ("examples", "predicted", "right", "recall", "precision")
    of_label = ({one["label"]: one for one in each["outputs"]} for each in (found, exact))
    for one, other in zip(*(map(each.get, WORDS) for each in of_label), strict=True):
        assert [one[name] for name in counts] == [other[name] for name in counts]
        assert 0 < one["average_precision"] <= 1


def test_values_are_evaluated_exactly_for_any_batch(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
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
    pages = {
        name: Page((run / "report" / "index.html").read_text("utf-8"))
        for name, run in trained.runs.items()
    }
    last = {
        name: json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        for name, run in trained.runs.items()
    }
    assert "Area under precision against recall" in pages["words"].words
    assert last["words"]["val_auc_pr"] > 0.5
    assert {"Predicted against true", "Mean absolute error", "rgb[2]"} < {*pages["rgb"].words}
    assert last["rgb"]["val_mae"] < 1
    for page in pages.values():
        assert "Confusion" not in page.words and "Accuracy" not in page.words
    assert len(pages["rgb"].all("img")) == 24


def test_files_are_predicted_and_served_as_the_model_finds_them(
    trained: Trained, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, flags = [], ("--last", "--json")
    for number, row in enumerate(read_columns(trained.shards, "validation")[:3]):
        files.append(tmp_path / f"{number}.jpg")
        files[-1].write_bytes(row["image/encoded"][0])
    logits, values = (expected_outputs(trained, column)[0][:3] for column in ("words", "rgb"))
    shares = 1 / (1 + np.exp(-logits))
    argv = ("--model_path", trained.runs["words"], *files, *flags, "--top", 1)
    assert predict.main([*map(str, argv)]) == 0
    for row, own in zip(json.loads(capsys.readouterr().out), shares, strict=True):
        assert {*row["labels"]} == {WORDS[i] for i in np.flatnonzero(own > 0.5)}
        assert row["top"][0]["probability"] == pytest.approx(own.max(), abs=0.05)
    argv = ("--model_path", trained.runs["rgb"], *files, *flags)
    assert predict.main([*map(str, argv)]) == 0
    found = [row["values"]["rgb"] for row in json.loads(capsys.readouterr().out)]
    np.testing.assert_allclose(found, values, atol=0.1)
    for column, name, expected in (("words", "probabilities", shares), ("rgb", "values", values)):
        argv = ("--model_path", trained.runs[column], "--last", "--output", tmp_path / column)
        assert export.main([*map(str, argv)]) == 0
        serve = tf.saved_model.load(str(tmp_path / column)).signatures["serving_default"]
        answer = serve(image_bytes=tf.constant([file.read_bytes() for file in files]))[name]
        np.testing.assert_allclose(answer, expected, atol=0.1)


def test_classes_of_whole_numbers_are_evaluated_without_a_flag(
    trained: Trained, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--data", trained.shards, "--target", "shade", "--output", tmp_path / "run")
    assert train([*map(str, flags)]) == 2
    assert "--target_kind class" in capsys.readouterr().err
    more = ("--target_kind", "class", "--steps", 1, "--model", "tests.support.tiny_models:plain")
    assert train([*map(str, (*flags, *more))]) == 0
    capsys.readouterr()
    found = evaluated(capsys, "--model_path", tmp_path / "run", "--data", trained.shards)
    assert (found["target"], found["classes"]) == ("class", ["-5", "9", "10"])


def test_an_input_that_is_missing_ends_no_evaluation_in_nan(
    trained: Trained, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--data", trained.shards, "--target", "bright", "--inputs", "image,gap", "--steps", 1)
    more = ("--output", tmp_path / "run", "--model", "tests.support.tiny_models:with_gap")
    assert train([*map(str, (*flags, *more))]) == 2
    assert "--inputs received 'gap', which is nan in record 4" in capsys.readouterr().err
    assert train([*map(str, (*flags, *more, "--where", "gap>=0"))]) == 0
    argv = ("--model_path", tmp_path / "run", "--data", trained.shards, "--split", "train")
    assert evaluate.main([*map(str, argv)]) == 2
    assert "--inputs received 'gap', which is nan in record 4" in capsys.readouterr().err
    assert evaluate.main([*map(str, (*argv, "--where", "gap>=0"))]) == 0


def test_other_data_needs_the_same_column(
    trained: Trained, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_targets(tmp_path / "set", {"validation": 1})
    raw = json.loads((other / "manifest.json").read_text())
    words = raw["features"].pop("words")
    for feature, message in (
        (None, "--target received 'words'"),
        ({"dtype": "float32"}, "words is 4 numbers"),
    ):
        if feature:
            raw["features"]["words"] = words | feature | {"shape": [4]}
        write_manifest(str(other), raw)
        argv = ("--model_path", trained.runs["words"], "--data", other)
        assert evaluate.main([*map(str, argv)]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and message in told, told
