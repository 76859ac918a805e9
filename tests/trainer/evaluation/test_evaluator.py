"""Evaluation: each example exactly once, for any batch size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from imageshards.errors import UserError
from tests.support.trainer_data import CLASSES
from trainer.dataset.spec import (
    DataSet,
    FeatureSpec,
    ImageSpec,
    ModelInputs,
    ReadOptions,
    Split,
    Subset,
)
from trainer.dataset.subset import class_ids

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402

from trainer.evaluation.classes import ClassEvaluation  # noqa: E402
from trainer.evaluation.evaluator import Evaluator  # noqa: E402
from trainer.evaluation.labels import LabelsEvaluation  # noqa: E402
from trainer.reader import pipeline  # noqa: E402
from trainer.reader.batches import EvaluationData  # noqa: E402
from trainer.reader.broken_records import BrokenRecords  # noqa: E402

READ_OPTIONS = ReadOptions(threads=2)
IMAGE = ImageSpec((1, 1), False, 3, (0.5,) * 3, (0.25,) * 3)
INPUTS = ModelInputs((1, 1), IMAGE)


def subset_of(classes: tuple[str, ...], num_records: int = 0, target: str = "class") -> Subset:
    features = {"image/encoded": FeatureSpec("string", ()), "n": FeatureSpec("float32", (2,))}
    column: dict[str, Any] = {"label_feature": "n"} if target == "values" else {}
    dataset = DataSet("somewhere", {}, classes, IMAGE, features, target=target, **column)
    return Subset(dataset, Split("validation", ()), classes, None, (), num_records, None)


def data_of(
    classes: tuple[str, ...], num_records: int, batch_size: int, target: str = "class"
) -> EvaluationData:
    return EvaluationData(subset_of(classes, num_records, target), READ_OPTIONS, INPUTS, batch_size)


def logits_model(num_classes: int) -> keras.Model:
    """A model whose logits are its input."""
    image = keras.Input((num_classes,), name="image")
    return keras.Model(image, keras.layers.Identity()(image))


def evaluator_of(model: keras.Model, data: EvaluationData, **more: Any) -> Evaluator:
    broken = BrokenRecords(0, data.subset.dataset)
    return Evaluator(model, tf.distribute.get_strategy(), data, broken, **more)


def evaluated(model: keras.Model, data: EvaluationData, **more: Any) -> ClassEvaluation:
    evaluator = evaluator_of(model, data, **more)
    figures = evaluator.run()
    found = evaluator.evaluation
    assert isinstance(found, ClassEvaluation)
    own = found.figures()
    np.testing.assert_equal(figures, {"loss": own["loss"], "accuracy": own["accuracy"]})
    return found


def feed(monkeypatch: pytest.MonkeyPatch, logits: np.ndarray, label: Any, weight: Any = None):
    """Makes the reader give these examples, filled up as the reader does."""

    def batches(data: EvaluationData, *_: Any) -> Any:
        count, batch_size = len(logits), data.batch_size
        size = -(-count // batch_size) * batch_size
        fill = [(0, size - count)]
        weights = np.ones(count) if weight is None else np.asarray(weight)
        arrays = {
            "inputs": {"image": np.pad(logits, [*fill, (0, 0)]).astype(np.float32)},
            "label": np.pad(np.asarray(label), fill + [(0, 0)] * (np.ndim(label) - 1)),
            "weight": np.pad(weights, fill).astype(np.float32),
            "record": np.pad(np.arange(count), fill, constant_values=-1),
            "present": np.pad(weights > 0, fill),
            "position": np.arange(size),
        }
        return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size, drop_remainder=True)

    monkeypatch.setattr(pipeline, "evaluation_batches", batches)


def reference(logits: np.ndarray, label: np.ndarray) -> tuple[float, float, float]:
    """Cross-entropy, accuracy and top-5 accuracy by the book, in float64."""
    exact = logits.astype(np.float64)
    shifted = exact - exact.max(1, keepdims=True)
    log_probability = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    ranks = np.argsort(-exact, 1, kind="stable")
    return (
        float(-log_probability[np.arange(len(label)), label].mean()),
        float((ranks[:, 0] == label).mean()),
        float((ranks[:, :5] == label[:, None]).any(1).mean()),
    )


@pytest.mark.parametrize(("num_classes", "batch_size"), [(2, 1), (5, 7), (9, 32)])
def test_figures_equal_a_float64_reference_for_any_batch_size(monkeypatch, batch_size, num_classes):
    rng = np.random.default_rng(num_classes)
    # Rounded, so that some are equal: a tie is decided one way only.
    logits = np.round(rng.normal(0, 2, (45, num_classes)), 1).astype(np.float32)
    label = rng.integers(0, num_classes, 45)
    feed(monkeypatch, logits, label)
    names = tuple(f"c{i}" for i in range(num_classes))
    found = evaluated(logits_model(num_classes), data_of(names, 45, batch_size))
    loss, accuracy, top5 = reference(logits, label)
    assert found.num_examples == 45 and found.left_out == 0
    assert found.loss == pytest.approx(loss, rel=1e-6)
    figures = found.figures()
    assert figures["accuracy"] == accuracy
    np.testing.assert_equal(figures["top5_accuracy"], top5 if num_classes > 5 else np.nan)
    assert found.record.tolist() == list(range(45))
    assert found.label.tolist() == label.tolist()
    assert found.predicted.tolist() == logits.argmax(1).tolist()
    np.testing.assert_allclose(np.exp(-found.losses), found.probability_of_label, rtol=1e-5)
    assert (found.probability_of_prediction >= found.probability_of_label).all()


def test_broken_records_are_counted_as_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]] * 4
    feed(monkeypatch, logits, [0, 1, 1, 0], weight=[1, 0, 1, 1])
    found = evaluated(logits_model(3), data_of(CLASSES, 4, 3))
    assert (found.num_examples, found.left_out) == (3, 1)
    assert found.record.tolist() == [0, 2, 3]
    assert found.figures()["accuracy"] == pytest.approx(2 / 3)
    feed(monkeypatch, logits[:2], [0, 0], weight=[0, 0])  # nothing is left
    found = evaluated(logits_model(3), data_of(CLASSES, 2, 2))
    assert (found.num_examples, found.left_out) == (0, 2)
    assert np.isnan(found.loss) and len(found.label) == 0


def test_a_second_pass_traces_nothing_and_sees_new_weights(monkeypatch):
    logits = np.eye(3, dtype=np.float32) * 2
    feed(monkeypatch, logits, [0, 1, 2])
    image = keras.Input((3,), name="image")
    scale = keras.layers.Dense(3, use_bias=False, kernel_initializer="identity")
    traced: list[int] = []

    class Counting(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            traced.append(1)
            return x

    model = keras.Model(image, Counting()(scale(image)))
    evaluator = evaluator_of(model, data_of(CLASSES, 3, 2))
    assert evaluator.run()["accuracy"] == 1.0
    before = len(traced)
    scale.kernel.assign(-scale.kernel)
    assert evaluator.run()["accuracy"] == 0.0
    assert len(traced) == before


def test_classes_are_matched_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.eye(4, dtype=np.float32)[[3, 0, 3]] * 5
    feed(monkeypatch, logits, [0, 1, 1])
    data = data_of(("dog", "cat"), 3, 2)
    found = evaluated(logits_model(4), data, classes=("cat", "cow", "hen", "dog"))
    assert found.names == ("cat", "cow", "hen", "dog")
    assert found.label.tolist() == [3, 0, 0]
    assert found.figures()["accuracy"] == pytest.approx(2 / 3)


def test_a_class_the_model_does_not_know_is_refused() -> None:
    for data_classes, remedy in ((("cat", "emu"), "--classes"), (("0", "1"), "--class_names")):
        with pytest.raises(UserError, match=f"{data_classes[1]}.*does not know.*{remedy}"):
            class_ids(subset_of(data_classes), ("cat", "dog"))


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_of_labels_and_values_every_example_counts_once(monkeypatch, batch_size):
    rng = np.random.default_rng(batch_size)
    outputs = rng.normal(0, 2, (9, 2)).astype(np.float32)
    label = rng.integers(0, 2, (9, 2)).astype(np.float32)
    weight = [1, 1, 0, 1, 1, 1, 1, 1, 1]  # one is broken
    kept = np.flatnonzero(weight)
    feed(monkeypatch, outputs, label, weight)
    # The data has the labels in another order than the model.
    evaluator = evaluator_of(
        logits_model(2), data_of(("dog", "cat"), 9, batch_size, "labels"), classes=("cat", "dog")
    )
    figures = evaluator.run()
    found = evaluator.evaluation
    assert isinstance(found, LabelsEvaluation)
    assert (found.names, found.num_examples, found.left_out) == (("cat", "dog"), 8, 1)
    np.testing.assert_array_equal(found.label, label[kept, ::-1] > 0.5)
    np.testing.assert_array_equal(found.logits, outputs[kept])
    exact, swapped = outputs[kept].astype(np.float64), label[kept, ::-1]
    losses = np.log1p(np.exp(exact)) - exact * swapped
    assert figures == {"loss": pytest.approx(losses.mean(), rel=1e-6)}

    feed(monkeypatch, outputs, label, weight)
    off = np.abs(outputs[kept].astype(np.float64) - label[kept])
    for loss, expected in ((None, off**2), ("mean_absolute_error", off)):
        evaluator = evaluator_of(logits_model(2), data_of((), 9, batch_size, "values"), loss=loss)
        figures = evaluator.run()
        values = evaluator.evaluation
        assert values is not None and values.names == ("n[0]", "n[1]")
        assert figures == {"loss": pytest.approx(expected.mean(), rel=1e-6)}
        assert values.figures()["mae"] == pytest.approx(off.mean(), rel=1e-6)
        assert values.record.tolist() == kept.tolist()


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_compiled_models_own_figures_count_every_record_once(monkeypatch, eagerly):
    logits = np.random.default_rng(4).normal(0, 2, (10, 3)).astype(np.float32)
    label = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    # Broken records, among them all of the third batch; two rows fill up the fourth.
    weight = [1, 0, 0, 1, 0, 1, 0, 0, 0, 1]
    feed(monkeypatch, logits, label, weight)
    model = logits_model(3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], run_eagerly=eagerly)
    model.evaluate(logits[:3], label[:3], verbose=0)  # makes the metrics
    evaluator = evaluator_of(model, data_of(CLASSES, 10, 3), own_step=True)
    expected = reference(logits[kept := np.flatnonzero(weight)], label[kept])
    for _ in range(2):
        found = evaluator.run()
        assert found == {"loss": pytest.approx(expected[0]), "accuracy": pytest.approx(expected[1])}


@pytest.mark.parametrize("own_step", [False, True], ids=["logits", "own step"])
def test_too_little_memory_is_no_broken_record(monkeypatch, own_step):
    feed(monkeypatch, np.eye(3, dtype=np.float32), [0, 1, 2])
    model = logits_model(3)
    model.compile("sgd", "mse")
    evaluator = evaluator_of(model, data_of(CLASSES, 3, 2), own_step=own_step)

    def step(_: Any) -> Any:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    monkeypatch.setattr(evaluator, "_step", step)
    with pytest.raises(UserError, match="--batch_size received 2, for which the devices have not"):
        evaluator.run()
