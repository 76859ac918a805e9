import pathlib
from typing import Any

import keras
import numpy as np
import pytest

from tests.support.errors import refused
from tests.support.runs import metrics
from tests.support.target_sets import make_targets
from trainer.config import OptimizerConfig, ReadConfig, RunConfig
from trainer.models.metrics import make_metrics
from trainer.models.model import build_model, compile_model
from trainer.models.optimizer import make_loss
from trainer.reader.batches import open_data
from trainer.serving.model_file import find_model
from trainer.training.run import train

pytestmark = pytest.mark.process
PLAIN = "tests.support.tiny_models:plain"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> pathlib.Path:
    """32 records to train on; 14 to validate, which no batch of 8 divides."""
    return make_targets(tmp_path_factory.mktemp("set"), {"train": 4, "validation": 2}, per_shard=8)


@pytest.mark.parametrize(
    ("target", "optimizer", "further"),
    [
        ("bright", {}, ("r2",)),
        ("rgb", {"loss": "mean_absolute_error"}, ("mape",)),
        ("words", {"label_smoothing": 0.1, "loss": "binary_focal_crossentropy"}, ("f1",)),
        ("shade", {}, ("top5", "AUC", "f1")),
    ],
)
def test_figures_equal_keras_figures_and_the_loss_falls(made, tmp_path, target, optimizer, further):
    read = ReadConfig(
        str(made), target=target, sample_weight="weight", batch_size=8, augment="none",
        validation_split="validation", target_kind="class" if target == "shade" else None,
    )  # fmt: skip
    own: dict[str, Any] = {"model": PLAIN, "epochs": 3, "metrics": further}
    config = RunConfig(read, str(tmp_path), OptimizerConfig(optimizer="sgd", **optimizer), **own)
    training, validation = open_data(read)
    assert validation is not None
    train(config, training, validation)
    ours = metrics(tmp_path)
    keras.utils.set_random_seed(read.seed)
    kind = training.subset.dataset.target
    scale: Any = {"mean_std": training.target_mean_std}
    model = build_model(PLAIN, training.model_inputs, training.num_outputs, kind, **scale)
    compile_model(model, config.optimizer, 8, 12, further, kind, **scale)
    given: dict[str, Any] = {"validation_data": validation.dataset(), "verbose": 0}
    history = model.fit(training.dataset(), steps_per_epoch=4, epochs=3, **given).history
    for name, of_epochs in history.items():
        for record, value in zip(ours, of_epochs, strict=True):
            assert record[name] == pytest.approx(value, rel=2e-4, abs=1e-6), name
    assert ours[-1]["loss"] < ours[0]["loss"]
    assert ("accuracy" in ours[0]) == (kind == "class")
    card = find_model(tmp_path, code=PLAIN).card
    assert (card.target, card.column) == (kind, target)
    assert (card.num_outputs, card.classes) == (training.num_outputs, training.classes)


@pytest.mark.parametrize(
    ("target", "flags", "word"),
    [
        ("values", {"loss": "binary_crossentropy"}, "mean_sq"),
        ("values", {"metrics": "top5"}, "mae or rmse or r2 or mape"),
        ("class", {"metrics": "rmse"}, "top5 or auc or f1"),
    ],
)
def test_a_loss_or_metric_of_another_kind_is_refused(target, flags, word):
    with refused(*flags, word):
        if "metrics" in flags:
            make_metrics([flags["metrics"]], 3, target)
        make_loss(OptimizerConfig(**flags), target, 3)


def test_metrics_of_one_of_two_numbers_are_weighted_and_exact():
    labels, outputs = np.array([[1.0, 0.0], [3.0, 2.0]]), np.array([[2.0, 0.0], [3.0, 0.0]])
    mae, rmse, r2 = make_metrics(["R2", "RMSE"], 2, "values")
    for metric in (mae, rmse, r2):
        metric.update_state(labels, outputs, np.array([1.0, 3.0]))
    assert float(mae.result()) == pytest.approx((0.5 + 3 * 1.0) / 4)
    assert float(rmse.result()) == pytest.approx(np.sqrt((0.5 + 3 * 2.0) / 4))
    assert np.isfinite(float(r2.result()))
