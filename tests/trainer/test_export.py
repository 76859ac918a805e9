import pathlib
import re
import resource
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import imageshards as ims
from tests.support.errors import refused
from tests.support.pictures import saved as encoded
from tests.support.pictures import scene
from tests.support.served_models import SIZE, card, network, picture_reader, saved, values_card
from trainer import export
from trainer.dataset.spec import FeatureSpec
from trainer.serving.pictures import pictures_of_files
from trainer.serving.predictor import Predictor

JPEG = encoded(scene(), quality=95)


def run(model_path: pathlib.Path, output: pathlib.Path) -> int:
    return export.main(["--model_path", str(model_path), "--output", str(output)])


def served(model_path: pathlib.Path, output: pathlib.Path) -> Any:
    assert run(model_path, output) == 0
    return tf.saved_model.load(str(output)).signatures["serving_default"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    saved(folder := tmp_path_factory.mktemp("run"), card())
    return folder


def test_a_saved_model_gives_names_and_probabilities_of_files(model_folder, tmp_path, capsys):
    output = tmp_path / "deep" / "served"
    assert run(model_folder, output) == 0
    shown = capsys.readouterr().out
    assert "input    image_bytes: string [batch]" in shown and "classes  2" in shown
    loaded = tf.saved_model.load(str(output))
    files = [JPEG, encoded(scene(90, 200), "PNG"), JPEG]
    found = loaded.signatures["serving_default"](image_bytes=tf.constant(files))
    pictures = picture_reader(card().inputs.image, SIZE)(tf.constant(files))
    expected = tf.nn.softmax(network(card())(pictures)).numpy()
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-6)
    np.testing.assert_array_equal(found["class_id"], expected.argmax(1))
    np.testing.assert_allclose(found["probability"], expected.max(1), atol=1e-6)
    names = [b"cat", b"dog"]
    assert found["class"].numpy().tolist() == [names[i] for i in expected.argmax(1)]
    assert loaded.classes.numpy().tolist() == names
    assert [path.name for path in output.parent.iterdir()] == ["served"]


@pytest.mark.long
def test_labels_and_values_are_served_as_such(tmp_path, capsys):
    files = tf.constant([JPEG, encoded(scene(90, 200), "PNG")])
    pictures = picture_reader(card().inputs.image, SIZE)(files)
    several = card(classes=("cat", "dog", "cow"), target={"target": "labels"})
    logits = saved(tmp_path / "labels", several)(pictures)
    found = served(tmp_path / "labels", tmp_path / "s")(image_bytes=files)
    np.testing.assert_allclose(found["probabilities"], tf.sigmoid(logits), atol=1e-6)
    assert found["classes"].numpy().tolist() == [[b"cat", b"dog", b"cow"]] * 2
    assert set(found) == {"classes", "probabilities"}
    assert "labels   3, in the variable classes" in capsys.readouterr().out
    outputs = saved(tmp_path / "values", values_card("box", 2))(pictures)
    found = served(tmp_path / "values", tmp_path / "v")(image_bytes=files)
    assert set(found) == {"values"}
    np.testing.assert_allclose(found["values"], outputs, atol=1e-5)
    loaded = tf.saved_model.load(str(tmp_path / "v"))
    assert loaded.classes.numpy().tolist() == [b"box[0]", b"box[1]"]


def test_a_served_batch_names_the_files_that_are_broken(model_folder, tmp_path):
    serve = served(model_folder, tmp_path / "s")
    for files, indices in (([JPEG, JPEG[:999], JPEG, b""], "[1 3]"), ([b"no picture"], "[0]")):
        told = rf"not whole pictures, at the indices\] {re.escape(indices)}"
        with pytest.raises(tf.errors.InvalidArgumentError, match=told):
            serve(image_bytes=tf.constant(files))


def test_exported_model_uses_the_eval_crop_of_the_training(tmp_path: pathlib.Path) -> None:
    of = card(eval_crop=0.6)
    model = saved(tmp_path, of)
    pictures = picture_reader(of.inputs.image, SIZE, 0.6)(tf.constant([JPEG]))
    expected = tf.nn.softmax(model(pictures)).numpy()
    found = served(tmp_path, tmp_path / "s")(image_bytes=tf.constant([JPEG]))["probabilities"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    (tmp_path / "a.jpg").write_bytes(JPEG)
    pictures = pictures_of_files([str(tmp_path / "a.jpg")])
    (row,) = Predictor(model, of, pictures).predict(1)
    np.testing.assert_allclose(row.found, expected[0], atol=1e-3)


def test_features_without_a_transform_are_taken_as_recorded(tmp_path, capsys):
    features = {"speed": FeatureSpec("float32", ()), "a/tokens": FeatureSpec("int64", None)}
    of = card(features, sequence_length=3)
    model = saved(tmp_path, of)
    serve = served(tmp_path, tmp_path / "s")
    assert "note: no transform makes speed, a/tokens" in capsys.readouterr().out
    found = serve(
        image_bytes=tf.constant([JPEG, JPEG]), speed=tf.constant([0.5, -1.0]),
        a_tokens=tf.constant([[1, 2, 3, 4], [5, 0, 0, 0]], tf.int64),
    )  # fmt: skip
    inputs = {
        "image": picture_reader(of.inputs.image, SIZE)(tf.constant([JPEG, JPEG])),
        "speed": tf.constant([0.5, -1.0]),
        "a_tokens": tf.constant([[1, 2, 3], [5, 0, 0]], tf.int64),
    }  # fmt: skip
    np.testing.assert_allclose(found["probabilities"], tf.nn.softmax(model(inputs)), atol=1e-6)


def test_a_full_disk_leaves_one_sentence_and_no_file(model_folder, tmp_path, monkeypatch, capsys):
    save, limits = tf.saved_model.save, resource.getrlimit(resource.RLIMIT_FSIZE)

    def save_where_nothing_has_room(*args: Any, **kwargs: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        try:
            save(*args, **kwargs)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(tf.saved_model, "save", save_where_nothing_has_room)
    assert run(model_folder, tmp_path / "served") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "cannot be written (OutOfRangeError: File too large); expected a place with" in said
    assert not list(tmp_path.iterdir())


def test_python_gets_the_path_of_the_export(model_folder, tmp_path, capsys):
    path = ims.export(model_folder, tmp_path / "x" / ".." / "served/")
    assert path == str(tmp_path / "served") and capsys.readouterr() == ("", "")
    with refused("output", "overwrite=True"):
        ims.export(model_folder, path)
    (tmp_path / "served" / "old").touch()
    assert ims.export(model_folder, path, overwrite=True) == path
    assert not (tmp_path / "served" / "old").exists() and tf.saved_model.contains_saved_model(path)
    (photo := tmp_path / "a.jpg").write_bytes(JPEG)
    with refused("output", str(tmp_path), "overwrite=True"):
        ims.export(model_folder, tmp_path, overwrite=True)
    assert photo.exists()
    with refused("model_path", "model received", "none"):
        ims.export(tmp_path / "none", tmp_path / "new")
