from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.errors import refused
from tests.support.evaluations import evaluation_of
from tests.support.manifests import blank
from tests.support.trainer_data import CLASSES
from trainer.dataset.spec import DatasetSpec, ImageSpec, ModelInputs, ReadOptions, Split
from trainer.dataset.subset import Subset, class_ids
from trainer.evaluation.evaluator import Evaluator, measure
from trainer.evaluation.kinds import ClassEvaluation
from trainer.models.metrics import Accuracy
from trainer.models.optimizer import CrossEntropy
from trainer.reader import pipeline, stream
from trainer.reader.batches import EvaluationData
from trainer.reader.broken_records import BrokenRecords
from trainer.reader.stream import EvaluationStream

IMAGE = ImageSpec((1, 1), False, 3, (0.5,) * 3, (0.25,) * 3)


def data_of(classes: tuple[str, ...], num_records: int, batch_size: int) -> EvaluationData:
    dataset = DatasetSpec("somewhere", {}, classes, IMAGE, {}, blank())
    subset = Subset(dataset, Split("validation", ()), classes, None, (), num_records, None)
    return EvaluationData(subset, ReadOptions(threads=2), ModelInputs((1, 1), IMAGE), batch_size)


def logits_model(num_classes: int) -> keras.Model:
    return keras.Sequential([keras.Input((num_classes,), name="image"), keras.layers.Identity()])


def evaluator_of(model: keras.Model, data: EvaluationData, limit: int = 0) -> Evaluator:
    broken = BrokenRecords(limit, data.subset.dataset)
    return Evaluator(model, tf.distribute.get_strategy(), data, broken)


def measured(model: keras.Model, data: EvaluationData, classes: tuple[str, ...] = CLASSES) -> Any:
    strategy = tf.distribute.get_strategy()
    stream = EvaluationStream(data, strategy, BrokenRecords(0, data.subset.dataset))
    return measure(model, strategy, stream, CrossEntropy(len(classes)), classes)


def feed(monkeypatch: pytest.MonkeyPatch, logits: np.ndarray, label: Any, weight: Any = None):
    """Makes the reader give these examples, filled up as the reader does."""

    def batches(data: EvaluationData, *_: Any) -> Any:
        count, batch_size = len(logits), data.batch_size
        size = -(-count // batch_size) * batch_size
        fill = [(0, size - count)]
        weights = np.ones(count) if weight is None else np.asarray(weight)
        arrays = {
            "inputs": {"image": np.pad(logits, [*fill, (0, 0)]).astype(np.float32)},
            "label": np.pad(np.asarray(label), fill),
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


@pytest.mark.parametrize("num_classes", [2, 5, 9])
def test_figures_of_classes_equal_a_float64_reference(num_classes):
    rng = np.random.default_rng(num_classes)
    # Rounded, so that some are equal: a tie is decided one way only.
    logits = np.round(rng.normal(0, 2, (45, num_classes)), 1).astype(np.float32)
    label = rng.integers(0, num_classes, 45)
    found = evaluation_of(ClassEvaluation, label, logits, *[f"c{i}" for i in range(num_classes)])
    loss, accuracy, top5 = reference(logits, label)
    figures = found.figures()
    assert figures["loss"] == pytest.approx(loss, rel=1e-6)
    assert figures["accuracy"] == accuracy
    np.testing.assert_equal(figures["top5_accuracy"], top5 if num_classes > 5 else np.nan)
    np.testing.assert_allclose(np.exp(-found.losses), found.probability_of_label, rtol=1e-5)


def test_a_second_pass_traces_nothing_and_sees_new_weights(monkeypatch):
    feed(monkeypatch, np.eye(3) * 2, [0, 1, 2])
    scale = keras.layers.Dense(3, use_bias=False, kernel_initializer="identity")
    model = keras.Sequential([keras.Input((3,), name="image"), scale])
    model.compile(loss=CrossEntropy(3), weighted_metrics=[Accuracy()])
    evaluator = evaluator_of(model, data_of(CLASSES, 3, 2))
    assert evaluator.run()["accuracy"] == 1.0
    scale.kernel.assign(-scale.kernel)
    assert evaluator.run()["accuracy"] == 0.0
    assert [one.experimental_get_tracing_count() for one in vars(evaluator)["_steps"]] == [1, 0]


def test_classes_are_matched_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, np.eye(4)[[3, 0, 3]] * 5, [0, 1, 1])
    data, classes = data_of(("dog", "cat"), 3, 2), ("cat", "cow", "hen", "dog")
    found = measured(logits_model(4), data, classes)
    assert found.figures()["accuracy"] == pytest.approx(2 / 3)
    assert (found.names, found.label.tolist()) == (classes, [3, 0, 0])
    for data_classes, remedy in ((("cat", "emu"), " classes"), (("0", "1"), "class_names")):
        with refused("data", data_classes[1], remedy):
            class_ids(data_of(data_classes, 0, 1).subset, ("cat", "dog"))


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
    evaluator = evaluator_of(model, data_of(CLASSES, 10, 3), 6)
    expected = reference(logits[kept := np.flatnonzero(weight)], label[kept])
    for _ in range(2):
        found = evaluator.run()
        assert found == {"loss": pytest.approx(expected[0]), "accuracy": pytest.approx(expected[1])}


@pytest.mark.parametrize("own_step", [False, True], ids=["logits", "own step"])
def test_too_little_memory_is_no_broken_record(monkeypatch, own_step):
    feed(monkeypatch, np.eye(3), [0, 1, 2])
    model, data = logits_model(3), data_of(CLASSES, 3, 2)
    model.compile("sgd", "mse")

    def exhausted(*_: Any, **__: Any) -> Any:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    # A GPU may lack memory for the step, or for the batch that is copied ahead.
    for module, name in ((tf.distribute.Strategy, "run"), (stream, "next")):
        with monkeypatch.context() as patch, refused("batch_size", "2", "memory"):
            patch.setattr(module, name, exhausted, raising=False)
            evaluator_of(model, data).run() if own_step else measured(model, data)
