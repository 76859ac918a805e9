import numpy as np
import pytest

from tests.support.errors import refused
from trainer.config import OptimizerConfig
from trainer.models.metrics import make_metrics
from trainer.models.optimizer import make_loss

pytestmark = pytest.mark.process

# Three classes or labels, of which the last has no example; the model is always right.
CLASSES = np.array([0, 1, 0, 1])
LABELS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0]], np.float32)


@pytest.mark.parametrize(
    ("target", "label", "names"),
    [("class", CLASSES, ("auc", "f1")), ("labels", LABELS, ("auc_pr", "auc", "f1"))],
)
def test_means_over_classes_leave_out_classes_without_examples(target, label, names):
    hot = np.eye(3)[label] if target == "class" else label
    for metric in make_metrics(names, 3, target):
        metric.update_state(label, (10 * hot - 5).astype(np.float32), np.ones(len(label)))
        assert float(metric.result()) == pytest.approx(1.0), metric.name
        metric.reset_state()
        # Examples of weight 0 are no examples.
        metric.update_state(label, hot.astype(np.float32), np.zeros(len(label)))
        if metric.name in map(str.lower, names):
            assert np.isnan(float(metric.result())), metric.name


def test_a_label_of_every_example_has_no_area_under_the_curve_of_false_positives():
    metric = make_metrics(["auc"], 2, "labels")[-1]
    label = np.array([[1, 1], [1, 0]], np.float32)
    metric.update_state(label, np.array([[9, -9], [9, 9]], np.float32), np.ones(2))
    # The second label alone counts, and is found where it is not.
    assert float(metric.result()) == pytest.approx(0.0, abs=0.01)


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
