"""The models: names, shapes, normalisation, and metrics that count each example once."""

from __future__ import annotations

import io
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from tests.trainer_data import make_data_set
from trainer.errors import UserError
from trainer.manifest import ImageSpec, load_manifest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from trainer import data, model  # noqa: E402
from trainer.callbacks import EpochLog  # noqa: E402
from trainer.strategy import make_strategy  # noqa: E402

RGB = ImageSpec((32, 32), False, 3, (0.5, 0.4, 0.3), (0.25, 0.2, 0.1))
GREY = ImageSpec((32, 32), False, 1, (0.5,), (0.0,))


@pytest.mark.parametrize(
    ("given", "name"),
    [("cnn", "cnn"), ("CNN", "cnn"), ("mobilenet_v2", "MobileNetV2"), ("ResNet50", "ResNet50")],
)
def test_names_are_found_whatever_their_case(given: str, name: str) -> None:
    assert model.resolve_name(given) == name


def test_a_wrong_name_lists_the_near_ones() -> None:
    with pytest.raises(UserError, match=r"--model received 'ResNet5'.*\(near: ResNet50, "):
        model.resolve_name("ResNet5")
    with pytest.raises(UserError, match=r"received 'qqqq'; expected cnn or a name in keras\.app"):
        model.resolve_name("qqqq")


@pytest.mark.parametrize("size", [(1, 1), (8, 200), (33, 47), (128, 96)])
@pytest.mark.parametrize("image", [RGB, GREY])
def test_the_cnn_takes_any_size_and_grey(size: tuple[int, int], image: ImageSpec) -> None:
    network = model.build_model("cnn", size, 5, image)
    logits = network(np.zeros((2, *size, image.channels), np.uint8))
    assert logits.shape == (2, 5) and logits.dtype == "float32"
    assert not model.has_dropout(network)


def test_pixels_are_normalised_by_the_manifests_numbers() -> None:
    network = model.build_model("cnn", (4, 4), 2, RGB)
    upto = keras.Model(network.input, network.get_layer("normalise").output)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3), np.uint8)
    expected = (pixels / 255 - np.array(RGB.mean)) / np.array(RGB.std)
    np.testing.assert_allclose(upto(pixels), expected, rtol=1e-4, atol=1e-5)


def test_a_constant_channel_is_not_blown_up() -> None:
    network = model.build_model("cnn", (4, 4), 2, GREY)
    upto = keras.Model(network.input, network.get_layer("normalise").output)
    assert np.abs(upto(np.full((1, 4, 4, 1), 128, np.uint8))).max() < 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNetV2", "EfficientNetB0", "MobileNetV3Small"])
def test_an_architecture_sees_pixels_of_unit_scale(name: str) -> None:
    network = model.build_model(name, (32, 32), 4, RGB)
    assert network(np.zeros((1, 32, 32, 3), np.uint8)).shape == (1, 4)
    assert model.has_dropout(network) == (name != "MobileNetV2")
    application = network.get_layer(index=-2)
    first = next(x for x in application.layers if isinstance(x, keras.layers.Conv2D))
    entering = keras.Model(application.input, first.input)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    before = keras.Model(network.input, _input_of(network))
    assert 0.3 < float(np.std(entering(before(pixels)))) < 4


def _input_of(network: Any) -> Any:
    """The tensor the architecture inside `network` is called with."""
    names = [layer.name for layer in network.layers]
    last = "undo_rescaling" if "undo_rescaling" in names else "normalise"
    return network.get_layer(last).output


def test_an_architecture_that_refuses_the_size_says_so() -> None:
    with pytest.raises(UserError, match=r"received InceptionV3, which refuses .* 32x32 px \(.*75"):
        model.build_model("InceptionV3", (32, 32), 3, RGB)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("evaluation") / "shards"
    return make_data_set(path, {"validation": 13}, size_px=((16, 16),))


def test_evaluation_is_exact_for_any_batch_size(shards: pathlib.Path) -> None:
    manifest = load_manifest(str(shards))
    split = manifest.splits["validation"]
    keras.utils.set_random_seed(3)
    network = model.build_model("cnn", (16, 16), 3, manifest.image)
    model.compile_model(network, 1e-3)
    images, labels, _ = next(
        data.evaluation_batches(manifest, split, 13, (16, 16)).as_numpy_iterator()
    )
    logits = np.asarray(network(images), np.float64)
    logsum = np.log(np.exp(logits).sum(1))
    loss = float(np.mean(logsum - logits[np.arange(13), labels]))
    accuracy = float(np.mean(logits.argmax(1) == labels))
    for batch_size in (1, 4, 8, 13, 20):
        batches = data.evaluation_batches(manifest, split, batch_size, (16, 16))
        found = network.evaluate(batches, verbose=0, return_dict=True)
        assert found["crossentropy"] == pytest.approx(loss, rel=1e-5), batch_size
        assert found["accuracy"] == pytest.approx(accuracy, rel=1e-6), batch_size


def test_the_log_counts_epochs_from_one_and_takes_the_exact_validation_loss() -> None:
    out = io.StringIO()
    log = EpochLog(out, 2, 100)
    for epoch in range(2):
        log.on_epoch_begin(epoch)
        log.on_test_begin()
        log.on_epoch_end(
            epoch,
            {"loss": 0.5, "accuracy": 0.75, "val_loss": 9.0, "val_crossentropy": 0.25,
             "val_accuracy": 1.0},
        )  # fmt: skip
        assert len(out.getvalue().splitlines()) == epoch + 1
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2]
    assert records[1] | {"images_per_second": 0} == {
        "epoch": 2, "loss": 0.5, "accuracy": 0.75, "val_loss": 0.25, "val_accuracy": 1.0,
        "images_per_second": 0,
    }  # fmt: skip
    assert log.images_per_second == records[1]["images_per_second"] > 0


def test_a_loss_that_is_no_number_ends_the_run_and_leaves_valid_json() -> None:
    out = io.StringIO()
    log = EpochLog(out, 5, 100)
    log.on_epoch_begin(2)
    with pytest.raises(UserError, match="--learning_rate received .* nan in epoch 3"):
        log.on_epoch_end(2, {"loss": float("nan"), "accuracy": 0.1})
    record = json.loads(out.getvalue())
    assert (record["loss"], record["val_loss"]) == (None, None)


def test_one_replica_needs_no_mirroring_and_the_batch_must_divide() -> None:
    assert make_strategy(1, 7).num_replicas_in_sync == 1
    with pytest.raises(UserError, match="--batch_size received 7, which 3 replicas"):
        make_strategy(3, 7)


def test_more_replicas_than_gpus_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one", "two"])
    with pytest.raises(UserError, match="--replicas received 3; expected at most 2, the GPUs"):
        make_strategy(3, 9)
