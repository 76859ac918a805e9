import dataclasses
from typing import Any

import pytest

from tests.support.dataset_factory import Dataset
from tests.support.errors import refused
from trainer.config import ReadConfig
from trainer.dataset.manifest import load_manifest
from trainer.dataset.spec import ModelCard, ModelInputs
from trainer.dataset.subset import select
from trainer.dataset.target import with_target, with_target_of

FORMS: dict[str, dict[str, Any]] = {
    "float32": {"price": [], "one": [1], "colour": [3], "curve": None, "grid": [2, 2]},
    "int64": {"year": [], "parts": None, "many": None, "pair": [2], "serial": []}
    | {"quarter": [], "odd": []},
    "string": {"place": [], "note": [], "words": None, "grade": []},
}
COLUMNS: dict[str, dict[str, Any]] = {
    name: {"dtype": dtype, "shape": shape}
    for dtype, shapes in FORMS.items()
    for name, shape in shapes.items()
}
# Column → kind, names of classes, shape of the values, how many outputs.
KINDS: list[tuple[str, str, tuple[str, ...], tuple[int, ...], int]] = [
    ("price", "values", (), (), 1),
    ("colour", "values", (), (3,), 3),
    ("quarter", "class", ("0", "1", "2", "3"), (), 4),
    ("place", "class", ("Brno", "Žilina"), (), 2),
    ("grade", "class", ("-1", "2", "10", "none"), (), 4),
    ("image/class/label", "class", ("cat", "dog"), (), 2),
    ("parts", "labels", ("-7", "2", "30"), (), 3),
    ("words", "labels", ("a", "b", "c"), (), 3),
]


def column_values(number):
    return {
        "price": [number / 2], "one": [float(number)], "colour": [0.0, 1.0, number / 10],
        "curve": [0.5] * (number % 3), "grid": [0.0] * 4, "year": [(9, 10, -3)[number % 3]],
        "place": [("Žilina".encode(), b"Brno")[number % 2]], "note": [b"x" * (number * 30)],
        "parts": [[], [30], [2, 30, 2], [-7]][number % 4],
        "words": [[], [b"b", b"a"], [b"c"]][number % 3],
        "grade": [(b"10", b"2", b"none", b"-1")[number % 4]],
        "many": [1] * (number * 5), "pair": [number, 1], "serial": [number],
        "quarter": [number % 4], "odd": [number % 4 * 2 + 1],
    }  # fmt: skip


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """30 records of cats and dogs whose shards are gone: the index has to do."""
    made = Dataset(tmp_path_factory.mktemp("columns") / "set")
    made.manifest["features"] |= COLUMNS
    made.change_records(column_values)
    for shard in made.directory.glob("*.tfrecord"):
        shard.unlink()
    return load_manifest(str(made.directory))


@pytest.mark.parametrize(("column", "kind", "classes", "shape", "outputs"), KINDS)
def test_the_form_of_a_column_decides_its_kind(opened, column, kind, classes, shape, outputs):
    found = with_target(opened, column)
    assert (found.target, found.classes, found.target_shape) == (kind, classes, shape)
    assert (found.num_outputs, found.label_feature) == (outputs, column)
    # Shards count the classes of the dataset's own label.
    counts = select(ReadConfig(opened.data), found, found.splits["train"]).class_counts
    assert (counts is not None) == (column == "image/class/label")


@pytest.mark.parametrize(
    ("column", "kind", "argument", "word"),
    [
        ("prise", None, "target", "mean price?"),
        ("pair", None, "target", "int64 of shape [2]"),
        ("curve", None, "target", "float32 of variable length"),
        ("image/encoded", None, "target", "price, one, colour, year, parts, many, serial"),
        ("note", None, "target", "21 values"),
        ("many", None, "target", "17 values"),
        ("price", "class", "target_kind", "which is float32 of shape []"),
        ("serail", "class", "target", "mean serial?"),
    ],
)
def test_a_column_or_kind_that_is_no_target_is_refused(opened, column, kind, argument, word):
    with refused(argument, repr(column) if column else "", word):
        with_target(opened, column, kind)


@pytest.mark.parametrize("label", ["image/class/labels", ""])
def test_the_manifest_says_whether_records_have_a_label(tmp_path, label):
    made = Dataset(tmp_path / "set")
    features = made.manifest["features"]
    del features["image/class/label"], features["image/class/text"]
    features["price"] = COLUMNS["price"]
    if label:
        features |= {label: COLUMNS["parts"], "image/class/text": COLUMNS["words"]}
        made.save()
        dataset = load_manifest(str(tmp_path / "set"))
        assert (dataset.target, dataset.label_feature) == ("labels", label)
        assert with_target(dataset).num_outputs == 2
        return
    made.manifest["classes"] = []
    made.save()
    dataset = load_manifest(str(tmp_path / "set"))
    with refused("target", "price"):
        with_target(dataset)
    assert with_target(dataset, "price").num_outputs == 1


@pytest.mark.parametrize(("column", "values"), [("year", "from -3 to 10"), ("odd", "from 1 to 7")])
def test_whole_numbers_that_look_like_a_quantity_are_refused(opened, column, values):
    with refused("target", values, f"columns='{column}:float'", "target_kind='class'"):
        with_target(opened, column)
    adopted = dataclasses.replace(opened, adopted=True)
    with refused("target", "imageshards adopt"):
        with_target(adopted, column)


def test_target_kind_makes_whole_numbers_classes(opened):
    with pytest.warns(UserWarning, match="'serial' has 30 different values in 30 records"):
        assert with_target(opened, "serial", "class").num_outputs == 30
    found = with_target(opened, "year", "class")
    assert (found.target, found.label_values) == ("class", (-3, 9, 10))
    assert found.classes == ("-3", "9", "10")
    inputs = ModelInputs((8, 8), opened.image)
    card = ModelCard(found.classes, inputs, target="class", column="year")
    assert with_target_of(opened, card) == found
    with refused("data", "year is a class", "1 number"):
        with_target_of(opened, dataclasses.replace(card, target="values", classes=()))
