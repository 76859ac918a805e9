from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.support.evaluations import evaluation_of
from tests.trainer.cluster.test_hosts import on_hosts
from trainer.cluster.hosts import Hosts
from trainer.evaluation import evaluation
from trainer.evaluation.evaluator import renumbered
from trainer.evaluation.kinds import LabelsEvaluation, average_precision

NAMES = ("cat", "dog", "cow")
LABEL = [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]]
LOGITS = [[2.0, -1, 1], [-1, 3, -2], [0, 1, -3], [1, -5, -4]]
# Few different scores, so that some are equal.
ROWS = st.lists(st.tuples(st.booleans(), st.integers(-4, 4)), min_size=1, max_size=40)


def by_definition(relevant: list[bool], score: list[float]) -> float:
    """Of each relevant example the precision where the threshold is its own score; their mean."""
    found = []
    for own, one in zip(relevant, score, strict=True):
        if own:
            hits = [other for other, value in zip(relevant, score, strict=True) if value >= one]
            found.append(sum(hits) / len(hits))
    return sum(found) / len(found)


@given(ROWS)
def test_average_precision_equals_its_definition(rows: list[tuple[bool, int]]) -> None:
    relevant, score = [one for one, _ in rows], [value / 3 for _, value in rows]
    found = average_precision(np.array(relevant), np.array(score, np.float32))
    if any(relevant):
        assert found == pytest.approx(by_definition(relevant, score), abs=1e-12)
    else:
        assert np.isnan(found)


def test_figures_by_hand() -> None:
    found = evaluation_of(LabelsEvaluation, LABEL, LOGITS, *NAMES)
    # Cat: found first, and last of four. Dog: first two. No example is a cow.
    assert found.figures()["mean_average_precision"] == pytest.approx((3 / 4 + 1) / 2)
    exact, label = np.array(LOGITS, np.float64), np.array(LABEL, np.float64)
    losses = np.log1p(np.exp(-np.abs(exact))) + np.maximum(exact, 0) - exact * label
    np.testing.assert_allclose(found.losses, losses.mean(1), rtol=1e-6)
    assert found.figures()["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    order, head, rows = found.table()
    assert order == "worst" and head[:4] == ("label", "examples", "predicted", "right")
    assert [tuple(row) for row in rows] == [
        ("cat", 2, 3, 1, 3 / 4, 1 / 2, 1 / 3),
        ("dog", 2, 2, 2, 1, 1, 1),
        ("cow", 0, 1, 0, None, None, 0),
    ]
    assert found.most_wrong()[0] == np.argmax(losses.mean(1))
    is_one, said = found.described(0)
    assert "cat" in is_one and "88.1" in is_one and said.count("(") == 2 and "cow" in said
    assert found.described(3)[0] == "without label"
    empty = evaluation_of(LabelsEvaluation, np.zeros((0, 3)), np.zeros((0, 3)), *NAMES)
    assert all(np.isnan(value) for value in empty.figures().values())
    assert {row[4:] for row in empty.table().rows} == {(None, None, None)}


@pytest.mark.process
@pytest.mark.parametrize("every", [1, 2])
def test_two_hosts_measure_the_same_as_one(monkeypatch, every):
    monkeypatch.setattr(evaluation, "MAX_OUTPUTS", 15 * 3 // every + 1)
    rng = np.random.default_rng(8)
    label, logits = rng.integers(0, 2, (15, 3)), rng.normal(-1, 6, (15, 3))
    # The last one is a broken record. A large split is measured by every second record.
    kept = slice(0, 14, every)
    expected = evaluation_of(LabelsEvaluation, label[kept], logits[kept], *NAMES)
    rows = {"label": label > 0, "logits": logits.astype(np.float32), "record": np.arange(15)}
    rows |= {"losses": np.zeros(15, np.float32), "weight": np.append(np.ones(14), 0)}
    rows["losses"][kept] = expected.losses

    def body(hosts: Hosts) -> Any:
        collector = evaluation.Collector(LabelsEvaluation, NAMES, 15)
        for begin in range(3 * hosts.index, 15, 6):
            own = slice(begin, begin + 3)
            collector.add({name: values[own] for name, values in rows.items()})
        return collector.evaluation(hosts.concatenate)

    for found in on_hosts(2, body):
        assert found.left_out == 1 and found.record.tolist() == [*range(14)][kept]
        assert (found.estimate is None) == (every == 1)
        assert found.figures() == expected.figures() and found.table() == expected.table()


def test_labels_are_matched_by_the_models_names() -> None:
    label = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    found = np.asarray(renumbered(tf.constant(label), (2, 0), 4))
    np.testing.assert_array_equal(found, [[0, 0, 1, 0], [1, 0, 0, 0], [1, 0, 1, 0]])


def test_the_most_wrong_examples_have_a_mistake_and_name_few_labels() -> None:
    names = [f"label {k}" for k in range(9)]
    label, logits = np.zeros((3, 9)), np.full((3, 9), -2.0)
    label[1, 0], logits[2] = 1, np.arange(9)
    logits[1, 0] = -1e4
    found = evaluation_of(LabelsEvaluation, label, logits, *names)
    assert found.most_wrong().tolist() == [1, 2]
    with np.errstate(all="raise", under="ignore"):
        assert "(0\u00a0%)" in found.described(1)[0]
    said = found.described(2)[1]
    assert said.startswith("\u2068label 8\u2069 (99.9\u00a0%), ") and said.endswith(", …")
    assert said.count("label") == 6
