import numpy as np
import pytest

from tests.support.evaluations import evaluation_of
from trainer.evaluation.kinds import ValuesEvaluation


def test_figures_by_hand() -> None:
    label, predicted = [[1, 10], [2, 10], [6, 10]], [[2, 10], [2, 12], [3, 10]]
    evaluation = evaluation_of(ValuesEvaluation, label, predicted, "box[0]", "box[1]")
    figures = evaluation.figures()
    # Squares: 1, 0, 9 and 0, 4, 0; the first varies by 14 / 3, the second not at all.
    assert figures["loss"] == figures["mse"] == pytest.approx(14 / 6)
    assert figures["rmse"] == pytest.approx((14 / 6) ** 0.5)
    assert figures["mae"] == pytest.approx(6 / 6)
    assert np.isnan(figures["r2"])
    (_, *first), (name, *second) = evaluation.table().rows
    assert first == pytest.approx([10 / 3, 4 / 3, (10 / 3) ** 0.5, 1 - 10 / 14])
    assert name == "box[1]" and second[:3] == pytest.approx([4 / 3, 2 / 3, (4 / 3) ** 0.5])
    assert evaluation.losses.tolist() == [0.5, 2, 4.5]
    assert evaluation.most_wrong().tolist() == [2, 1, 0]
    assert evaluation.described(2) == ("6, 10", "3, 10")
    one = evaluation_of(ValuesEvaluation, [250000, 0.1], [[249999.3], [-0.5]], "price")
    assert [*map(one.described, (0, 1))] == [("250,000", "249,999"), ("0.1", "-0.5")]
    empty = evaluation_of(ValuesEvaluation, np.zeros((0, 2)), np.zeros((0, 2)), "a", "b")
    assert all(np.isnan(value) for value in empty.figures().values())
    assert [row[0] for row in empty.table().rows] == ["a", "b"]


def test_errors_of_many_large_values_keep_their_digits() -> None:
    rng = np.random.default_rng(3)
    # Large beside what they vary by, and the last one always the same.
    label = (rng.normal(1e6, 10, (50, 9))).astype(np.float32)
    label[:, 8] = 0.1
    predicted = label + rng.normal(0, 3, (50, 9)).astype(np.float32)
    true = label.astype(np.float64)
    off = predicted - true
    explained = [1 - np.sum(off[:, i] ** 2) / np.sum((one - one.mean()) ** 2)
                 for i, one in enumerate(true.T[:8])]  # fmt: skip
    names = [f"v[{i}]" for i in range(9)]
    found = evaluation_of(ValuesEvaluation, label, predicted, *names)
    errors = np.array([row[1:] for row in found.table().rows], np.float64)
    np.testing.assert_allclose(errors[:, 0], np.mean(off**2, 0))
    np.testing.assert_allclose(errors[:, 1], np.mean(np.abs(off), 0))
    np.testing.assert_allclose(errors[:8, 3], explained, rtol=1e-9)
    assert np.isnan(errors[8, 3])
    assert all(text.endswith(", …") and text.count(", ") == 6 for text in found.described(4))
