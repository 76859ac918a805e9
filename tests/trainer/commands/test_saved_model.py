import dataclasses
import sys

import pytest
import tensorflow as tf

import imageshards as ims
from tests.support.errors import refused
from tests.support.pictures import saved as encoded
from tests.support.pictures import scene
from tests.support.runs import metrics
from tests.support.served_models import card, network
from tests.support.trainer_data import make_dataset
from trainer import predict
from trainer.__main__ import main
from trainer.serving import model_file

pytestmark = pytest.mark.process


@pytest.mark.parametrize("compiled", [False, True])
def test_a_module_that_a_file_names_is_imported_only_when_asked(
    tmp_path, compiled, monkeypatch, capsys
):
    of = dataclasses.replace(card(), training={"model": "hostile:build"}, compiled=compiled)
    model_file.save_model(network(of), str(tmp_path / "model.keras"), of)
    (tmp_path / "hostile.py").write_text("open('ran', 'w')\ndef build(*given): raise OSError\n")
    (tmp_path / "a.jpg").write_bytes(encoded(scene()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("hostile", None)
    command = ["--model_path", "model.keras", "a.jpg"]
    # Without layers of its own a model needs no module; one that was compiled does.
    assert predict.main(command) == (2 if compiled else 0) and not (tmp_path / "ran").exists()
    if compiled:
        said = capsys.readouterr().err
        assert "'hostile:build'" in said and said.count("\n") == 1
        assert "--model hostile:build" in said and "--trust" in said
    command += ["--trust"] if compiled else ["--model", "hostile:build"]
    assert predict.main(command) == (2 if compiled else 0) and (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.long
def test_a_compiled_model_is_evaluated_predicts_and_is_exported(tmp_path):
    shapes = make_dataset(tmp_path / "d", {"train": 20, "validation": 7}, size_px=((12, 12),))
    run, photo = tmp_path / "run", tmp_path / "a.jpg"
    photo.write_bytes(encoded(scene(12, 12)))
    code = "tests.support.tiny_models:compiled"
    flags = ("--data", shapes, "--output", run, "--batch_size", 4, "--epochs", 3, "--model", code)
    assert main([*map(str, flags)]) == 0
    last = metrics(run)[-1]
    figures = ims.evaluate(run, shapes, last=True, code=code)
    assert figures["num_examples"] == 7 and figures["model"] == str(run / "model.keras")
    assert figures["loss"] == pytest.approx(last["val_loss"], rel=1e-5)
    assert figures["accuracy"] == pytest.approx(last["val_accuracy"])
    (row,) = ims.predict(run, photo, last=True, trust=True)
    assert sum(one["probability"] for one in row["top"]) == pytest.approx(1, abs=1e-5)
    out = ims.export(run, tmp_path / "served", last=True, code=code)
    served = tf.saved_model.load(out).signatures["serving_default"]
    found = served(image_bytes=tf.constant([photo.read_bytes()]))["probability"].numpy()[0]
    assert found == pytest.approx(row["probability"], abs=1e-5)
    with refused("model", "no compiled model"):
        ims.predict(run, photo, code="tests.support.tiny_models:plain")
