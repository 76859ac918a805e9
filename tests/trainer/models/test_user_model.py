import keras
import numpy as np
import pytest

from tests.support.errors import refused
from trainer.dataset.spec import ImageSpec, ModelInputs
from trainer.models import model, strategy, user_model

RGB = ImageSpec((8, 8), False, 3, (0.5, 0.4, 0.3), (0.25, 0.2, 0.1))
PICTURE = ModelInputs((8, 8), RGB)


@pytest.mark.parametrize("name", ["dense", "plain", "sequential", "whole_model"])
def test_function_may_return_logits_or_a_model(name):
    network = model.build_model(f"tests.support.tiny_models:{name}", PICTURE, model.Head(3))
    assert network(np.zeros((2, 8, 8, 3), np.uint8)).shape == (2, 3) and network.name == name
    assert {v.dtype for v in network.trainable_variables} == {"float32"}
    for bounded in ("probabilities", "probabilities_in_a_model"):  # get no unit
        with refused("model", bounded, "softmax"):
            model.build_model(
                f"tests.support.tiny_models:{bounded}", PICTURE, model.Head(3, "values")
            )


def test_random_layers_differ_between_replicas_and_the_rest_is_as_it_was_made(tmp_path):
    network = model.build_model("tests.support.tiny_models:dense", PICTURE, model.Head(3))
    (norm,) = [layer for layer in network.layers if hasattr(layer, "moving_variance")]
    assert not norm.synchronized
    strategy.separate_replicas(network)
    network.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    np.testing.assert_array_equal(again(pixels), network(pixels))


def test_error_of_a_failing_function_names_its_inputs():
    def build(inputs, num_classes):
        raise KeyError("boxes")

    parts = {"boxes": keras.Input((None, 4)), "labels": keras.Input((None,), dtype="int64")}
    inputs = {"image": keras.Input((8, 8, 3)), "bounding_boxes": parts}
    words = ("'image': 'float32 (None, 8, 8, 3)'", "'labels': 'int64 (None, None)'")
    with refused("model", *words):
        user_model.call_function("boxes:build", build, inputs, 2, "class")
