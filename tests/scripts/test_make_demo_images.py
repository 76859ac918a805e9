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


def test_a_seed_draws_the_same_bytes_and_more_pictures_change_none(files: dict[str, bytes]) -> None:
    more = dict(make_demo_images.pictures(PER_CLASS + 5, seed=1))
    assert len(more) == len(files) + 15 and files.items() <= more.items()
    other = dict(make_demo_images.pictures(PER_CLASS, seed=2))
    assert other.keys() == files.keys()
    assert all(other[path] != files[path] for path in files if "_0000" in path)


def test_names_and_formats_are_untidy_and_two_pictures_broken(files: dict[str, bytes]) -> None:
    for mark in (" ", "ß", ".JPG", "/.", "notes.txt"):
        assert any(mark in path for path in files)
    broken = []
    for path, data in files.items():
        if path.endswith("notes.txt") or "/." in path:
            continue
        try:
            _open(data)
        except (UnidentifiedImageError, OSError):
            broken.append(path)
    assert broken == ["square/square_0005.jpg", "triangle/triangle_0005.jpg"]
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


MADE = [
    *("shards/manifest.json", "shards/train-00000-of-00001.tfrecord", "shards/report/index.html"),
    *("model/model.keras", "model/report/index.html"),
]


@pytest.mark.parametrize(
    ("accuracy", "missing", "code"),
    [(0.97, None, 0), (0.94, None, 1), (float("nan"), None, 1), (1.0, "model/model.keras", 1)],
)
def test_the_summary_fails_where_something_is_missing_or_nothing_was_learnt(
    tmp_path: pathlib.Path, accuracy: float, missing: str | None, code: int
) -> None:
    for path in MADE:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    lines = [json.dumps({"val_accuracy": value}) for value in (0.1, accuracy)]
    (tmp_path / "model" / "metrics.jsonl").write_text("\n".join(lines))
    if missing:
        (tmp_path / missing).unlink()
    argv = ["--shards", str(tmp_path / "shards"), "--model", str(tmp_path / "model")]
    assert demo_summary.main(argv) == code
