import dataclasses
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import replica_run
from tests.support.errors import refused
from trainer.config import OptimizerConfig
from trainer.dataset.spec import FeatureSpec, ImageSpec, MeanStd, ModelCard, ModelInputs
from trainer.models import model
from trainer.models.pretrained import load_weights
from trainer.serving.model_file import save_model

RGB = ImageSpec((32, 32), False, 3, (0.5, 0.4, 0.3), (0.25, 0.2, 0.1))
GREY = ImageSpec((32, 32), False, 1, (0.5,), (0.0,))
PRICES = MeanStd((340_000.0, -2.0), (90_000.0, 1e-3))
FEATURES = {
    "age": FeatureSpec("float32", ()),
    "meta/box": FeatureSpec("float32", (2, 2)),
    "kind": FeatureSpec("int64", ()),
    "tokens": FeatureSpec("int64", None),
}


def _build(name, size, num_classes, image):
    return model.build_model(name, ModelInputs(size, image), model.Head(num_classes))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ResNet5", ("(near: ResNet50, ",)),
        ("qqqq", ("keras.applications, ",)),
        ("InceptionV3", ("32x32 px", "75")),
    ],
)
def test_names_are_found_whatever_their_case_and_others_are_refused(name, words):
    assert model.resolve_name("CNN") == "cnn"
    assert model.resolve_name("mobilenet_v2") == "MobileNetV2"
    with refused("model", name, *words):
        _build(model.resolve_name(name), (32, 32), 3, RGB)


@pytest.mark.parametrize(("size", "image"), [((1, 1), RGB), ((8, 200), GREY)])
def test_the_cnn_takes_any_size_and_grey(size, image):
    network = _build("cnn", size, 5, image)
    logits = network(np.zeros((2, *size, image.channels), np.uint8))
    assert logits.shape == (2, 5) and logits.dtype == "float32"
    assert network.name == "cnn"


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_pixels_are_normalised_by_the_manifests_numbers(precision):
    before = keras.config.dtype_policy()
    network = model.build_model("cnn", ModelInputs((4, 4), RGB), model.Head(2), precision=precision)
    assert keras.config.dtype_policy() == before
    upto = keras.Model(network.input, network.get_layer("normalise").output)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3), np.uint8)
    expected = (pixels / 255 - np.array(RGB.mean)) / np.array(RGB.std)
    np.testing.assert_allclose(upto(pixels), expected, rtol=1e-4, atol=1e-5)
    assert network.trainable_variables[0].dtype == "float32"
    dense = next(layer for layer in network.layers if isinstance(layer, keras.layers.Dense))
    assert dense.compute_dtype == precision
    assert network(pixels).dtype == "float32"
    # A constant channel is not amplified.
    network = _build("cnn", (4, 4), 2, GREY)
    upto = keras.Model(network.input, network.get_layer("normalise").output)
    assert np.abs(upto(np.full((1, 4, 4, 1), 128, np.uint8))).max() < 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("name", "sync"), [("MobileNetV2", True), ("EfficientNetB0", False)])
def test_an_architecture_normalises_over_the_global_batch_where_asked(name, sync):
    network = model.build_model(
        name, ModelInputs((32, 32), RGB), model.Head(4), sync_batchnorm=sync
    )
    assert network(np.zeros((1, 32, 32, 3), np.uint8)).shape == (1, 4)
    layers = network.get_layer(index=-2).layers
    norms = [x for x in layers if isinstance(x, keras.layers.BatchNormalization)]
    assert norms and all(norm.synchronized == sync for norm in norms)


def test_a_model_without_batch_normalisation_has_none_to_synchronise():
    with refused("sync_batchnorm", "VGG16"):
        model.build_model("VGG16", ModelInputs((32, 32), RGB), model.Head(4), sync_batchnorm=True)


@pytest.mark.parametrize("length", [None, 7])
def test_features_become_inputs_of_the_records_shape(length):
    tensors = model.input_tensors(ModelInputs((32, 32), RGB, FEATURES, length))
    shapes = {name: tuple(tensor.shape)[1:] for name, tensor in tensors.items()}
    scalars: dict[str, tuple[int | None, ...]] = {"age": (), "kind": ()}
    assert shapes == scalars | {"image": (32, 32, 3), "meta_box": (2, 2), "tokens": (length,)}
    assert tensors["tokens"].dtype == "int64" and tensors["image"].dtype == "uint8"


