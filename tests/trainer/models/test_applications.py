import importlib
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from keras.src.legacy.saving import legacy_h5_format

from tests.support.errors import refused
from trainer.dataset.spec import ImageSpec, ModelInputs
from trainer.models import model
from trainer.models.pretrained import IMAGENET, application_names, load_weights, preprocess

RGB = ImageSpec((32, 32), False, 3, (0.5, 0.4, 0.3), (0.25, 0.2, 0.1))
PIXELS = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
# Those whose `preprocess_input` does nothing, as they scale pixels themselves: the smallest of
# each kind, and the others of its kind.
SCALES_INSIDE = {
    "ConvNeXtTiny": {"ConvNeXtSmall", "ConvNeXtBase", "ConvNeXtLarge", "ConvNeXtXLarge"},
    "EfficientNetV2B0": {f"EfficientNetV2B{i}" for i in (1, 2, 3)},
    "EfficientNetV2S": {"EfficientNetV2M", "EfficientNetV2L"},
    "MobileNetV3Small": {"MobileNetV3Large"},
}
EFFICIENT_NETS = {f"EfficientNetB{i}" for i in range(8)}
OTHERS = sorted({*application_names()} - {*SCALES_INSIDE}.union(*SCALES_INSIDE.values()))


def _ours(name, weights=None):
    pixels = keras.Input((32, 32, 3), dtype="uint8")
    return np.asarray(keras.Model(pixels, preprocess(name, pixels, weights))(PIXELS))


def _torch(pixels):
    published = keras.applications.imagenet_utils.preprocess_input
    return np.asarray(published(pixels.astype(np.float32), mode="torch"))


def test_every_architecture_of_keras_is_known():
    assert application_names() == [n for n in dir(keras.applications) if n[0].isupper()]


@pytest.mark.parametrize("name", application_names())
def test_preprocess_matches_the_published_function(name):
    module = getattr(keras.applications, name).__module__
    expected = importlib.import_module(module).preprocess_input(PIXELS.astype(np.float32))
    np.testing.assert_allclose(_ours(name, IMAGENET), expected, atol=1e-4)
    if name in OTHERS:
        # The function of EfficientNet does nothing: its file of weights has these statistics.
        expected = _torch(PIXELS) if name in EFFICIENT_NETS else expected
        assert np.abs(expected - PIXELS).max() > 1  # else it does nothing, and says nothing
        np.testing.assert_allclose(_ours(name), expected, atol=1e-4)


# Where Keras looks for the weights below the head; of the last it checks no hash.
PUBLISHED = {
    "ConvNeXtTiny": "convnext_tiny_notop.h5",
    "EfficientNetV2B0": "efficientnetv2-b0_notop.h5",
    "ResNet50": "resnet50_weights_tf_dim_ordering_tf_kernels_notop.h5",
    "EfficientNetB0": "efficientnetb0_notop.h5",
    "MobileNetV3Small": "weights_mobilenet_v3_small_224_1.0_float_no_top_v2.h5",
    "MobileNet": "mobilenet_1_0_224_tf_no_top.h5",
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Keras's own, and no network."""
    monkeypatch.setattr("keras.src.backend.config._KERAS_DIR", str(tmp_path))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    # An opener that was made before does not ask again which proxies there are.
    monkeypatch.setattr("urllib.request._opener", None)
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def _publish(name, path):
    """Writes random weights below the head, in the kind of file that Keras publishes."""
    build = getattr(keras.applications, name)
    donor = build(weights=None, include_top=False, input_shape=(32, 32, 3))
    for layer in donor.layers:
        if isinstance(layer, keras.layers.Normalization) and layer.weights:
            layer.set_weights([np.array([0.1, 0.6, 0.3]), np.array([0.3, 0.1, 0.2]), np.array(0)])
    with h5py.File(path, "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, donor)


# Two architectures stand for the others, which `make test-long` tries.
_LONG = [pytest.param(name, marks=pytest.mark.long) for name in [*PUBLISHED][:4]]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*_LONG, *[*PUBLISHED][4:]])
@pytest.mark.one_row
def test_published_weights_see_what_they_see_in_the_published_model(name, cache, monkeypatch):
    _publish(name, cache / PUBLISHED[name])
    if name != "MobileNet":  # nobody can draw numbers of the published hash
        monkeypatch.setattr("keras.src.utils.file_utils.validate_file", lambda *a, **k: True)
    precision = "bfloat16" if name == "MobileNetV3Small" else "float32"
    asked: Any = {"weights": IMAGENET, "precision": precision}
    network = model.build_model(name, ModelInputs((32, 32), RGB), model.Head(2), **asked)
    features = keras.Model(network.input, network.get_layer("predictions").input)
    build = getattr(keras.applications, name)
    shape = {"include_top": False, "pooling": "avg", "input_shape": (32, 32, 3)}
    published = build(weights=IMAGENET, **shape)
    preprocess_input = importlib.import_module(build.__module__).preprocess_input

    def away(pixels):
        expected = np.asarray(published(preprocess_input(pixels.astype(np.float32))))
        found = np.asarray(features(PIXELS)).astype(np.float32)
        return float(np.abs(found - expected).max() / np.abs(expected).max())

    tolerance = 1e-3 if precision == "float32" else 0.1
    assert away(PIXELS) < tolerance < away(255 - PIXELS)
    (body,) = [layer for layer in network.layers if isinstance(layer, keras.Model)]
    if precision != "float32":
        scaling = [x for x in body.layers if isinstance(x, keras.layers.Rescaling)]
        assert [layer.compute_dtype for layer in scaling] == ["float32"]
    assert body.layers[-1].compute_dtype == precision


