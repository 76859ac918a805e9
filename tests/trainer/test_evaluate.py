"""`imageshards evaluate`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

from imageshards.example import decode_example, encode_example
from imageshards.output_folder import check_page_folder
from imageshards.tfrecord import read_records
from tests.support.external_sets import flip_byte, records_of
from tests.support.trainer_data import CLASSES, make_data_set, rewrite_shard
from trainer import evaluate
from trainer.dataset.spec import FeatureSpec, ImageSpec, ModelCard, ModelInputs

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402

from trainer.serving import model_file  # noqa: E402

NUM_RECORDS = 23
SIZE = (16, 16)
KEYS = (
    "num_examples loss accuracy top5_accuracy mean_class_accuracy left_out model step data split "
    "classes batch_size replicas eval_crop seconds target outputs estimate"
).split()


def save_model(
    path: pathlib.Path,
    classes: tuple[str, ...] = CLASSES,
    eval_crop: float = 1.0,
    **features: FeatureSpec,
) -> str:
    keras.utils.set_random_seed(5)
    image = keras.Input((*SIZE, 3), dtype="uint8", name="image")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(image))
    model = keras.Model(image, keras.layers.Dense(len(classes))(x))
    spec = ImageSpec(SIZE, False, 3, (0.5,) * 3, (0.25,) * 3)
    card = ModelCard(classes, ModelInputs(SIZE, spec, features, eval_crop=eval_crop), step=7)
    model_file.save_model(model, str(path), card)
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("evaluate") / "shards"
    counts = {"train": 6, "validation": NUM_RECORDS}
    return make_data_set(path, counts, num_shards=2, size_px=(SIZE,))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model") / "model.keras")


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
    model = keras.saving.load_model(model_path)
    losses, right = [], []
    for path in sorted(folder.glob("validation-*")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            feature = tf.train.Example.FromString(record).features.feature
            encoded = feature["image/encoded"].bytes_list.value[0]
            label = feature["image/class/label"].int64_list.value[0]
            pixels = tf.io.decode_jpeg(encoded)[tf.newaxis]
            if border_px:
                centre = pixels[:, border_px:-border_px, border_px:-border_px]
                pixels = tf.round(tf.image.resize(centre, SIZE, antialias=True))
            logits = np.asarray(model(pixels)).astype(np.float64)[0]
            losses.append(
                np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label]
            )
            right.append(logits.argmax() == label)
    return float(np.mean(losses)), float(np.mean(right))


@pytest.mark.parametrize("batch_size", [1, 7, 32])
def test_one_json_object_with_exact_figures(
    folder: pathlib.Path, model: str, batch_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = figures(capsys, "--model_path", model, "--data", folder, "--batch_size", batch_size)
    assert sorted(found) == sorted(KEYS)
    loss, accuracy = reference(folder, model)
    assert found["num_examples"] == NUM_RECORDS
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["accuracy"] == pytest.approx(accuracy)
    assert found["top5_accuracy"] is None
    assert (found["split"], found["batch_size"], found["replicas"]) == ("validation", batch_size, 1)
    assert (found["step"], found["left_out"]) == (7, 0)


def test_the_share_of_the_centre_is_the_models_own_unless_a_flag_says_otherwise(
    folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path / "model.keras", eval_crop=0.5)
    given = ("--model_path", model, "--data", folder)
    for flags, crop, border_px in ((), 0.5, 4), (("--eval_crop", 0.75), 0.75, 2), (
        ("--eval_crop", 1), 1, 0,
    ):  # fmt: skip
        found = figures(capsys, *given, *flags)
        assert found["eval_crop"] == crop
        assert found["loss"] == pytest.approx(reference(folder, model, border_px)[0], rel=1e-5)
    code, _, err = run(capsys, *given, "--eval_crop", 1.5)
    assert code == 2 and "--eval_crop received 1.5; expected more than 0 and at most 1" in err


def test_a_table_is_printed_and_a_report_is_written(
    folder: pathlib.Path, model: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The run's folder names the model as well as the file does.
    report = tmp_path / "page"
    code, out, _ = run(
        capsys,
        *("--model_path", pathlib.Path(model).parent, "--data", folder),
        *("--split", "train", "--report", report),
    )
    assert code == 0
    assert "num_examples         6" in out and "split train" in out
    assert all(any(line.startswith(name) for line in out.splitlines()) for name in CLASSES)
    assert str(report / "index.html") in out
    assert "train-00000-of-00002.tfrecord" in (report / "index.html").read_text("utf-8")
    check_page_folder("--report", str(report), "index.html")  # it may be replaced
    (report / "index.html").write_text("mine")
    code, _, err = run(capsys, "--model_path", model, "--data", folder, "--report", report)
    assert code == 2 and "accounts for ('index.html')" in err
    assert (report / "index.html").read_text() == "mine"


def test_a_broken_record_stops_or_is_left_out_and_listed(
    folder: pathlib.Path, model: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    shard = copy / "validation-00001-of-00002.tfrecord"
    flip_byte(shard, records_of(shard)[4].offset_bytes + 30)
    arguments = ("--model_path", model, "--data", copy, "--batch_size", 3)
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, out) == (2, "")
    assert f"{shard}, record 4 at byte" in err and "--skip_broken" in err
    code, out, err = run(capsys, *arguments, "--json", "--skip_broken", 1)
    assert code == 0, err
    found = json.loads(out)
    assert (found["num_examples"], found["left_out"]) == (NUM_RECORDS - 1, 1)
    assert "left out" in err and "record 4" in err


def test_a_record_without_an_input_of_the_model_is_named(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_data_set(
        tmp_path / "shards", {"validation": 6}, num_shards=1, size_px=(SIZE,), hot=True
    )
    (shard,) = folder.glob("validation-*.tfrecord")
    payloads = [record.payload for record in read_records(str(shard))]
    features = decode_example(payloads[4])
    payloads[4] = encode_example({name: features[name] for name in features if name != "hot"})
    rewrite_shard(folder, shard.name, payloads)
    inputs = {"image": keras.Input((*SIZE, 3), dtype="uint8", name="image")}
    inputs["hot"] = keras.Input((3,), dtype="int64", name="hot")
    flat = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs["image"]))
    joined = keras.layers.Concatenate()([flat, keras.ops.cast(inputs["hot"], "float32")])
    model = keras.Model(inputs, keras.layers.Dense(3)(joined))
    spec = ImageSpec(SIZE, False, 3, (0.5,) * 3, (0.25,) * 3)
    needed = ModelInputs(SIZE, spec, {"hot": FeatureSpec("int64", (3,))})
    model_file.save_model(model, str(tmp_path / "model.keras"), ModelCard(CLASSES, needed))
    arguments = ("--model_path", tmp_path / "model.keras", "--data", folder, "--batch_size", 2)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "") and f"{shard}, record 4 at byte" in err
    assert "a feature is missing" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--split", "tset"), ("--split", "tset", "train, validation")),
        (("--classes", "sqare"), ("--classes", "square")),
        (("--batch_size", "7", "--replicas", "2"), ("--batch_size", "multiple of 2")),
        (("--repport", "x"), ("--repport", "--report")),
    ],
)
def test_mistakes_are_one_sentence(
    folder: pathlib.Path,
    model: str,
    argv: tuple[str, ...],
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "--model_path", model, "--data", folder, *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert all(word in err for word in words), err


def test_a_model_that_does_not_fit_the_data_is_refused(
    folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save_model(tmp_path / "other.keras", ("circle", "square", "star"))
    code, _, err = run(capsys, "--model_path", other, "--data", folder)
    assert code == 2 and "triangle" in err and "--classes" in err
    aged = save_model(tmp_path / "aged.keras", age=FeatureSpec("float32", ()))
    code, _, err = run(capsys, "--model_path", aged, "--data", folder)
    assert code == 2 and "age not at all" in err
    code, _, err = run(capsys, "--model_path", tmp_path / "none.keras", "--data", folder)
    assert code == 2 and "--model_path" in err


def test_without_a_validation_split_one_has_to_be_named(
    model: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_data_set(tmp_path / "shards", {"train": 6}, size_px=(SIZE,))
    code, _, err = run(capsys, "--model_path", model, "--data", folder)
    assert code == 2 and "--split: train" in err
    tested = make_data_set(tmp_path / "tested", {"train": 2, "test": 3}, size_px=(SIZE,))
    assert figures(capsys, "--model_path", model, "--data", tested)["split"] == "test"
