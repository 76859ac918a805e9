import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from scripts import make_demo_images
from tests.conftest import REPOSITORY
from tests.support.commands import served_environment
from tests.support.imagenet import draw_imagenet
from tests.support.pictures import draw_photos

pytestmark = [pytest.mark.process, pytest.mark.long]

RECIPES = REPOSITORY / "recipes"


def draw_120_photos(folder: pathlib.Path) -> None:
    # A tenth validates, chosen by paths that change from run to run: hardly ever less than two.
    draw_photos(folder, 120)


def draw_shapes(folder: pathlib.Path) -> None:
    assert make_demo_images.main(["--output", str(folder), "--per_class", "16"]) == 0
    for name in ("square", "triangle"):
        (folder / name / f"{name}_0005.jpg").unlink()  # broken ones, too many for so few


def draw_120_photos_and_few(folder: pathlib.Path) -> None:
    draw_120_photos(folder)
    arguments = ["--output", str(folder.parent / "few"), "--per_class", "160"]
    assert make_demo_images.main(arguments) == 0


SMALL: dict[str, tuple[Callable[[pathlib.Path], object], dict[str, str]]] = {
    "captions_and_boxes": (draw_shapes, {"EPOCHS": "1"}),
    "columns": (draw_120_photos, {"EPOCHS": "1"}),
    "dogs_vs_cats": (draw_120_photos, {"EPOCHS": "2", "WARMUP_STEPS": "1"}),
    "few_photos": (
        draw_120_photos_and_few,
        {"EPOCHS": "1", "FEW_EPOCHS": "6", "SEEDS": "1", "WARMUP_STEPS": "1"},
    ),
    "imagenet": (
        draw_imagenet,
        {
            "TRAIN_SHARDS": "2", "VAL_SHARDS": "1", "RECORD_SIZE": "40", "SIZE": "32", "BATCH": "4",
            "REPLICAS": "2", "STEPS": "2", "WARMUP_STEPS": "1", "PRECISION": "float32",
            "MODELS": "MobileNetV2",
        },
    ),
    "targets": (draw_120_photos, {"EPOCHS": "1", "WARMUP_STEPS": "0"}),
}  # fmt: skip


def run_small(script: str, folder: pathlib.Path) -> pathlib.Path:
    draw, variables = SMALL[script]
    if not (folder / "images").exists():
        (folder / "images").mkdir()
        draw(folder / "images")
    places = {"IMAGES": folder / "images", "FEW": folder / "few", "OUTPUT": folder / "out"}
    given = {**{name: str(place) for name, place in places.items()}, **variables}
    done = subprocess.run(
        ["sh", str(RECIPES / f"{script}.sh")],
        env={**served_environment(), **given},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(path.stem for path in RECIPES.glob("*.sh")))
def test_recipes_run_from_pictures_to_model(script: str, tmp_path: pathlib.Path) -> None:
    output = run_small(script, tmp_path)
    kept = [output / "shards" / "manifest.json", *output.glob("*/weights.sha256")]
    before = [path.read_bytes() for path in kept]
    assert len(before) > 1
    if script == "dogs_vs_cats":  # keeps what is there
        run_small(script, tmp_path)
        assert [path.read_bytes() for path in kept] == before


def test_the_detector_finds_drawn_shapes(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "recipes.detector", "--output", str(tmp_path / "out")]
    command += ["--pictures", "240", "--epochs", "6"]  # the seeds are fixed
    done = subprocess.run(
        command, env=served_environment(), cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (found,) = re.findall(r"^mean IoU on \d+ images: (.+)$", done.stdout, re.MULTILINE)
    assert float(found) > 0.3
