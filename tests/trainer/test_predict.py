import csv
import json
import pathlib
import signal
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import imageshards as ims
from imageshards.images.encode import encode_image
from imageshards.images.options import ImageOptions
from tests.support.commands import Command, kill_at
from tests.support.dataset_factory import Dataset, features_of
from tests.support.pictures import lossless_jpeg, scene
from tests.support.pictures import saved as encoded
from tests.support.served_models import OPTIONS, card, network, saved, values_card
from trainer import predict
from trainer.dataset.spec import FeatureSpec
from trainer.serving.pictures import find_files


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    saved(folder := tmp_path_factory.mktemp("run"), card())
    return folder


@pytest.fixture
def photos(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "photos"
    (folder / "below").mkdir(parents=True)
    for i in range(5):
        (folder / f"{i}.jpg").write_bytes(encoded(scene(100 + 40 * i, 90), quality=90))
    (folder / "below" / "p.PNG").write_bytes(encoded(scene(), "PNG"))
    turned = Image.Exif()
    turned[0x0112] = 6
    (folder / "scanned.tif").write_bytes(encoded(scene(), "TIFF", exif=turned))
    (folder / "phone.HEIC").write_bytes(encoded(scene(), "HEIF"))
    (folder / "web.avif").write_bytes(encoded(scene(), "AVIF"))
    (folder / "xray.jpg").write_bytes(lossless_jpeg(64))
    (folder / "notes.txt").write_text("not a picture")
    (folder / "._0.jpg").write_bytes(b"what macOS leaves beside it")
    return folder


def rows(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[Any]]:
    return predict.main([*map(str, arguments), "--json"]), json.loads(capsys.readouterr().out)


def test_a_folder_is_predicted_file_by_file_for_any_batch(model_folder, photos, capsys):
    (photos / "all").symlink_to(".")  # multiplies no picture
    code, found = rows(capsys, "--model_path", model_folder, photos)
    files = sorted(str(p) for p in photos.rglob("[!.]*") if p.suffix != ".txt" and p.is_file())
    assert code == 0 and [row["file"] for row in found] == files
    options = ImageOptions.from_manifest(OPTIONS)
    contents = [pathlib.Path(file).read_bytes() for file in files]
    pixels = [tf.io.decode_jpeg(encode_image(one, options).data) for one in contents]
    expected = tf.nn.softmax(network(card())(tf.stack(pixels))).numpy()
    for row, probabilities in zip(found, expected, strict=True):
        assert row["class_id"] == probabilities.argmax()
        assert row["class"] == card().classes[row["class_id"]]
        assert row["probability"] == pytest.approx(float(probabilities.max()), abs=1e-6)
        assert [entry["class_id"] for entry in row["top"]] == list(np.argsort(-probabilities))
    again = rows(capsys, "--model_path", model_folder, photos, "--batch_size", 4)[1]
    assert [r["class"] for r in again] == [r["class"] for r in found]


def test_broken_files_are_rows_and_the_others_are_predicted(model_folder, photos, capsys):
    whole = photos / "0.jpg"
    (photos / "empty.jpg").write_bytes(b"")
    (photos / "cut.jpg").write_bytes(whole.read_bytes()[:900])
    notes = photos / "notes.txt"
    files = [photos / "empty.jpg", whole, photos / "cut.jpg", notes, photos / "gone.jpg"]
    code, found = rows(capsys, "--model_path", model_folder, *files, "--top", 1)
    assert code == 1 and len(found[1]["top"]) == 1
    errors = [row.get("error", "") for row in found]
    said = ("The file has no bytes", "", "truncated", "No known image begins", "No such file")
    assert all(word in error for word, error in zip(said, errors, strict=True)), errors
    assert predict.main(["--model_path", str(model_folder), *map(str, files)]) == 1
    shown = capsys.readouterr()
    assert "4 of 5 files could not be read" in shown.err
    assert [line for line in shown.out.splitlines() if line.startswith(f"{whole} ")]
    assert shown.out.count("error: ") == 4


@pytest.mark.parametrize(
    ("found", "top", "labels", "shown", "line"),
    [
        ([0.1, 0.2, 0.0, 0.3], None, [], "dba", "no label"),
        ([0.1, 0.2, 0.0, 0.3], 1, [], "d", "d 0.3000"),
        ([0.5, 0.2, 0.9, 0.3], None, ["c", "a"], "cad", "c 0.9000   a 0.5000"),
        ([0.5, 0.2, 0.9, 0.3], 1, ["c", "a"], "ca", "c 0.9000   a 0.5000"),
    ],
)
def test_labels_are_found_from_a_probability_of_one_half(found, top, labels, shown, line):
    of = card(classes=("a", "b", "c", "d"), target={"target": "labels"})
    row, text = predict.SHOWN["labels"](found, of, top)
    assert (row["labels"], text) == (labels, line)
    assert "".join(one["class"] for one in row["top"]) == shown
    assert all(one["probability"] == found[one["class_id"]] for one in row["top"])


def test_values_have_the_name_of_their_column_and_equal_classes_come_by_id():
    found = predict.top([0.25, 0.4, 0.1, 0.25], card(classes=("a", "b", "c", "d")), 3)
    assert [one["class"] for one in found] == ["b", "a", "d"]
    shown = predict.SHOWN["values"]([2.5], values_card("price"), None)
    assert shown == ({"values": {"price": 2.5}}, "price 2.5")
    shown = predict.SHOWN["values"]([2.5, 250000.5], values_card("box", 2), None)
    assert shown == ({"values": {"box": [2.5, 250000.5]}}, "box[0] 2.5   box[1] 250000.5")


def test_predict_takes_the_pictures_of_a_folder_that_a_build_takes(tmp_path):
    names = ["a-b.jpg", "a/x.PNG", "a/@eaDir/x.jpg", ".h/x.jpg", "lost+found/x.jpg", "a/x.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = find_files([str(tmp_path), f"{tmp_path}/.h/x.jpg"])
    assert [name.removeprefix(f"{tmp_path}/") for name in found] == [*names[:2], ".h/x.jpg"]


def test_python_gets_the_array_of_the_command(model_folder, photos, capsys):
    (photos / "cut.jpg").write_bytes((photos / "0.jpg").read_bytes()[:900])
    again = photos / "1.jpg"
    shown = rows(capsys, "--model_path", model_folder, photos, again, "--batch_size", 3)[1]
    assert ims.predict(model_folder, [photos, str(again)], batch_size=3) == shown
    assert "error" in next(row for row in shown if row["file"].endswith("cut.jpg"))
    (row,) = ims.predict(str(model_folder), again, top=1)
    assert row["file"] == str(again) and len(row["top"]) == 1
    assert ims.predict(model_folder, []) == []
    assert capsys.readouterr() == ("", "")


def test_a_table_gets_the_predictions_of_its_files_in_a_file(model_folder, photos, capsys):
    """A picture that cannot be read is a row; the exit code says so, as without a file."""
    files = sorted(str(path) for path in photos.glob("[0-4].jpg"))
    (photos / "3.jpg").write_bytes(b"no picture")
    lines = [f"{pathlib.Path(file).stem},{number}" for number, file in enumerate(files)]
    (photos / "test.csv").write_text("\n".join(["id,n", *lines, "9,5", ""]))
    output = photos / "out" / "predictions.csv"
    table = ["--input", photos / "test.csv", "--image_path", "{id}.jpg", "--output", output]
    asked = [*map(str, ["--model_path", model_folder, *table, "--batch_size", 2])]
    assert predict.main(asked) == 1
    assert f"written  {output}: 6 rows, 2 without a prediction" in capsys.readouterr().out
    with output.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["id"] for row in found] == ["0", "1", "2", "3", "4", "9"]
    shown = rows(capsys, "--model_path", model_folder, *files, photos / "9.jpg")[1]
    for row, one in zip(found, shown, strict=True):
        assert (row["error"], row["class"]) == (one.get("error", ""), one.get("class", ""))
        for entry in one.get("top", ()):
            assert float(row[entry["class"]]) == pytest.approx(entry["probability"], abs=1e-5)
    output.unlink()
    asked[asked.index("--input") : asked.index("--output")] = [str(photos / "0.jpg")]
    assert predict.main(asked) == 0 and output.read_text().splitlines()[1].startswith(str(photos))


@pytest.mark.process
def test_a_killed_command_goes_on_and_writes_the_same_bytes(model_folder, photos):
    lines = [f"{number % 6}.jpg,{number}" for number in range(11)]  # 5.jpg is absent
    (photos / "test.csv").write_text("\n".join(["file,id", *lines]))
    whole, output = photos / "whole.csv", photos / "killed.csv"
    asked = ["--model_path", model_folder, "--input", photos / "test.csv", "--batch_size", 3]
    asked = [*map(str, asked), "--output"]
    assert predict.main([*asked, str(whole)]) == 1
    third = ("trainer.serving.predictor", "Predictor._batch", 3)
    killed = Command("trainer", "trainer.predict", *asked, output, before=kill_at, given=third)
    assert killed.wait() == -signal.SIGKILL, killed.communicate()
    part = photos / "killed.csv.part"
    assert part.read_bytes().count(b"\n") == 7 and not output.exists()
    part.write_bytes(part.read_bytes() + b"6,cat,0.5")  # half a row
    assert predict.main([*asked, str(output)]) == 1
    assert output.read_bytes() == whole.read_bytes()


def test_a_record_that_cannot_be_decoded_is_a_row(model_folder, tmp_path):
    made = Dataset(tmp_path / "set", {"test": 1}, per_shard=5)
    (name,) = made.payloads
    made.replace(name, 2, features_of(2, 0, image__encoded=[b"no picture"]))
    output = tmp_path / "rows.csv"
    asked = ["--model_path", model_folder, "--data", tmp_path / "set", "--output", output]
    assert predict.main([*map(str, asked)]) == 1
    with output.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [bool(row["error"]) for row in found] == [number == 2 for number in range(5)]
    assert found[2]["key"] == "cat/2.jpg" and found[3]["class"] in card().classes


@pytest.mark.parametrize(
    ("flags", "argument"),
    [
        ("", "FILE"),
        ("a.jpg --input t.csv --output o.csv", "FILE"),
        ("--input t.csv", "input"),
        ("--data set", "data"),
        ("a.jpg --output o.csv --json", "json"),
        ("a.jpg --output o.csv --top 2", "top"),
        ("a.jpg --split test", "split"),
        ("--data set --output o.csv --image_path {id}.jpg", "image_path"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags, argument, capsys):
    assert predict.main(["--model_path", "none", *flags.split()]) == 2
    assert f"--{argument}"[2 * (argument == "FILE") :] + " received" in capsys.readouterr().err


def test_errors_name_the_argument(tmp_path: pathlib.Path, model_folder: pathlib.Path) -> None:
    (tmp_path / "none").mkdir()
    saved(tmp_path / "more", card({"age": FeatureSpec("float32", ())}))
    saved(tmp_path / "price", values_card("price"))
    photo = tmp_path / "a.jpg"
    photo.write_bytes(encoded(scene()))
    calls: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("^files received '.*none', a folder without pict", model_folder, tmp_path / "none", {}),
        ("^files received 3", model_folder, [3], {}),
        ("^files received None", model_folder, None, {}),
        ("^model received '", tmp_path, photo, {}),
        ("^model received <", object(), photo, {}),
        ("^model received a model that takes age", tmp_path / "more", photo, {}),
        ("^top received 0", model_folder, photo, {"top": 0}),
        ("^top received 2 for a model of numbers", tmp_path / "price", photo, {"top": 2}),
        ("^batch_size received 2.5", model_folder, photo, {"batch_size": 2.5}),
    ]
    for told, model, files, options in calls:
        with pytest.raises(ims.UserError, match=told):
            ims.predict(model, files, **options)