def test_a_model_of_pictures_refuses_other_inputs_and_a_single_class():
    with refused("classes", "one class", "two classes"):
        model.compile_model(_build("cnn", (8, 8), 1, RGB), model.Head(1), OptimizerConfig(), 2, 5)
    inputs = ModelInputs((32, 32), RGB, {"age": FEATURES["age"]})
    with refused("inputs", "age", "model='cnn'", "module:function"):
        model.build_model("cnn", inputs, model.Head(2))


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        (".weights.h5", {}),
        pytest.param(".keras", {"target": "values", "mean_std": PRICES}, id="values"),
    ],
)
def test_weights_of_another_head_leave_the_head_random(tmp_path, kind, head, capsys):
    path = str(tmp_path / f"before{kind}")
    donor = _build("cnn", (32, 32), 5, RGB)
    donor.save(path) if kind == ".keras" else donor.save_weights(path)
    network = model.build_model("cnn", ModelInputs((32, 32), RGB), model.Head(5), weights=path)
    for ours, theirs in zip(network.weights, donor.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert ": 5 of 5 layers\n" in capsys.readouterr().out
    network = model.build_model(
        "cnn", ModelInputs((48, 48), RGB), model.Head(2, **head), weights=path
    )
    for ours, theirs in zip(network.weights[:-2], donor.weights[:-2], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert np.isfinite(network.weights[-2].numpy()).all()
    assert re.search(r": 4 of 5 layers; left random: dense\w*\n", capsys.readouterr().out)


def test_weights_for_other_classes_of_the_same_number_leave_the_head_random(tmp_path, capsys):
    path, inputs = str(tmp_path / "cats.keras"), ModelInputs((32, 32), RGB)
    donor = _build("cnn", (32, 32), 2, RGB)
    save_model(donor, path, ModelCard(("cat", "dog"), inputs))
    for names, layers in [(("cat", "dog"), "5 of 5 layers"), (("dog", "fox"), "4 of 5 layers")]:
        network = model.build_model("cnn", inputs, model.Head(2, names=names), weights=path)
        equal = [np.array_equal(*pair) for pair in zip(network.weights, donor.weights, strict=True)]
        assert all(equal[:-2]) and equal[-2] == (names == ("cat", "dog"))
        assert layers in capsys.readouterr().out


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_values_get_their_unit_by_a_last_layer_that_the_file_keeps(tmp_path, precision):
    inputs = ModelInputs((32, 32), RGB)
    head = model.Head(2, "values", PRICES)
    network = model.build_model("cnn", inputs, head, precision=precision)
    pixels = np.random.default_rng(1).integers(0, 256, (4, 32, 32, 3), np.uint8)
    found = network(pixels).numpy()
    around_0 = keras.Model(network.input, network.layers[-2].output)(pixels).numpy()
    assert found.dtype == np.float32 and np.abs(around_0).max() < 20
    np.testing.assert_allclose(found, np.array(PRICES.std) * around_0 + PRICES.mean, rtol=1e-6)
    network.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(pixels), found)


def test_weights_that_cannot_be_used_are_refused(tmp_path):
    network = _build("cnn", (8, 8), 2, RGB)
    before = replica_run.digest([v.numpy() for v in network.weights])
    other = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(3, 4)])
    other.save_weights(tmp_path / "other.weights.h5")
    (tmp_path / "text.keras").write_text("no archive")
    (tmp_path / "text.h5").write_text("no archive")
    _build("MobileNetV2", (32, 32), 2, RGB).save(tmp_path / "mobile.keras")
    for name, reason in [
        ("mobile.keras", "cnn"),
        ("absent.keras", "not there"),
        ("weights.ckpt", ".keras"),
        ("text.keras", "no Keras archive"),
        ("text.h5", "no HDF5 file"),
        ("other.weights.h5", "cnn"),
    ]:
        with refused("weights", name, reason):
            load_weights(network, str(tmp_path / name))
    assert replica_run.digest([v.numpy() for v in network.weights]) == before


# `float16` has averages, two moments, a loss scale; `sgd` a momentum; `plain` collects gradients.
@pytest.mark.parametrize("name", ["float16", "plain", "sgd"])
@pytest.mark.one_row
def test_a_restored_model_continues_bit_for_bit(name):
    config = replica_run.CONFIGS[name]
    if name == "plain":
        config = dataclasses.replace(config, accumulate_steps=2)
    how = {"soft": name == "plain", "rebuild": name in ("float16", "plain")}
    straight, resumed = replica_run.continuation(tf.distribute.get_strategy(), config, **how)
    assert straight == resumed
