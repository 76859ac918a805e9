"""A quantity, such as a price, from training to the served model: in its own unit everywhere."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import imageshards as ims
from tests.support.html_page import Page
from tests.support.prices import NUM_MISSING, make_prices
from tests.support.runs import metrics
from trainer import evaluate, export, predict
from trainer.serving.model_file import load_model

pytestmark = pytest.mark.process

tf = pytest.importorskip("tensorflow")

from trainer.__main__ import main as train  # noqa: E402

LINEAR = ("--model", "tests.support.tiny_models:plain", "--optimizer", "sgd", "--augment", "none")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """320 pictures to train on, 80 to validate, and their table."""
    return make_prices(tmp_path_factory.mktemp("prices") / "pictures")


@pytest.fixture(scope="module")
def run(made: pathlib.Path) -> pathlib.Path:
    """A run that has learnt the price of a picture."""
    output = made.parent / "run"
    flags = ("--data", made, "--target", "price", "--output", output, "--epochs", 9)
    more = ("--augment", "none", "--seed", 1, "--learning_rate", 0.01, "--metrics", "r2")
    assert train([*map(str, (*flags, *more))]) == 0
    return output


def prices(made: pathlib.Path, split: str) -> Any:
    return ims.open(made).index(split)["price"].to_numpy().astype(np.float64)


def evaluated(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    capsys.readouterr()
    assert evaluate.main([*map(str, argv), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_price_is_learnt_and_found_in_its_own_unit(made, run, tmp_path, capsys):
    best = min(metrics(run), key=lambda record: record["val_loss"])
    assert best["val_r2"] > 0.95 and 1_000 < best["val_mae"] < 15_000
    page = tmp_path / "page"
    found = evaluated(capsys, "--data", made, "--model_path", run, "--report", page)
    assert (found["loss"], found["mae"]) == pytest.approx((best["val_loss"], best["val_mae"]), 1e-5)
    own = prices(made, "train")
    assert found["loss"] == pytest.approx(found["mse"] / own.var(), rel=1e-5)
    for words in (
        Page((folder / "index.html").read_text()).words for folder in (page, run / "report")
    ):
        scale = f"price, mean {own.mean():,.0f} and deviation {own.std():,.0f} in training"
        assert f"{scale}; errors are in its unit, the loss has none" in words
    _, card = load_model(str(run))
    assert card.target_mean_std is not None
    assert card.target_mean_std.mean == pytest.approx((own.mean(),))
    assert card.target_mean_std.std == pytest.approx((own.std(),))

    file = made.parent / "dear.png"
    assert predict.main(["--model_path", str(run), str(file), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    price = row["values"]["price"]
    assert price == pytest.approx(340_000, rel=0.1)
    argv = ("--model_path", run, "--output", tmp_path / "served")
    assert export.main([*map(str, argv)]) == 0
    serve = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    answer = serve(image_bytes=tf.constant([file.read_bytes()]))["values"]
    assert answer.numpy().item() == pytest.approx(price, rel=1e-6)


@pytest.mark.parametrize("loss", ["mean_squared_error", "huber"])
def test_a_run_has_the_same_losses_in_any_unit(made, tmp_path, loss, capsys):
    histories = {}
    for column in ("price", "cents", "millions"):
        output = tmp_path / column
        flags = ("--data", made, "--target", column, "--output", output, "--epochs", 2, *LINEAR)
        assert train([*map(str, (*flags, "--loss", loss))]) == 0
        histories[column] = metrics(output)
        assert f"{loss.replace('_', ' ')} of errors in deviations" in capsys.readouterr().out
    for name, unit in (("cents", 100.0), ("millions", 1e-6)):
        for one, other in zip(histories["price"], histories[name], strict=True):
            for figure in ("loss", "val_loss"):
                assert other[figure] == pytest.approx(one[figure], rel=1e-4)
            for figure in ("mae", "val_mae", "rmse", "val_rmse"):
                assert other[figure] == pytest.approx(unit * one[figure], rel=1e-4)


def test_records_without_a_price_are_left_out_and_counted(made, tmp_path, capsys):
    output = tmp_path / "run"
    flags = ("--data", made, "--target", "partly", "--output", output, "--steps", 2, *LINEAR)
    assert train([*map(str, flags)]) == 0
    plan = capsys.readouterr().out
    assert f": {320 - NUM_MISSING} records to train on in" in plan
    assert f"{NUM_MISSING} records to train on and 0 to validate lack the target partly" in plan
    argv = ("--data", made, "--model_path", output)
    found = evaluated(capsys, *argv, "--split", "train")
    assert (found["num_examples"], found["missing_target"]) == (320 - NUM_MISSING, NUM_MISSING)
    assert evaluated(capsys, *argv)["missing_target"] == 0
    assert evaluate.main([*map(str, (*argv, "--split", "train"))]) == 0
    assert f"missing  {NUM_MISSING} records without a target left out\n" in capsys.readouterr().out
