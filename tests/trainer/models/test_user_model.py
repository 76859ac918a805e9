import inspect
import sys

import keras
import numpy as np
import pytest

import trainer
from tests.support.errors import refused
from trainer.config import ReadConfig, RunConfig
from trainer.dataset.spec import ImageSpec, ModelInputs
from trainer.models import model, strategy, user_model
from trainer.training.several_hosts import described

RGB = ImageSpec((8, 8), False, 3, (0.5, 0.4, 0.3), (0.25, 0.2, 0.1))
PICTURE = ModelInputs((8, 8), RGB)


@pytest.mark.parametrize("name", ["dense", "plain", "sequential", "whole_model"])
def test_function_may_return_logits_or_a_model(name):
    network = model.build_model(f"tests.support.tiny_models:{name}", PICTURE, 3)
    assert network(np.zeros((2, 8, 8, 3), np.uint8)).shape == (2, 3) and network.name == name
    assert {v.dtype for v in network.trainable_variables} == {"float32"}
    for bounded in ("probabilities", "probabilities_in_a_model"):  # get no unit
        with refused("model", bounded, "softmax"):
            model.build_model(f"tests.support.tiny_models:{bounded}", PICTURE, 3, "values")


def test_random_layers_differ_between_replicas_and_the_rest_is_as_it_was_made(tmp_path):
    network = model.build_model("tests.support.tiny_models:dense", PICTURE, 3)
    (norm,) = [layer for layer in network.layers if hasattr(layer, "moving_variance")]
    assert not norm.synchronized
    strategy.separate_replicas(network)
    network.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    np.testing.assert_array_equal(again(pixels), network(pixels))


THEIRS = """
import keras
from trainer import layers
from .layers import SIZE

def build(inputs, num_classes):
    assert layers.SIZE == SIZE
    return keras.layers.Dense(num_classes)(keras.layers.Flatten()(inputs["image"]))
"""


@pytest.fixture
def their_trainer(tmp_path, monkeypatch):
    """The working directory, with a package `trainer` of the user's own."""
    folder = tmp_path / "trainer"
    folder.mkdir()
    (folder / "model.py").write_text(THEIRS)
    (folder / "layers.py").write_text("SIZE = 3")
    (folder / "config.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainer, "__path__", [*trainer.__path__])
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("model", "layers"):
        monkeypatch.setitem(sys.modules, f"trainer.{name}", None)
        monkeypatch.delitem(sys.modules, f"trainer.{name}")
        monkeypatch.setattr(trainer, name, None, raising=False)
        monkeypatch.delattr(trainer, name)
    return folder


def test_a_model_of_a_package_that_is_called_as_ours_is_found_or_named(their_trainer):
    found = user_model.load_function("trainer.model:build")
    assert inspect.getfile(found) == str(their_trainer / "model.py")
    hashed = described(RunConfig(ReadConfig("data"), model="trainer.model:build"))
    assert "The module of model='trainer.model:build' (SHA-256)" in hashed
    with refused("model", "'trainer.config:build'"):
        user_model.load_function("trainer.config:build")


def test_error_of_a_failing_function_names_its_inputs():
    def build(inputs, num_classes):
        raise KeyError("boxes")

    parts = {"boxes": keras.Input((None, 4)), "labels": keras.Input((None,), dtype="int64")}
    inputs = {"image": keras.Input((8, 8, 3)), "bounding_boxes": parts}
    words = ("'image': 'float32 (None, 8, 8, 3)'", "'labels': 'int64 (None, None)'")
    with refused("model", *words):
        user_model.call_function("boxes:build", build, inputs, 2, "class")
