import json
import pathlib
import types
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import imageshards as ims
from tests.support.commands import run_forked
from tests.support.html_page import Page
from tests.support.runs import metrics
from tests.support.target_sets import make_targets, read_columns
from trainer import evaluate
from trainer.__main__ import main as train
from trainer.evaluation import evaluation

NUM_MISSING = 2
WORDS = ("blue", "green", "red")
FLAGS = ("--steps", 24, "--batch_size", 16, "--augment", "none", "--learning_rate", 0.01)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A dataset, and the folder of a run whose target were the labels `words`."""
    folder = tmp_path_factory.mktemp("targets")
    shards = make_targets(folder / "set", {"train": 4, "validation": 2}, 16)
    flags = ("--data", shards, "--target", "words", "--output", folder / "run", *FLAGS)
    assert train([*map(str, flags), "--model", "tests.support.tiny_models:dense"]) == 0
    return types.SimpleNamespace(shards=shards, run=folder / "run")


def expected_logits(trained: Any) -> tuple[Any, Any]:
    """What the model gives for the validation split, and the features of its records."""
    rows = read_columns(trained.shards, "validation")
    pixels = np.stack([tf.io.decode_jpeg(row["image/encoded"][0]) for row in rows])
    model = keras.saving.load_model(trained.run / "model.keras", compile=False)
    return np.asarray(model(pixels)).astype(np.float64), rows


@pytest.mark.long
def test_labels_are_evaluated_exactly_for_any_batch_and_replicas(trained, tmp_path):
    of_run = {"last": True, "batch_size": 7, "report": tmp_path / "page"}
    found = ims.evaluate(trained.run, trained.shards, **of_run)
    logits, rows = expected_logits(trained)
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
    given = ("--model_path", trained.run, "--last", "--data", trained.shards)
    told = run_forked("trainer.evaluate", *given, "--replicas", 2, "--json")
    assert told.returncode == 0, told.stderr
    again = json.loads(told.stdout)
    assert again["replicas"] == 2 and again["outputs"] == found["outputs"]
    assert again["loss"] == pytest.approx(found["loss"], rel=1e-6)
    page = Page((tmp_path / "page" / "index.html").read_text("utf-8"))
    assert "Labels" in page.words and "Confusion" not in page.words
    assert len(page.all("img")) == sum(np.any((logits >= 0) != has, 1))


@pytest.mark.long
def test_figures_of_a_large_split_are_estimates(trained, tmp_path, monkeypatch, capsys):
    assert ims.evaluate(trained.run, trained.shards)["estimate"] is None
    argv = ("--model_path", trained.run, "--data", trained.shards)
    monkeypatch.setattr(evaluation, "MAX_OUTPUTS", 32 * 3 - 1)
    assert evaluate.main([*map(str, (*argv, "--report", tmp_path / "page"))]) == 0
    said = "Figures are estimates: 1 of every 2 records was measured."
    assert f"\n{said}" in capsys.readouterr().out
    assert said in " ".join(Page((tmp_path / "page" / "index.html").read_text("utf-8")).words)


def test_the_page_of_a_training_shows_its_kind_and_files_get_labels(trained, tmp_path):
    words = {*Page((trained.run / "report" / "index.html").read_text("utf-8")).words}
    assert "Area under precision against recall" in words and not {"Confusion", "Accuracy"} & words
    assert metrics(trained.run)[-1]["val_auc_pr"] > 0.5
    files = []
    for number, row in enumerate(read_columns(trained.shards, "validation")[:3]):
        files.append(tmp_path / f"{number}.jpg")
        files[-1].write_bytes(row["image/encoded"][0])
    shares = 1 / (1 + np.exp(-expected_logits(trained)[0][:3]))
    for row, own in zip(ims.predict(trained.run, files, last=True, top=1), shares, strict=True):
        assert {*row["labels"]} == {WORDS[i] for i in np.flatnonzero(own > 0.5)}
        assert row["top"][0]["probability"] == pytest.approx(own.max(), abs=0.05)


def test_records_without_an_input_are_refused_before_a_figure_is_nan(trained, tmp_path, capsys):
    flags = ("--data", trained.shards, "--target", "bright", "--inputs", "image,gap", "--steps", 1)
    more = ("--output", tmp_path / "run", "--model", "tests.support.tiny_models:with_gap")
    assert train([*map(str, (*flags, *more))]) == 2
    assert "--inputs received 'gap', which is nan in record 4" in capsys.readouterr().err
    assert train([*map(str, (*flags, *more, "--where", "gap>=0"))]) == 0
    argv = ("--model_path", tmp_path / "run", "--data", trained.shards, "--split", "train")
    assert evaluate.main([*map(str, argv)]) == 2
    assert "--inputs received 'gap', which is nan in record 4" in capsys.readouterr().err
    assert evaluate.main([*map(str, (*argv, "--where", "gap>=0"))]) == 0


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """320 pictures to train on, 80 to validate; prices of 100,000 to 500,000 by their light."""
    folder = tmp_path_factory.mktemp("prices") / "set"
    return make_targets(folder, {"train": 20, "validation": 5}, 16)


@pytest.mark.long
def test_a_price_is_learnt_and_found_in_its_own_unit(priced, tmp_path, capsys):
    run, page = tmp_path / "run", tmp_path / "page"
    flags = ("--data", priced, "--target", "price", "--output", run, "--epochs", 9)
    more = ("--augment", "none", "--seed", 1, "--learning_rate", 0.01, "--metrics", "r2")
    assert train([*map(str, (*flags, *more))]) == 0
    assert "mean squared error of errors in deviations" in capsys.readouterr().out
    best = min(metrics(run), key=lambda record: record["val_loss"])
    assert best["val_r2"] > 0.95 and 1_000 < best["val_mae"] < 15_000
    found = ims.evaluate(run, priced, report=page)
    assert (found["loss"], found["mae"]) == pytest.approx((best["val_loss"], best["val_mae"]), 1e-5)
    own = ims.open(priced).index("train")["price"].to_numpy().astype(np.float64)
    assert found["loss"] == pytest.approx(found["mse"] / own.var(), rel=1e-5)
    scale = f"price, mean {own.mean():,.0f} and deviation {own.std():,.0f} in training"
    for folder in (page, run / "report"):
        words = Page((folder / "index.html").read_text()).words
        assert f"{scale}; errors are in its unit, the loss has none" in words
    record, file = read_columns(priced, "validation")[0], tmp_path / "0.jpg"
    file.write_bytes(record["image/encoded"][0])
    (row,) = ims.predict(run, file)
    price = row["values"]["price"]
    assert price == pytest.approx(record["price"][0], rel=0.1)
    serve = tf.saved_model.load(ims.export(run, tmp_path / "served")).signatures["serving_default"]
    answer = serve(image_bytes=tf.constant([file.read_bytes()]))["values"]
    assert answer.numpy().item() == pytest.approx(price, rel=1e-6)


@pytest.mark.long
def test_records_without_a_price_are_left_out_and_counted(priced, tmp_path, capsys):
    output = tmp_path / "run"
    flags = ("--data", priced, "--target", "gap", "--output", output, "--steps", 2)
    assert train([*map(str, (*flags, "--augment", "none"))]) == 0
    plan = capsys.readouterr().out
    assert f": {320 - NUM_MISSING} records to train on in" in plan
    assert f"{NUM_MISSING} records to train on and 0 to validate lack the target gap" in plan
    found = ims.evaluate(output, priced, split="train")
    assert (found["num_examples"], found["missing_target"]) == (320 - NUM_MISSING, NUM_MISSING)
    assert ims.evaluate(output, priced)["missing_target"] == 0
    argv = ("--data", priced, "--model_path", output)
    assert evaluate.main([*map(str, (*argv, "--split", "train"))]) == 0
    assert f"missing  {NUM_MISSING} records without a target left out\n" in capsys.readouterr().out
