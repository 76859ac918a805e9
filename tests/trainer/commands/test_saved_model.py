"""A model file may be a stranger's: whose code the commands run for it, and which file of a run."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys

import pytest

from tests.support.commands import run_forked
from tests.support.pictures import saved as encoded
from tests.support.pictures import scene
from tests.support.served_models import card, network
from tests.support.trainer_data import make_data_set
from trainer.serving import model_file

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.process

MODELS = "tests.support.tiny_models"


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("models") / "shards"
    return make_data_set(path, {"train": 20, "validation": 7}, size_px=((12, 12),))


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_a_module_that_a_file_names_is_imported_only_when_asked(tmp_path, compiled):
    of = dataclasses.replace(card(), training={"model": "hostile:build"}, compiled=compiled)
    model_file.save_model(network(of), str(tmp_path / "model.keras"), of)
    (tmp_path / "hostile.py").write_text(
        "open('ran', 'w')\ndef build(inputs, classes): raise OSError\n"
    )
    (tmp_path / "a.jpg").write_bytes(encoded(scene()))
    command = str(pathlib.Path(sys.executable).with_name("imageshards"))

    def predict(*more: str) -> subprocess.CompletedProcess[str]:
        argv = [command, "predict", "--model_path", "model.keras", "a.jpg", *more]
        return subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)

    ran = predict()
    # Without layers of its own a model needs no module; one that was compiled does.
    assert ran.returncode == (2 if compiled else 0) and not (tmp_path / "ran").exists()
    if compiled:
        assert "'hostile:build'" in ran.stderr and ran.stderr.count("\n") == 1
        assert "--model hostile:build" in ran.stderr and "--trust" in ran.stderr
    ran = predict("--trust") if compiled else predict("--model", "hostile:build")
    assert (tmp_path / "ran").exists() and ran.returncode == (2 if compiled else 0)


@pytest.mark.slow
def test_a_compiled_model_is_evaluated_predicts_and_is_exported(shapes, tmp_path):
    run, photo, model = tmp_path / "run", tmp_path / "a.jpg", ("--model", f"{MODELS}:compiled")
    photo.write_bytes(encoded(scene(12, 12)))
    flags = ["--data", shapes, "--output", run, "--batch_size", 4, "--epochs", 3, *model]
    trained = run_forked("trainer", *flags)
    assert trained.returncode == 0, trained.stderr
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])

    refused = run_forked("trainer.evaluate", "--model_path", run, "--data", shapes)
    assert refused.returncode == 2 and f"give --model {MODELS}:compiled" in refused.stderr
    of_run = ["--model_path", run, "--last", *model]
    told = run_forked("trainer.evaluate", *of_run, "--data", shapes, "--batch_size", 4, "--json")
    assert told.returncode == 0, told.stderr
    figures = json.loads(told.stdout)
    assert figures["num_examples"] == 7 and figures["model"] == str(run / "model.keras")
    assert figures["loss"] == pytest.approx(last["val_loss"], rel=1e-5)
    assert figures["accuracy"] == pytest.approx(last["val_accuracy"])

    told = run_forked("trainer.predict", "--model_path", run, "--last", "--trust", "--json", photo)
    assert told.returncode == 0 and "model.keras, step 15" in told.stderr, told.stderr
    (row,) = json.loads(told.stdout)
    assert sum(one["probability"] for one in row["top"]) == pytest.approx(1, abs=1e-5)
    out = tmp_path / "served"
    told = run_forked("trainer.export", *of_run, "--output", out)
    assert told.returncode == 0, told.stderr
    import tensorflow as tf

    served = tf.saved_model.load(str(out)).signatures["serving_default"]
    found = served(image_bytes=tf.constant([photo.read_bytes()]))["probability"].numpy()[0]
    assert found == pytest.approx(row["probability"], abs=1e-5)
    other = run_forked("trainer.predict", "--model_path", run, "--model", f"{MODELS}:plain", photo)
    assert other.returncode == 2 and "returns no compiled model" in other.stderr


@pytest.mark.long
@pytest.mark.slow
def test_a_compiled_model_that_chooses_no_class_is_evaluated_and_said_not_to_predict(
    shapes: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    model = ("--model", f"{MODELS}:contrastive")
    flags = ["--data", shapes, "--output", tmp_path, "--batch_size", 4, "--steps", 2, *model]
    (tmp_path / ".run").touch()
    (tmp_path / "best.keras").write_text("of a shorter run that this one went on with")
    trained = run_forked("trainer", *flags)
    assert trained.returncode == 0, trained.stderr
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    of_run = ["--model_path", tmp_path, *model]
    told = run_forked("trainer.evaluate", *of_run, "--data", shapes, "--batch_size", 4)
    assert told.returncode == 0, told.stderr
    assert f"distance             {last['val_distance']:.4f}\n" in told.stdout
    (tmp_path / "a.jpg").write_bytes(encoded(scene(12, 12)))
    told = run_forked("trainer.predict", *of_run, tmp_path / "a.jpg")
    assert (
        told.returncode == 2
        and "does not find a class; expected 3 outputs and a loss" in told.stderr
    )
