"""The demo's pictures: reproducible, readable, and untidy on purpose."""

from __future__ import annotations

import io
import json
import pathlib

import pytest
from PIL import Image, ImageOps, UnidentifiedImageError

from scripts import demo_summary, make_demo_images

PER_CLASS = 60


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return dict(make_demo_images.pictures(PER_CLASS, seed=1))


def _open(data: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(data))
    picture.load()
    return picture


def test_the_same_seed_draws_the_same_bytes(files: dict[str, bytes]) -> None:
    assert dict(make_demo_images.pictures(PER_CLASS, seed=1)) == files


def test_another_seed_draws_other_pictures(files: dict[str, bytes]) -> None:
    other = dict(make_demo_images.pictures(PER_CLASS, seed=2))
    assert other.keys() == files.keys()
    assert all(other[path] != files[path] for path in files if "_0000" in path)


def test_more_pictures_change_none_of_the_old_ones(files: dict[str, bytes]) -> None:
    more = dict(make_demo_images.pictures(PER_CLASS + 5, seed=1))
    assert len(more) == len(files) + 15
    assert all(more[path] == data for path, data in files.items())


def test_just_two_pictures_are_broken(files: dict[str, bytes]) -> None:
    broken = []
    for path, data in files.items():
        if path.endswith("notes.txt") or "/." in path:
            continue
        try:
            _open(data)
        except (UnidentifiedImageError, OSError):
            broken.append(path)
    assert broken == ["square/square_0005.jpg", "triangle/triangle_0005.jpg"]


def test_names_hold_spaces_accents_and_upper_case_extensions(files: dict[str, bytes]) -> None:
    assert any(" " in path for path in files)
    assert any(not path.isascii() for path in files)
    assert any(path.endswith(".JPG") for path in files)


def test_odd_formats_are_there(files: dict[str, bytes]) -> None:
    assert _open(files["circle/circle_0003.jpg"]).mode == "L"
    assert _open(files["square/square_0003.jpg"]).mode == "CMYK"
    assert _open(files["triangle/triangle_0003.jpg"]).format == "PNG"


@pytest.mark.parametrize("orientation", [1, *make_demo_images.STORED])
def test_an_orientation_shows_the_picture_upright(orientation: int) -> None:
    upright = Image.new("RGB", (48, 32), "white")
    upright.paste((255, 0, 0), (0, 0, 24, 16))
    shown = ImageOps.exif_transpose(_open(make_demo_images.jpeg(upright, orientation)))
    assert shown.size == (48, 32)
    green = shown.getchannel("G").tobytes()
    assert green[8 * 48 + 8] < 60
    assert all(green[y * 48 + x] > 200 for x, y in [(40, 8), (8, 26), (40, 26)])


def test_files_are_written_below_the_output(tmp_path: pathlib.Path) -> None:
    assert make_demo_images.main(["--output", str(tmp_path / "a b"), "--per_class", "2"]) == 0
    assert sorted(p.name for p in (tmp_path / "a b").iterdir()) == ["circle", "square", "triangle"]
    assert len(list((tmp_path / "a b" / "triangle").iterdir())) == 2


def test_an_unwritable_output_is_one_sentence(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert make_demo_images.main(["--output", str(tmp_path / "file"), "--per_class", "1"]) == 1
    assert "cannot be written" in capsys.readouterr().err


def _results(root: pathlib.Path, accuracy: float) -> list[str]:
    shards, model = root / "shards", root / "model"
    (shards / "report").mkdir(parents=True)
    (model / "report").mkdir(parents=True)
    (model / "report/index.html").write_text("")
    file = "train-00000-of-00001.tfrecord"
    shard = {"file": file, "num_records": 3}
    (shards / "manifest.json").write_text(
        json.dumps({"splits": {"train": {"num_records": 3, "shards": [shard]}}})
    )
    for path in [shards / file, shards / "report/index.html", model / "model.keras"]:
        path.write_text("")
    (shards / "report/train.png").write_text("")
    epochs = [{"val_accuracy": 0.1}, {"val_accuracy": accuracy}]
    (model / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in epochs))
    return ["--shards", str(shards), "--model", str(model)]


def test_the_summary_names_every_file_and_the_last_accuracy(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo_summary.main(_results(tmp_path, 0.97)) == 0
    out = capsys.readouterr().out
    for part in ["train-*.tfrecord (1 files, 3 records)", "manifest.json", "train.png"]:
        assert part in out
    assert "model.keras" in out and "0.9700" in out


@pytest.mark.parametrize("accuracy", [0.94, float("nan")])
def test_the_summary_fails_below_the_accuracy_wanted(
    tmp_path: pathlib.Path, accuracy: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo_summary.main(_results(tmp_path, accuracy)) == 1
    assert "below 0.95" in capsys.readouterr().err


@pytest.mark.parametrize(
    "missing",
    ["shards/manifest.json", "shards/train-00000-of-00001.tfrecord", "shards/report/train.png"]
    + ["model/model.keras", "model/metrics.jsonl", "model/report/index.html"],
)
def test_the_summary_fails_where_a_file_is_missing(
    tmp_path: pathlib.Path, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = _results(tmp_path, 1.0)
    (tmp_path / missing).unlink()
    assert demo_summary.main(argv) == 1
    assert "missing" in capsys.readouterr().err
