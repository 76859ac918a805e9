"""`imageshards predict`: rows for good files, reasons for bad ones."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imageshards.images.encode import encode_image
from imageshards.images.options import ImageOptions
from tests.support.pictures import lossless_jpeg, scene
from tests.support.pictures import saved as encoded
from tests.support.served_models import card, image_spec, network, saved
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
    assert errors[0] == "The file has no bytes." and errors[4] == "No such file or directory"
    assert "truncated" in errors[2] and errors[3].startswith("No known image begins with")
    assert predict.main(["--model_path", str(model_folder), *map(str, files)]) == 1
    shown = capsys.readouterr()
    assert "4 of 5 files could not be read" in shown.err
    assert [line for line in shown.out.splitlines() if line.startswith(f"{whole} ")]
    assert shown.out.count("error: ") == 4


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
        (["--model_path", tmp_path / "more", photo], "takes age besides the picture"),
    ):
        assert predict.main(list(map(str, arguments))) == 2
        assert sentence in capsys.readouterr().err