def test_unavailable_weights_give_a_sentence_with_file_and_folder(cache):
    def is_told(name, *words, size=(32, 32), argument="weights"):
        with refused(argument, *words) as caught:
            model.build_model(name, ModelInputs(size, RGB), model.Head(2), weights=IMAGENET)
        assert "\n" not in str(caught.value)

    path = cache / PUBLISHED["MobileNet"]
    is_told("MobileNet", "[Errno 111] Connection refused", f"/{path.name}: ", "KERAS_HOME")
    path.write_bytes(b"half a download")
    is_told("MobileNet", "delete a damaged file")
    # A file of another hash is none to Keras, which asks for it again, and takes it away.
    path = cache / PUBLISHED["MobileNetV3Small"]
    path.write_bytes(b"another one")
    is_told("MobileNetV3Small", path.name)
    assert not path.exists()
    is_told("MobileNet", "MobileNet", "16x16 px", size=(16, 16), argument="model")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", SCALES_INSIDE)
def test_preprocess_matches_the_layers_of_the_architecture(name):
    application = getattr(keras.applications, name)(weights=None, input_shape=(32, 32, 3))
    scaling = (keras.layers.Rescaling, keras.layers.Normalization)
    last = [layer for layer in application.layers if isinstance(layer, scaling)][-1]
    inside = keras.Model(application.input, last.output)
    np.testing.assert_allclose(_ours(name), inside(PIXELS.astype(np.float32)), atol=1e-4)
    for other in SCALES_INSIDE[name]:
        np.testing.assert_array_equal(_ours(other), _ours(name))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [".keras", pytest.param(".h5", marks=pytest.mark.long)])
@pytest.mark.long
def test_weights_of_efficientnet_give_its_logits(tmp_path, kind):
    """Whatever normalisation a file of weights brings, pixels are scaled once."""
    path = str(tmp_path / f"published{kind}")
    head: dict[str, Any] = {"classes": 4, "classifier_activation": None}
    donor = keras.applications.EfficientNetB0(weights=None, input_shape=(32, 32, 3), **head)
    expected = donor(255 * _torch(PIXELS))  # it divides by 255, and normalises by 0 and 1
    (norm,) = [x for x in donor.layers if isinstance(x, keras.layers.Normalization)]
    mean, variance = norm.weights[:2]
    mean.assign([0.485, 0.456, 0.406])
    variance.assign([0.229, 0.224, 0.225])
    if kind == ".h5":
        legacy_h5_format.save_model_to_hdf5(donor, path, include_optimizer=False)
    else:
        donor.save(path)
    network = model.build_model("EfficientNetB0", ModelInputs((32, 32), RGB), model.Head(4))
    assert "left random" not in load_weights(network, path)
    np.testing.assert_allclose(network(PIXELS), expected, atol=1e-4)
    network.save(tmp_path / "model.keras")  # with its preprocessing
    again = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_allclose(again(PIXELS), network(PIXELS), atol=1e-5)


def test_grey_pictures_and_other_models_have_the_datasets_numbers_and_no_published_weights():
    grey = ImageSpec((32, 32), False, 1, (0.5,), (0.25,))
    for name, image in (("cnn", RGB), ("MobileNet", grey)):
        inputs = ModelInputs((32, 32), image)
        names = [layer.name for layer in model.build_model(name, inputs, model.Head(2)).layers]
        assert "normalise" in names and "preprocess" not in names
        with refused("weights", name, f" {image.channels} channel"):
            model.build_model(name, inputs, model.Head(2), weights=IMAGENET)
