import csv
import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import imageshards as ims
from tests.support.errors import refused
from tests.support.reader_sets import make_set
from trainer import predict
from trainer.serving.model_file import read_card

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> ims.Data:
    folder = tmp_path_factory.mktemp("set")
    make_set(folder, [[0, 1, 2, 0, 1], [2, 0, 1, 2, 2, 0]])
    return ims.open(folder)


def fitted(train: ims.TrainingData, loss: Any, activation: str | None) -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(4, 3, strides=2, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(train.num_outputs, activation=activation),
    ]
    model = keras.Sequential([keras.Input(train.image_shape), *layers])
    model.compile(keras.optimizers.Adam(0.01), loss)
    ims.fit(model, train, epochs=2, verbose=0)
    return model


def answers(model: keras.Model, val: ims.EvaluationData) -> Any:
    """What the model itself says of each record, in the order of the records."""
    found = {
        int(record): row
        for batch in val.batches().as_numpy_iterator()
        for record, row in zip(
            batch["record"], model.predict(batch["inputs"]["image"], verbose=0), strict=True
        )
        if record >= 0
    }
    return np.stack([found[record] for record in sorted(found)])


@pytest.mark.parametrize(
    ("target", "loss", "activation", "answer", "names"),
    [
        ("label", "sparse_categorical_crossentropy", "softmax", tf.identity, None),
        ("label", CROSS_ENTROPY(from_logits=True), None, tf.nn.softmax, None),
        ("tokens", "binary_crossentropy", "sigmoid", tf.identity, None),
        ("box", "mse", None, tf.identity, [f"box[{i}]" for i in range(4)]),
    ],
)
@pytest.mark.one_row
def test_a_saved_model_of_fit_is_taken_by_the_commands(
    opened, tmp_path, target, loss, activation, answer, names
):
    how: dict[str, Any] = {"batch_size": 4, "target": target}
    train, val = opened.train(**how, seed=1), opened.evaluation(**how, split="train")
    model = fitted(train, loss, activation)
    weights = model.get_weights()
    assert ims.save(model, train, tmp_path / "run") == str(tmp_path / "run" / "model.keras")
    np.testing.assert_equal(model.get_weights(), weights)
    assert model.compiled and model.optimizer is not None

    output = tmp_path / "rows.csv"
    data = ["--data", opened.dataset.data, "--split", "train", "--output", str(output)]
    assert predict.main(["--model_path", str(tmp_path / "run"), *data]) == 0
    with output.open(newline="") as file:
        rows = [
            [float(row[name]) for name in names or train.classes] for row in csv.DictReader(file)
        ]
    expected = answer(answers(model, val)).numpy()
    np.testing.assert_allclose(rows, expected, atol=1e-5)

    figures = ims.evaluate(tmp_path / "run", opened, split="train")
    own = ims.evaluate(model, val)
    assert (figures["num_examples"], figures["step"]) == (11, 5)
    assert figures["loss"] == pytest.approx(own["loss"], abs=1e-5)
    served = tf.saved_model.load(ims.export(tmp_path / "run", tmp_path / "served"))
    assert "serving_default" in served.signatures


def test_a_saved_model_prepares_photos_as_its_evaluation(opened, tmp_path):
    train, val = (
        opened.train(batch_size=6, image_size=6),
        opened.evaluation(batch_size=6, image_size=6, eval_crop=0.5, split="train"),
    )
    model = fitted(train, CROSS_ENTROPY(from_logits=True), None)
    file = ims.save(model, val, tmp_path / "mine.keras")
    inputs = read_card(file).inputs
    assert (inputs.size, inputs.eval_crop) == ((6, 6), 0.5)
    with refused("path", "which exists"):
        ims.save(model, val, file)
    ims.save(model, train, file, overwrite=True)
    assert read_card(file).inputs.eval_crop == 1


@pytest.mark.long
def test_a_model_that_the_commands_cannot_use_is_refused(opened, tmp_path):
    train = opened.train(batch_size=6)
    model = fitted(train, CROSS_ENTROPY(from_logits=True), None)
    (tmp_path / "best.keras").touch()
    scaled = train.map(lambda x, y: (tf.cast(x, tf.float32) / 255, y))
    wrong = keras.models.clone_model(model)
    wrong.compile("sgd", "mse")
    calls: list[tuple[str, str, Any, Any, Any]] = [
        ("model", "not compiled", keras.Sequential(), train, "a"),
        ("model_path", "does not find a class", wrong, train, "a"),
        ("data", "Data", model, opened, "a"),
        ("data", "the target nothing", model, opened.train(batch_size=6, target=None), "a"),
        ("data", "one target", model, opened.train(batch_size=6, target=["label", "box"]), "a"),
        ("data", "changes the inputs", model, scaled, "a"),
        ("path", "best.keras", model, train, "."),
    ]
    for argument, word, network, data, place in calls:
        with refused(argument, word):
            ims.save(network, data, tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["best.keras"]
    one_hot = train.map(lambda x, y: (x, tf.one_hot(y, 3)))
    assert pathlib.Path(ims.save(model, one_hot, tmp_path / "b")).exists()
