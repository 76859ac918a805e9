import base64
import io
import pathlib
import re
import shutil
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from PIL import Image

from imageshards.commands.output_folder import write_page
from tests.support.errors import refused
from tests.support.evaluations import evaluation_of
from tests.support.external_sets import whole_split
from tests.support.html_page import Page
from tests.support.trainer_data import CLASSES, edit_manifest, make_dataset
from trainer.dataset.manifest import load_manifest
from trainer.dataset.subset import Subset
from trainer.report.page import MAX_MATRIX, confusion, curves, look_up, page_of

pytest.importorskip("tensorflow")

from trainer.evaluation.evaluation import MAX_SHOWN, Evaluation, plain
from trainer.evaluation.kinds import ClassEvaluation, ValuesEvaluation

LABEL = [0, 0, 0, 1, 1, 2, 2, 2, 2, 0]
PREDICTED = [0, 1, 1, 1, 0, 2, 2, 0, 1, 2]


def classified(label, predicted, classes=CLASSES, record=None):
    """The model is surer of each example than of the one before."""
    sure = np.linspace(1, 2, len(label))[:, None]
    logits = sure * np.eye(len(classes))[np.array(predicted, int)]
    found: ClassEvaluation = evaluation_of(ClassEvaluation, label, logits, *classes, record=record)
    return found


def history_of(epochs: int, **changes: Any) -> list[dict[str, Any]]:
    measured = {"images_per_second": 900.1, "wait_fraction": 0.25, "learning_rate": 0.001}
    return [
        {"epoch": i + 1, "loss": 0.7 * 0.9**i, "val_loss": 0.6 + 0.01 * (i - 3) ** 2}
        | {"accuracy": 0.5 + i / 100, "val_accuracy": 0.5 + i / 200, **measured, **changes}
        for i in range(epochs)
    ]


def rendered(history: Any, evaluation: Evaluation | None, title: str = "cnn") -> Page:
    return Page(page_of(title, {"data": title}, history, evaluation, None))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = make_dataset(tmp_path_factory.mktemp("set"), {"validation": 11}, size_px=((16, 24),))
    own = {"image/encoded": "string", "image/class/label": "int64", "image/filename": "string"}
    edit_manifest(path, features={n: {"dtype": d, "shape": []} for n, d in own.items()})
    return path


def validation_of(folder: pathlib.Path) -> Subset:
    return whole_split(load_manifest(str(folder)), "validation")


def test_class_figures_by_hand() -> None:
    evaluation = classified(LABEL, PREDICTED, (*CLASSES, "star"))
    assert [tuple(map(plain, row)) for row in evaluation.table().rows] == [
        ("circle", 4, 1 / 4, 1 / 3, "square (2)"),
        ("triangle", 4, 2 / 4, 2 / 3, "circle (1)"),  # of equally frequent ones the first
        ("square", 2, 1 / 2, 1 / 4, "circle (1)"),
    ]
    assert evaluation.figures()["mean_class_accuracy"] == pytest.approx((1 / 4 + 1 / 2 + 2 / 4) / 3)
    assert np.isnan(classified([], []).figures()["mean_class_accuracy"])
    assert classified([2, 2], [1, 1]).table().rows == [("triangle", 2, 0, None, ANY)]


