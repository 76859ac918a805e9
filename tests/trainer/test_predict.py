"""`imageshards predict`: rows for good files, reasons for bad ones."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

import imageshards as ims
from imageshards.images.encode import encode_image
from imageshards.images.options import ImageOptions
from tests.support.pictures import lossless_jpeg, scene
from tests.support.pictures import saved as encoded
from tests.support.served_models import card, image_spec, network, saved, values_card
from trainer import predict
from trainer.dataset.spec import FeatureSpec

tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("run")
    saved(folder, card())
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
    code = predict.main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_folder_is_predicted_file_by_file_for_any_batch(
    model_folder: pathlib.Path, photos: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = rows(capsys, "--model_path", model_folder, photos)
    files = sorted(str(p) for p in photos.rglob("[!.]*") if p.suffix != ".txt" and p.is_file())
    assert code == 0 and [row["file"] for row in found] == files
    options = ImageOptions.from_manifest(image_spec().options)
    pixels = [
        tf.io.decode_jpeg(encode_image(pathlib.Path(file).read_bytes(), options).data)
        for file in files
    ]
    expected = tf.nn.softmax(network(card())(tf.stack(pixels))).numpy()
    for row, probabilities in zip(found, expected, strict=True):
        assert row["class_id"] == probabilities.argmax()
        assert row["class"] == card().classes[row["class_id"]]
        assert row["probability"] == pytest.approx(float(probabilities.max()), abs=1e-6)
        assert [entry["class_id"] for entry in row["top"]] == list(np.argsort(-probabilities))
    again = rows(capsys, "--model_path", model_folder, photos, "--batch_size", 4)[1]
    assert [r["class"] for r in again] == [r["class"] for r in found]


def test_broken_files_are_rows_and_the_others_are_predicted(
    model_folder: pathlib.Path, photos: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = photos / "0.jpg"
    (photos / "empty.jpg").write_bytes(b"")
    (photos / "cut.jpg").write_bytes(whole.read_bytes()[:900])
    notes = photos / "notes.txt"
    files = [photos / "empty.jpg", whole, photos / "cut.jpg", notes, photos / "gone.jpg"]
    code, found = rows(capsys, "--model_path", model_folder, *files, "--top", 1)
    assert code == 1
    assert "error" not in found[1] and len(found[1]["top"]) == 1
    errors = [row.get("error", "") for row in found]
    assert (
        errors[0].startswith("The file has no bytes: a copy")
        and errors[4] == "No such file or directory"
    )
    assert "truncated" in errors[2] and errors[3].startswith("No known image begins with")
    assert predict.main(["--model_path", str(model_folder), *map(str, files)]) == 1
    shown = capsys.readouterr()
    assert "4 of 5 files could not be read" in shown.err
    assert [line for line in shown.out.splitlines() if line.startswith(f"{whole} ")]
    assert shown.out.count("error: ") == 4


def test_labels_are_those_with_half_of_the_probability_and_the_top_ones(
    tmp_path: pathlib.Path, photos: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = card(classes=("a", "b", "c", "d"), target={"target": "labels"})
    saved(tmp_path / "run", of)
    files = [photos / f"{i}.jpg" for i in range(3)]
    code, found = rows(capsys, "--model_path", tmp_path / "run", *files)
    assert code == 0
    pixels = [
        tf.io.decode_jpeg(
            encode_image(file.read_bytes(), ImageOptions.from_manifest(image_spec().options)).data
        )
        for file in files
    ]
    expected = tf.sigmoid(network(of)(tf.stack(pixels))).numpy()
    for row, shares in zip(found, expected, strict=True):
        order = np.argsort(-shares, kind="stable")
        likely = [of.classes[i] for i in order if shares[i] >= 0.5]
        assert row["labels"] == likely and len(row["top"]) == max(3, len(likely))
        assert [one["class"] for one in row["top"]] == [of.classes[i] for i in order][
            : len(row["top"])
        ]
        for one in row["top"]:
            assert one["probability"] == pytest.approx(float(shares[one["class_id"]]), abs=1e-6)
    sizes = {len(row["labels"]) for row in found}
    for flags, counts in (((), [max(1, n) for n in sizes]), (("--top", 4), [4])):
        assert predict.main([*map(str, ("--model_path", tmp_path / "run", *files, *flags))]) == 0
        lines = capsys.readouterr().out.splitlines()[-3:]
        assert {len(line.split("   ")) - 1 for line in lines} == set(counts)


def test_no_label_is_said_and_values_have_the_name_of_their_column() -> None:
    of = card(classes=("a", "b"), target={"target": "labels"})
    assert predict.SHOWN["labels"]([0.1, 0.2], of, None)[1] == "no label"
    assert predict.SHOWN["labels"]([0.1, 0.2], of, 1)[1] == "b 0.2000"
    shown = predict.SHOWN["values"]([2.5], values_card("price"), None)
    assert shown == ({"values": {"price": 2.5}}, "price 2.5")
    shown = predict.SHOWN["values"]([2.5, 250000.5], values_card("box", 2), None)
    assert shown == ({"values": {"box": [2.5, 250000.5]}}, "box[0] 2.5   box[1] 250000.5")


def test_the_most_probable_classes_come_first_and_ties_by_id() -> None:
    found = predict.top([0.25, 0.4, 0.1, 0.25], card(classes=("a", "b", "c", "d")), 3)
    assert [one["class"] for one in found] == ["b", "a", "d"]


def test_mistakes_are_one_sentence(
    tmp_path: pathlib.Path, model_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none").mkdir()
    saved(tmp_path / "more", card({"age": FeatureSpec("float32", ())}))
    photo = tmp_path / "a.jpg"
    photo.write_bytes(encoded(scene()))
    for arguments, sentence in (
        (["--model_path", model_folder, tmp_path / "none"], "a folder without pictures"),
        (["--model_path", tmp_path, photo], "a folder without model.keras"),
        (["--model_path", model_folder, photo, "--top", "0"], "--top received 0"),
        (["--model_path", tmp_path / "more", photo], "--model_path received a model that"),
    ):
        assert predict.main(list(map(str, arguments))) == 2
        assert sentence in capsys.readouterr().err


def test_of_a_folder_the_pictures_are_taken_that_a_build_would_take(tmp_path):
    names = ["a-b.jpg", "a/x.PNG", "a/@eaDir/x.jpg", ".h/x.jpg", "lost+found/x.jpg", "a/x.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = predict.find_files([str(tmp_path), f"{tmp_path}/.h/x.jpg"])
    assert [name.removeprefix(f"{tmp_path}/") for name in found] == [*names[:2], ".h/x.jpg"]


def test_python_gets_the_array_of_the_command(
    tmp_path: pathlib.Path,
    model_folder: pathlib.Path,
    photos: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (photos / "cut.jpg").write_bytes((photos / "0.jpg").read_bytes()[:900])
    again = photos / "1.jpg"
    shown = rows(capsys, "--model_path", model_folder, photos, again, "--batch_size", 3)[1]
    assert ims.predict(model_folder, [photos, str(again)], batch_size=3) == shown
    assert "error" in next(row for row in shown if row["file"].endswith("cut.jpg"))
    (row,) = ims.predict(str(model_folder), again, top=1)
    assert row["file"] == str(again) and len(row["top"]) == 1
    assert ims.predict(model_folder, []) == []
    values = values_card("price")
    saved(tmp_path / "values", values)
    shown = rows(capsys, "--model_path", tmp_path / "values", again)[1]
    assert ims.predict(tmp_path / "values", again) == shown
    assert capsys.readouterr() == ("", "")


def test_errors_name_the_argument(tmp_path: pathlib.Path, model_folder: pathlib.Path) -> None:
    (tmp_path / "none").mkdir()
    saved(tmp_path / "more", card({"age": FeatureSpec("float32", ())}))
    photo = tmp_path / "a.jpg"
    photo.write_bytes(encoded(scene()))
    calls: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "^files received '.*none'": (
            model_folder,
            tmp_path / "none",
            {},
        ),
        "^files received 3": (model_folder, [3], {}),
        "^files received None": (model_folder, None, {}),
        "^model received '": (tmp_path, photo, {}),
        "^model received <": (object(), photo, {}),
        "^top received 0": (model_folder, photo, {"top": 0}),
        "^batch_size received 2.5": (model_folder, photo, {"batch_size": 2.5}),
        "^model received a model that takes age": (tmp_path / "more", photo, {}),
    }
    for told, (model, files, options) in calls.items():
        with pytest.raises(ims.UserError, match=told):
            ims.predict(model, files, **options)
