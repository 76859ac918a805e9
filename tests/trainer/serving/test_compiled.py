from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.errors import refused
from tests.support.served_models import SIZE, card, values_card
from trainer.serving.compiled import as_ours

CLASS, LABELS, VALUES = card(), card(target={"target": "labels"}), values_card("box", 2)


def compiled(loss: Any, activation: str | None = None, outputs: int = 2) -> keras.Model:
    keras.utils.set_random_seed(1)
    image = keras.Input((*SIZE, 3), dtype="uint8", name="image")
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(image))
    model = keras.Model(image, keras.layers.Dense(outputs, activation=activation)(x))
    model.compile("sgd", loss)
    return model


@pytest.mark.parametrize(
    ("of", "loss", "activation", "inverse"),
    [
        (CLASS, "sparse_categorical_crossentropy", "softmax", tf.nn.softmax),
        (LABELS, "binary_crossentropy", "sigmoid", tf.sigmoid),
        (LABELS, keras.losses.BinaryCrossentropy(from_logits=True), None, tf.identity),
        (LABELS, keras.losses.BinaryFocalCrossentropy(), "sigmoid", tf.sigmoid),
        (VALUES, "huber", None, tf.identity),
        (VALUES, "mse", "sigmoid", tf.identity),
    ],
)
def test_outputs_become_logits_or_stay_values(of, loss, activation, inverse):
    model = compiled(loss, activation)
    pictures = np.random.default_rng(0).integers(0, 256, (3, *SIZE, 3), np.uint8)
    found = inverse(as_ours(model, of, "m.keras")(pictures))
    np.testing.assert_allclose(found, model(pictures), atol=1e-5)


@pytest.mark.parametrize(
    ("of", "loss", "outputs"),
    [(LABELS, "mse", 2), (CLASS, "binary_crossentropy", 2), (VALUES, "mse", 3)],
)
def test_a_model_with_an_unsuitable_loss_or_output_is_refused(of, loss, outputs):
    with refused("model_path", "'m.keras'", "2 outputs"):
        as_ours(compiled(loss, None, outputs), of, "m.keras")
