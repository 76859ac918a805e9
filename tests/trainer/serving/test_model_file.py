import dataclasses
import json
import pathlib
import subprocess
import sys
import zipfile
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest

from tests.support.errors import refused
from tests.support.served_models import SIZE, card, network, saved
from trainer.dataset.spec import FeatureSpec, MeanStd
from trainer.serving import model_file

pytestmark = pytest.mark.process


def pictures(count: int = 4) -> Any:
    return np.random.default_rng(0).integers(0, 256, (count, *SIZE, 3), np.uint8)


def test_a_saved_model_is_loaded_with_its_weights_and_every_field_of_its_card(tmp_path):
    features = {"age": FeatureSpec("float32", ()), "tokens": FeatureSpec("int64", None)}
    scale = MeanStd((1.0, 2.0, 340_000.0), (0.5, 1.0, 90_000.0))
    target = {"target": "values", "target_shape": (3,), "column": "meta", "target_mean_std": scale}
    full = card(features, ("čáp", "a b", '"'), target, sequence_length=7, eval_crop=0.875)
    model = saved(tmp_path, full)
    for path in (tmp_path, tmp_path / "model.keras"):  # the folder means the same
        found = model_file.find_model(path)
        again, its_card = found.load(), found.card
        assert its_card == full
        np.testing.assert_equal(again.get_weights(), model.get_weights())


def test_a_model_is_saved_without_its_optimizer_and_can_train_further(tmp_path):
    model = network(card())
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(pictures(), np.zeros(4), verbose=0)
    path = tmp_path / "model.keras"
    model_file.save_model(model, str(path), card())
    with zipfile.ZipFile(path) as z:
        assert not json.loads(z.read("config.json")).get("compile_config")
        assert b"adam" not in z.read("model.weights.h5").lower()
    model.fit(pictures(), np.zeros(4), verbose=0)
    assert int(model.optimizer.iterations) == 2
    # Keras itself opens it, our card or not.
    assert not keras.saving.load_model(path).compiled


def test_the_same_model_gives_the_same_bytes(tmp_path: pathlib.Path) -> None:
    model = network(card())
    for name in ("a.keras", "b.keras"):
        model_file.save_model(model, str(tmp_path / name), card())
    assert (tmp_path / "a.keras").read_bytes() == (tmp_path / "b.keras").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.keras", "b.keras"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    model = saved(tmp_path, card())
    before = (tmp_path / "model.keras").read_bytes()
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(model_file, "_add_card", full)
    with refused("output", "model.keras", "(No space left"):
        model_file.save_model(model, str(tmp_path / "model.keras"), card())
    assert [p.name for p in tmp_path.iterdir()] == ["model.keras"]
    assert (tmp_path / "model.keras").read_bytes() == before


def test_other_files_are_refused_in_one_sentence(tmp_path, monkeypatch):
    saved(tmp_path / "half", card())
    whole = (tmp_path / "half" / "model.keras").read_bytes()
    (tmp_path / "half" / "model.keras").write_bytes(whole[: len(whole) // 2])
    network(card()).save(tmp_path / "plain.keras")
    for name, said in (
        ("nothing", "no file"), ("", "model.keras"), ("half", ".keras file"),
        ("plain.keras", "no imageshards.json"),
    ):  # fmt: skip
        with refused("model_path", name, said):
            model_file.find_model(tmp_path / name).load()
    with monkeypatch.context() as newer:
        newer.setattr(model_file, "FORMAT_VERSION", 2)
        saved(tmp_path, card())
    with refused("model_path", "format_version is 2"):
        model_file.read_card(str(tmp_path))


def saved_with(layer: Any, folder: pathlib.Path) -> Any:
    layers = [keras.layers.Rescaling(1.0), layer, keras.layers.Flatten(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((*SIZE, 3), dtype="uint8", name="image"), *layers])
    model_file.save_model(model, str(folder / "model.keras"), card())
    return model


def test_an_unknown_layer_is_named_with_its_remedy(tmp_path):
    saved_with(type("Odd", (keras.layers.ReLU,), {})(), tmp_path)
    with refused("model_path", "Odd", "register_keras"):
        model_file.find_model(tmp_path).load()


def test_lambdas_are_run_only_when_they_are_trusted(tmp_path):
    model = saved_with(keras.layers.Lambda(lambda x: x[:, 0, 0]), tmp_path)
    with refused("model_path", "no code", "give trust=True"):
        model_file.find_model(tmp_path).load()
    again = model_file.find_model(tmp_path, trust=True).load()
    np.testing.assert_array_equal(model(pictures()), again(pictures()))


def test_a_folder_gives_its_best_or_its_last_model(tmp_path: pathlib.Path) -> None:
    for name, step in (("model.keras", 9), ("best.keras", 4)):
        of = dataclasses.replace(card(), step=step)
        model_file.save_model(network(of), str(tmp_path / name), of)
    assert model_file.find_model(tmp_path).card.step == 4
    assert model_file.locate(str(tmp_path), last=True) == str(tmp_path / "model.keras")
    with refused("last", "model_path", "model.keras"):
        model_file.locate(str(tmp_path / "model.keras"), last=True)


def test_a_card_is_read_without_tensorflow(tmp_path: pathlib.Path) -> None:
    saved(tmp_path, card())
    code = (
        "import sys; from trainer import predict, export; from trainer.serving import model_file\n"
        f"model_file.read_card({str(tmp_path)!r})\n"
        "print(sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
