import json
import pathlib
import shutil
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import imageshards as ims
from imageshards.commands.output_folder import check_page_folder
from imageshards.example import decode_example, encode_example
from tests.support.commands import run_forked
from tests.support.errors import refused
from tests.support.external_sets import flip_byte, records_of
from tests.support.served_models import SIZE, card, saved
from tests.support.trainer_data import CLASSES, edit_manifest, make_dataset, rewrite_shard
from trainer import evaluate
from trainer.dataset.spec import FeatureSpec

NUM_RECORDS = 23
KEYS = (
    "num_examples loss accuracy top5_accuracy mean_class_accuracy left_out missing_target model "
    "step data split classes batch_size replicas eval_crop seconds target outputs estimate"
).split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    counts = {"train": 6, "validation": NUM_RECORDS}
    return make_dataset(tmp_path_factory.mktemp("set"), counts, num_shards=2, size_px=(SIZE,))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def damaged(folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A shard of a copy of the dataset, whose record 4 is damaged."""
    shard = shutil.copytree(folder, tmp_path / "copy") / "validation-00001-of-00002.tfrecord"
    flip_byte(shard, records_of(shard)[4].offset_bytes + 30)
    return shard


def saved_model(folder: pathlib.Path, **of: Any) -> str:
    """The file of a model with a card, which `of` says more of."""
    saved(folder, card(**{"classes": CLASSES} | of))
    return str(folder / "model.keras")


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = evaluate.main([str(arg) for arg in argv])
    out, err = capsys.readouterr()
    return code, out, err


def figures(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    code, out, err = run(capsys, *argv, "--json")
    assert code == 0, err
    return json.loads(out)


def reference(folder: pathlib.Path, model_path: str, border_px: int = 0) -> tuple[float, float]:
    """Loss and accuracy without a line of the reader or the evaluator."""
    shards = sorted(folder.glob("validation-*.tfrecord"))
    records = [decode_example(one.payload) for shard in shards for one in records_of(shard)]
    labels = np.array([record["image/class/label"][0] for record in records])
    pictures = np.stack([tf.io.decode_jpeg(record["image/encoded"][0]) for record in records])
    if border_px:
        centre = pictures[:, border_px:-border_px, border_px:-border_px]
        pictures = tf.round(tf.image.resize(centre, SIZE, antialias=True))
    logits = np.asarray(keras.saving.load_model(model_path)(pictures), np.float64)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
    return float(losses.mean()), float((logits.argmax(1) == labels).mean())


def test_one_json_object_with_exact_figures(folder, model, capsys):
    found = figures(capsys, "--model_path", model, "--data", folder, "--batch_size", 7)
    assert sorted(found) == sorted(KEYS)
    assert (found["loss"], found["accuracy"]) == pytest.approx(reference(folder, model), rel=1e-5)
    expected: dict[str, Any] = {"num_examples": NUM_RECORDS, "top5_accuracy": None}
    expected |= {"split": "validation", "batch_size": 7, "replicas": 1, "step": 7, "left_out": 0}
    assert found | expected == found


def test_eval_crop_defaults_to_the_crop_of_the_training(folder, tmp_path, capsys):
    model = saved_model(tmp_path, eval_crop=0.5)
    for flags, crop, border_px in ((), 0.5, 12), (("--eval_crop", 0.75), 0.75, 6):
        found = figures(capsys, "--model_path", model, "--data", folder, *flags)
        assert found["eval_crop"] == crop
        assert found["loss"] == pytest.approx(reference(folder, model, border_px)[0], rel=1e-5)


def test_a_table_is_printed_and_a_report_is_written(folder, model, tmp_path, capsys):
    # The run's folder names the model as well as the file does.
    report = tmp_path / "page"
    flags = ("--model_path", pathlib.Path(model).parent, "--data", folder, "--report", report)
    code, out, _ = run(capsys, *flags, "--split", "train")
    assert code == 0
    assert "num_examples         6" in out and "split train" in out
    assert all(any(line.startswith(name) for line in out.splitlines()) for name in CLASSES)
    assert str(report / "index.html") in out
    assert "train-00000-of-00002.tfrecord" in (report / "index.html").read_text("utf-8")
    check_page_folder("report", str(report))  # it may be replaced


def test_a_broken_record_stops_or_is_left_out_and_listed(model, damaged, capsys):
    arguments = ("--model_path", model, "--data", damaged.parent, "--batch_size", 3, "--json")
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{damaged}, record 4 at byte" in err and "--skip_broken" in err
    code, out, err = run(capsys, *arguments, "--skip_broken", 1)
    assert (code, json.loads(out)["left_out"]) == (0, 1)
    assert "left out" in err and "record 4" in err


def test_a_record_without_an_input_of_the_model_is_named(tmp_path):
    folder = tmp_path / "shards"
    make_dataset(folder, {"validation": 6}, num_shards=1, size_px=(SIZE,), hot=True)
    (shard,) = folder.glob("validation-*.tfrecord")
    payloads = [record.payload for record in records_of(shard)]
    features = {**decode_example(payloads[4])}
    del features["hot"]
    rewrite_shard(folder, shard.name, [*payloads[:4], encode_example(features), payloads[5]])
    model = saved_model(tmp_path, features={"hot": FeatureSpec("int64", (3,))})
    with refused("data", f"{shard}, record 4 at byte", "its hot is missing"):
        ims.evaluate(model, folder, batch_size=2)


def test_without_a_validation_split_one_has_to_be_named(model, tmp_path):
    with refused("split", "one of train"):
        ims.evaluate(model, make_dataset(tmp_path / "d", {"train": 6}, size_px=(SIZE,)))
    tested = make_dataset(tmp_path / "tested", {"train": 2, "test": 3}, size_px=(SIZE,))
    assert ims.evaluate(model, tested)["split"] == "test"


def test_python_gets_the_object_of_the_command_for_any_data(folder, model, tmp_path, capsys):
    flags = ["--batch_size", 5, "--classes", "square,circle", "--where", "image/class/label>=0"]
    flags += ["--split", "train", "--threads", 2]
    shown = figures(capsys, "--model_path", model, "--data", folder, *flags)
    asked: dict[str, Any] = {"classes": ["square", "circle"], "where": "image/class/label>=0"}
    asked |= {"batch_size": 5, "split": "train", "threads": 2}
    opened, report = ims.open(folder), tmp_path / "page"
    for data, options in (
        (folder, {"report": report, **asked}),
        (opened, asked),
        (opened.evaluation(image_size=SIZE, **asked), {}),
    ):
        found = ims.evaluate(pathlib.Path(model), data, **options)
        assert {**found, "seconds": 0} == {**shown, "seconds": 0}
        assert list(found) == list(shown) and found.broken == []
    assert (report / "index.html").is_file()
    assert capsys.readouterr() == ("", "")


def test_python_result_lists_the_records_that_were_left_out(model, damaged):
    copy = damaged.parent
    calls: list[tuple[Any, dict[str, Any]]] = [
        (copy, {"skip_broken": 1}),
        (ims.open(copy, skip_broken=1), {}),
        (ims.open(copy).evaluation(batch_size=3), {"skip_broken": 1}),
    ]
    for data, options in calls:
        found = ims.evaluate(model, data, **options)
        assert (found["num_examples"], found["left_out"]) == (NUM_RECORDS - 1, 1)
        (one,) = found.broken
        assert (one.path, one.number) == (str(damaged), 4)
    with refused("data", "skip_broken=1"):
        ims.evaluate(model, copy)


def test_places_below_home_are_found(folder, model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(model, tmp_path / "m.keras")
    (tmp_path / "d").symlink_to(folder)
    Image.new("RGB", SIZE).save(tmp_path / "a.png")
    found = ims.evaluate("~/m.keras", "~/d", records_root="~/d", report=pathlib.Path("~/page"))
    assert (found["model"], found["data"]) == (f"{tmp_path}/m.keras", f"{tmp_path}/d")
    assert (tmp_path / "page" / "index.html").is_file()
    assert ims.export("~/m.keras", f"file://{tmp_path}/e") == f"{tmp_path}/e"
    assert ims.predict("~/m.keras", pathlib.Path("~/a.png"))[0]["file"] == f"{tmp_path}/a.png"


def compiled(model_path: str) -> keras.Model:
    model = keras.saving.load_model(model_path)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, weighted_metrics=["accuracy"])
    return model


def test_compiled_model_is_evaluated_by_its_own_metrics(folder: pathlib.Path, model: str) -> None:
    data = ims.open(folder).evaluation(batch_size=7)
    network = compiled(model)
    weights = network.get_weights()
    found = ims.evaluate(network, data)
    assert (found["loss"], found["accuracy"]) == pytest.approx(reference(folder, model))
    assert ims.evaluate(network, data) == found  # metrics begin anew
    theirs = network.evaluate(data.dataset(), verbose=0, return_dict=True)
    assert theirs == pytest.approx(dict(found), rel=1e-5)
    np.testing.assert_equal(network.get_weights(), weights)


def test_a_pass_that_does_not_fit_the_model_says_what_differs(model, tmp_path):
    make_dataset(tmp_path, {"validation": 6}, size_px=(SIZE,), hot=True)
    features = json.loads((tmp_path / "manifest.json").read_text())["features"]
    features["image/width"] = {"dtype": "int64", "shape": []}
    edit_manifest(tmp_path, features=features | {"hot": {"dtype": "int64", "shape": None}})
    rows: list[Any] = [
        ({"image_size": 8}, "image (8, 8, 3)", "image (48, 48, 3)"),
        ({"inputs": ["image", "hot"]}, "3), hot (int64, variable length)"),
        ({"target": "hot"}, "any number of labels"),
        ({"target": "image/width", "target_kind": "class"}, "image/width", "image/class/label"),
        ({"sample_weight": "image/width"}, "sample_weight='image/width'"),
    ]
    for change, *words in rows:
        with refused("data", *words):
            ims.evaluate(model, ims.open(tmp_path).evaluation(batch_size=3, **change))


def test_errors_name_the_argument(folder: pathlib.Path, model: str, tmp_path: pathlib.Path) -> None:
    data = ims.open(folder)
    val, network = data.evaluation(batch_size=4), compiled(model)
    plain = keras.saving.load_model(model)
    (tmp_path / "index.html").write_text("mine")
    other = saved_model(tmp_path / "other", classes=("circle", "square", "star"))
    aged = saved_model(tmp_path / "aged", features={"age": FeatureSpec("float32", ())})
    calls: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("^model received '.*none'", tmp_path / "none", folder, {}),
        ("^model received .*not compiled", plain, val, {}),
        ("^data received .*triangle", other, folder, {}),
        ("age not at all", aged, folder, {}),
        ("^data received '.*none'.* build --input", model, tmp_path / "none", {}),
        ("^data received Data together", network, data, {}),
        ("^report received 'x' together", network, val, {"report": "x"}),
        ("^split received 'train' together", model, val, {"split": "train"}),
        ("^split received 'tset'", model, folder, {"split": "tset"}),
        ("^classes received 'sqare'.*square", model, data, {"classes": ["sqare"]}),
        ("^batch_size received 7, which 2", model, data, {"batch_size": 7, "replicas": 2}),
        ("^report .*1 file", model, data, {"report": tmp_path}),
        ("^last received True together with model '", model, data, {"last": True}),
        ("^code received 'cnn'", model, data, {"code": "cnn"}),
        ("^records_root received '/x' .*leave records_r", model, data, {"records_root": "/x"}),
    ]
    for told, of, on, options in calls:
        with pytest.raises(ims.UserError, match=told):
            ims.evaluate(of, on, **options)


def test_keras_settings_of_the_program_are_left_as_they_are(folder, model, monkeypatch):
    keras.config.set_epsilon(1e-5)
    try:
        ims.evaluate(model, folder)
        assert keras.config.epsilon() == 1e-5
    finally:
        keras.config.set_epsilon(1e-7)
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(ims.UserError, match="^KERAS_BACKEND received 'jax'"):
        ims.evaluate(model, folder)


@pytest.mark.slow
def test_a_process_may_evaluate_on_replicas_several_times(folder: pathlib.Path, model: str) -> None:
    ran = run_forked("tests.support.evaluate_run", model, folder)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert [one["replicas"] for one in found] == [2, 2, 2, 1]
    loss, accuracy = reference(folder, model)
    for one in found:
        assert (one["num_examples"], one["accuracy"]) == (NUM_RECORDS, pytest.approx(accuracy))
        assert one["loss"] == pytest.approx(loss, rel=1e-5)
