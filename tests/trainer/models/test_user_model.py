"""User models, `--model module:function`: imported, called and checked."""

from __future__ import annotations

import pathlib
import sys
import types
from typing import Any

import numpy as np
import pytest

from imageshards.errors import UserError
from trainer.config import OptimizerConfig
from trainer.dataset.spec import FeatureSpec, ImageSpec, ModelInputs

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from trainer.models import model, strategy, user_model  # noqa: E402

RGB = ImageSpec((8, 8), False, 3, (0.5, 0.4, 0.3), (0.25, 0.2, 0.1))
PICTURE = ModelInputs((8, 8), RGB)
MODELS = "tests.support.tiny_models"
# What a function that fails had been given.
GIVEN = r"; its inputs are image float32 \[batch, 8, 8, 3\], my_age float32 \[batch\]: "
WITH_AGE = ModelInputs((8, 8), RGB, {"my/age": FeatureSpec("float32", ())})


@pytest.mark.parametrize("name", ["dense", "plain", "sequential", "whole_model"])
def test_logits_or_a_model_are_taken(name: str) -> None:
    network = model.build_model(f"tests.support.tiny_models:{name}", PICTURE, 3)
    logits = network(np.zeros((2, 8, 8, 3), np.uint8))
    assert logits.shape == (2, 3) and network.name == name
    assert [v.dtype for v in network.trainable_variables] == ["float32"] * len(
        network.trainable_variables
    )


def test_a_model_of_several_inputs_is_called_by_their_names() -> None:
    network = model.build_model("tests.support.tiny_models:whole_model", WITH_AGE, 3)
    given = {"image": np.zeros((2, 8, 8, 3), np.uint8), "my_age": np.ones(2, np.float32)}
    assert network(given).shape == (2, 3)


def test_random_layers_differ_between_replicas_and_the_rest_is_as_it_was_made(
    tmp_path: pathlib.Path,
) -> None:
    network = model.build_model("tests.support.tiny_models:dense", PICTURE, 3)
    (norm,) = [layer for layer in network.layers if hasattr(layer, "moving_variance")]
    assert not norm.synchronized
    (dropout,) = [layer for layer in network.layers if hasattr(layer, "seed_generator")]
    assert isinstance(dropout.seed_generator, strategy.ReplicaSeeds)
    network.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    np.testing.assert_array_equal(again(pixels), network(pixels))


def test_ragged_sequences_reach_the_model_and_train_it() -> None:
    tokens = FeatureSpec("int64", None)
    inputs = ModelInputs((8, 8), RGB, {"tokens": tokens}, "ragged")
    network = model.build_model("tests.support.tiny_models:ragged_mean", inputs, 3)
    model.compile_model(network, OptimizerConfig(), 2, 5)
    given = {
        "image": tf.zeros((2, 8, 8, 3), tf.uint8),
        "tokens": tf.ragged.constant([[1, 2, 3], [4]], dtype=tf.int64),
    }
    before = network(given).numpy()
    shorter = given | {"tokens": tf.ragged.constant([[1, 2, 3], [4, 4]], dtype=tf.int64)}
    np.testing.assert_allclose(network(shorter), before, atol=1e-6)
    tf.function(network.train_step)((given, tf.constant([0, 1]), tf.ones(2)))
    assert np.abs(network(given).numpy() - before).max() > 1e-4


def test_a_preset_of_kerashub_gets_its_own_pixels_and_a_new_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in with the interface of KerasHub 0.32, which no extra installs."""

    def from_preset(preset: str, num_classes: int, activation: None) -> Any:
        pixels = keras.Input((None, None, 3))
        head = keras.layers.Dense(num_classes, activation, kernel_initializer="ones")
        task = keras.Model(pixels, head(keras.layers.GlobalAveragePooling2D()(pixels)), name="task")
        scaling = types.SimpleNamespace(scale=[1.0, 2.0, 3.0], offset=(0.0, 0.0, -4.0))
        task.preprocessor = types.SimpleNamespace(image_converter=scaling)
        return task

    hub = types.ModuleType("keras_hub")
    classifier = types.SimpleNamespace(from_preset=from_preset)
    monkeypatch.setattr(hub, "models", types.SimpleNamespace(ImageClassifier=classifier), False)
    with pytest.raises(UserError, match="KerasHub cannot be imported .*pip install keras-hub"):
        model.resolve_name("keras_hub:tiny")
    monkeypatch.setitem(sys.modules, "keras_hub", hub)
    assert model.resolve_name("keras_hub:tiny") == "keras_hub:tiny"
    network = model.build_model("keras_hub:/a/tiny", PICTURE, 2)
    assert network.name == "a_tiny"  # one that TensorFlow takes for a scope
    ones = np.ones((1, 8, 8, 3), np.uint8)
    np.testing.assert_allclose(network(ones), [[1 + 2 + 3 - 4] * 2])
    with pytest.raises(UserError, match="--inputs received my_age .* --model keras_hub:tiny makes"):
        model.build_model("keras_hub:tiny", WITH_AGE, 2)


MISTAKES = {
    f"{MODELS}:probabilities": "probabilities .* expected logits",
    f"{MODELS}:probabilities_in_a_model": "probabilities .* expected logits",
    f"{MODELS}:one_too_many": r"the shape \[batch, 4\]; expected \[batch, 3\]",
    f"{MODELS}:nothing": "returned NoneType; expected logits",
    f"{MODELS}:of_another_input": rf"models\.py:\d+ \(KeyError: 'tokens'\){GIVEN}",
    f"{MODELS}:of_wrong_shapes": rf"models\.py:\d+ \(ValueError: .*expected min_ndim=4.*{GIVEN}",
    f"{MODELS}:of_another_picture": rf"models\.py:\d+ \(ValueError: .*{GIVEN}",
    f"{MODELS}:dens": f"has no function 'dens'; did you mean {MODELS}:dense",
    f"{MODELS}:NOT_A_FUNCTION": "has no function 'NOT_A_FUNCTION'; it defines",
    f"{MODELS}:too_few_arguments": r"takes \(inputs.*expected \(inputs, num_cla",
    "tests.no_such_module:build": "no module 'tests.no_such_module'; expected one in",
    "no_such_package.models:build": "no module 'no_such_package'",
    "tests/support/tiny_models.py:dense": "expected module:function, for example",
    ":build": "expected module:function",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(name: str) -> None:
    inputs = WITH_AGE if ":of_" in name else PICTURE
    with pytest.raises(UserError, match=f"--model received '{name}'.*{MISTAKES[name]}") as caught:
        model.build_model(name, inputs, 3)
    assert "\n" not in str(caught.value)


def test_a_module_of_the_working_directory_is_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "h4_good.py").write_text("def build(inputs, num_classes): return 3\n")
    assert model.resolve_name("h4_good:build") == "h4_good:build"
    assert user_model.load_function("h4_good:build")({}, 2) == 3
    for module, text, reason in [
        ("h4_missing", "import no_such_thing\n", "h4_missing imports 'no_such_thing', which is"),
        ("h4_name", "from json import no_such_name\n", "cannot be imported .*no_such_name"),
        ("h4_syntax", "def build(:\n", r"cannot be imported .*h4_syntax\.py, line 1"),
    ]:
        (tmp_path / f"{module}.py").write_text(text)
        with pytest.raises(UserError, match=reason):
            user_model.load_function(f"{module}:build")
