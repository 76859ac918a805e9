"""`--dry_run`: what is printed of one batch, and its contact sheet."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from PIL import Image

from imageshards.errors import UserError
from trainer.training import dry_run

CLASSES = ("cat", "dog", "emu")


def batch_of(count: int) -> dict:
    return {
        "inputs": {"image": np.full((count, 8, 12, 3), 7, np.uint8)},
        "label": np.arange(count) % 3,
        "weight": np.ones(count),
    }


def test_a_dry_run_writes_a_contact_sheet_and_tells_the_memory_of_the_reader(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, memory = tmp_path / "new" / "report", {"shuffle buffer": 64_000_000}
    path = dry_run.describe(batch_of(12), CLASSES, memory, str(folder))
    assert path == str(folder / "dry_run.png")
    assert capsys.readouterr().out.splitlines() == [
        "the reader will hold 64 MB (shuffle buffer 64 MB)",
        f"one batch, as the model gets it: {path}",
    ]
    with Image.open(path) as sheet:
        assert sheet.mode == "RGB" and sheet.width > sheet.height


def test_captions_name_the_classes_that_a_picture_is_mixed_of() -> None:
    labels = np.array([[0.75, 0.25, 0], [0, 0, 1]], np.float32)
    assert dry_run.caption(labels[0], 1.0, CLASSES) == "cat 75% + dog 25%"
    assert dry_run.caption(labels[1], 1.0, CLASSES) == "emu"
    assert dry_run.caption(np.int64(1), 1.0, CLASSES) == "dog"
    assert "broken" in dry_run.caption(np.int64(0), 0.0, CLASSES)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"dry_run.png cannot be written .*--output"):
        dry_run.describe(batch_of(1), CLASSES, {}, str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [((20, 40, 3), (144, 72)), ((500, 250, 1), (72, 144)), ((1, 900, 3), (144, 1))],
)
def test_small_pictures_are_enlarged_and_large_ones_reduced(
    given: tuple[int, int, int], expected: tuple[int, int]
) -> None:
    drawn = dry_run.thumb(np.full(given, 200, np.uint8))
    assert drawn.size == expected and drawn.mode == "RGB"
    assert drawn.getcolors() == [(expected[0] * expected[1], (200, 200, 200))]
