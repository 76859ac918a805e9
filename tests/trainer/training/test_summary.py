import pathlib

import numpy as np
import pytest

from tests.support.errors import refused
from tests.support.html_page import Page

pytest.importorskip("tensorflow")

from trainer.reader.broken_records import BrokenRecord
from trainer.training.summary import caption, result_lines, show_batch, waiting_line

CLASSES = ("cat", "dog", "emu")


# Of several epochs the first one counts for nothing: it warms up.
@pytest.mark.parametrize(
    ("shares", "bound", "waited"),
    [([0.9, 0.4], "input", 40), ([0.4], "input", 40), ([0.9, 0.01, None], "compute", 1)],
)
def test_the_sentence_names_the_slower_side(shares, bound, waited):
    said = f"{bound}-bound: the model waited {waited}.0% of the time for data"
    assert waiting_line([{"wait_fraction": share} for share in shares]) == said
    assert waiting_line([{"wait_fraction": None}]) is None


def test_the_records_that_were_left_out_are_listed() -> None:
    broken = BrokenRecord("train.tfrecord", 2, 2, 60, "it is empty")
    assert result_lines({}, "", [broken], None) == ["1 broken record left out:", f"  {broken}"]


def test_a_dry_run_writes_a_contact_sheet(tmp_path, capsys):
    pictures = np.full((12, 8, 12, 3), 7, np.uint8)
    batch: dict = {"inputs": {"image": pictures}, "label": np.arange(12) % 3, "weight": np.ones(12)}
    path = show_batch(batch, CLASSES, str(tmp_path / "new"))
    assert path == str(tmp_path / "new" / "report" / "dry_run.html")
    assert capsys.readouterr().out == f"one batch, as the model gets it: {path}\n"
    page = Page(pathlib.Path(path).read_text())
    assert "All of the 12 pictures" in page.text and len(page.all("img")) == 12
    assert {str(image["alt"]) for image in page.all("img")} == {*CLASSES}
    (tmp_path / "file").write_text("")
    with refused("output", "dry_run.html"):
        show_batch(batch, CLASSES, str(tmp_path / "file"))


def test_captions_name_the_classes_that_a_picture_is_mixed_of() -> None:
    labels = np.array([[0.75, 0.25, 0], [0, 0, 1]], np.float32)
    assert caption(labels[0], 1.0, CLASSES) == "cat 75% + dog 25%"
    assert caption(labels[1], 1.0, CLASSES) == "emu"
    assert caption(np.int64(1), 1.0, CLASSES) == "dog"
    several = np.array([0.25, 1, 1], np.float32)
    assert caption(several, 1.0, CLASSES, "labels") == "dog + emu + cat 25%"
    assert caption(0 * several, 1.0, CLASSES, "labels") == "no label"
    assert caption(np.float32(1234.5678), 1.0, (), "values") == "1,235"
    assert caption(several, 1.0, (), "values") == "0.25, 1, 1"
    assert "broken" in caption(np.int64(0), 0.0, CLASSES)