def test_the_page_has_no_external_resources(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    evaluation = classified([0, 1, 2, 0], [0, 2, 1, 1])
    made = page_of("cnn", {"seed": "7"}, history_of(5), evaluation, validation_of(folder))
    path = write_page(str(tmp_path / "new" / "report"), made)
    assert path == str(tmp_path / "new" / "report" / "index.html")
    (tmp_path / "file").write_text("")
    with refused("report", "index.html cannot be written"):
        write_page(str(tmp_path / "file"), made, "report")
    assert [p.name for p in pathlib.Path(path).parent.iterdir()] == ["index.html"]
    text = pathlib.Path(path).read_text("utf-8")
    page = Page(text)
    assert not re.search(r'(src|href)="(?!data:|#)', text) and "url(http" not in text
    identifiers = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(identifiers) == len(set(identifiers))
    assert {attrs["href"] for attrs in page.all("a")} <= {f"#{name}" for name in identifiers}
    assert {"Curves", "Confusion", "Classes", "Most wrong", "How it was made"} <= {*page.words}
    assert len(page.all("svg")) == 5


def test_the_most_wrong_pictures_come_with_their_source_file(folder: pathlib.Path) -> None:
    subset = validation_of(folder)
    # The last example is the most wrong one, since it is the surest.
    evaluation = classified([0, 1, 2, 0], [0, 2, 1, 1], record=[0, 3, 5, 10])
    assert evaluation.most_wrong().tolist() == [3, 2, 1]
    sources = look_up(subset, [10, 5, 3])
    # Record i of the fixture lies in shard i % 3; the split counts shard by shard.
    names = [f"validation-{i}" for k in range(3) for i in range(k, 11, 3)]
    assert {n: s.filename for n, s in sources.items()} == {n: names[n] for n in (10, 5, 3)}
    page = Page(page_of("x", {}, [], evaluation, subset))
    alts = [plain(attrs["alt"]) for attrs in page.all("img")]
    assert [str(alt).split()[0] for alt in alts] == ["circle", "triangle", "square"]
    for image in page.all("img"):
        content = base64.b64decode((image["src"] or "").partition(",")[2])
        assert Image.open(io.BytesIO(content)).size == (24, 16)
    assert names[10] in page.words
    assert "validation-00002-of-00003.tfrecord, record 2" in page.words


def test_records_that_cannot_be_read_again_have_no_picture(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    subset = validation_of(copy)
    (copy / "validation-00000-of-00003.tfrecord").unlink()
    shard = copy / "validation-00001-of-00003.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-40])
    evaluation = classified([0, 0, 0, 0], [1, 1, 1, 1], record=[0, 4, 7, 8])
    page = Page(page_of("x", {}, [], evaluation, subset))
    assert page.text.count("The picture cannot be shown.") == 2
    assert len(page.all("img")) == 2


def test_names_cannot_break_the_page() -> None:
    for name in ("<script>alert(1)</script>", "a \"quoted\" & 'odd' name", "日本語\x00\udce9"):
        page = rendered(history_of(2), classified(LABEL, PREDICTED, (name, "b", "c")), name)
        assert page.all("script") == []
        shown = re.sub(r"[\x00-\x1f]", "\ufffd", name).encode("utf-8", "replace").decode()
        assert shown in page.words


def test_with_many_classes_the_confusions_are_listed_in_place_of_a_matrix() -> None:
    few = confusion(classified([0, 0, 1], [1, 0, 1]))
    assert few["matrix"] == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    names = tuple(f"class {i}" for i in range(MAX_MATRIX + 1))
    many = classified([7, 7, 5], [3, 3, 5], names)
    assert confusion(many)["matrix"] is None
    assert "All confusions, the most frequent first" in rendered([], many).words
    assert "No example was classified wrongly." in rendered([], classified([7], [7], names)).words


def test_sections_without_values_are_left_out() -> None:
    without = rendered(history_of(4, val_loss=None, val_accuracy=None), None)
    assert not {"Classes", "Best epoch", "validation"} & {*without.words}
    assert len(without.all("svg")) == 5
    bare = rendered(history_of(2, images_per_second=None, wait_fraction=None, loss=None), None)
    assert len(bare.all("svg")) == 3
    assert rendered([], None).all("svg") == []
    empty = rendered([], classified([], [])).words
    assert "Confusion" not in empty and "cnn · evaluation report" in empty
    one = rendered(history_of(1), None)
    assert one.all("svg") == [] and one.all("details") == []
    assert "One epoch so far: curves begin with the second one." in one.words
    assert "val_accuracy" in one.words and "cnn · training report" in one.words


def test_the_best_epoch_is_the_one_with_the_lowest_validation_loss() -> None:
    loss, accuracy = curves(history_of(8))[0]
    for chart in (loss, accuracy):
        assert [line.name for line in chart.lines] == ["training", "validation", "best loss"]
        assert [dot.title[:7] for dot in chart.lines[2].dots] == ["epoch 4"]


def test_only_the_first_of_many_values_are_plotted():
    names = [f"v[{i}]" for i in range(MAX_SHOWN + 2)]
    page = rendered([], evaluation_of(ValuesEvaluation, np.zeros((3, 8)), np.ones((3, 8)), *names))
    assert len(page.all("svg")) == MAX_SHOWN
    assert "Of 8 values the first 6." in page.words
    assert "R²" in page.words and "0.7528" not in page.words
