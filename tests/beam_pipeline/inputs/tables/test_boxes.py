"""Boxes of image tables: what is wrong names its row, and no class is lost or moved."""

import csv
import json
import pathlib

import pyarrow as pa
import pytest
from pyarrow import parquet

from beam_pipeline.inputs.listing import schema_of
from beam_pipeline.options import InputOptions
from beam_pipeline.planning.refs import ImageRef
from imageshards.manifest import BOX_CLASS_FEATURE, BOX_FEATURES, BOX_LABEL_FEATURE
from tests.support.errors import refused
from tests.support.listings import listed

CORNERS, SIZES = ("xmin", "ymin", "xmax", "ymax"), ("x", "y", "width", "height")
PIXELS, XYWH, SEVERAL = {"bbox_format": "pixels"}, {"bbox_format": "xywh"}, {"label": "several"}


def write(path: pathlib.Path, *rows: dict) -> pathlib.Path:
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(sides: tuple[str, ...], *boxes: tuple[float, ...], **more) -> dict:
    """A row with lists of sides, or with one box."""
    values = zip(*boxes, strict=True) if boxes else ([] for _ in sides)
    given = {"image": "x.jpg", "label": "a"} | dict(zip(sides, map(list, values), strict=True))
    return given | more


def one(sides: tuple[str, ...], *box: object, **more) -> dict:
    return {"image": "x.jpg", "label": "a"} | dict(zip(sides, box, strict=True)) | more


def first(path: pathlib.Path, **options) -> ImageRef:
    found, _ = listed(path, **options)
    return next(iter(found.values()))


@pytest.mark.parametrize(
    ("sides", "box", "options", "words"),
    [
        (CORNERS, (0.6, 0.1, 0.2, 0.3), {}, ["'xmax'", "0.2", "0.6", "'xmin'"]),
        (CORNERS, (10, 90, 20, 30), PIXELS, ["'ymax'", "30", "90", "'ymin'"]),
        (SIZES, (10, 20, -5, 30), XYWH, ["'width'", "-5", "0 or more"]),
        (CORNERS, (0.1, 0.1, 40, 0.3), {}, ["'xmax'", "40", "bbox_format='pixels'"]),
        (CORNERS, (0.1, float("nan"), 0.2, 0.3), {}, ["'ymin'", "nan"]),
    ],
)
def test_a_reversed_box_and_a_wrong_unit_name_their_row(tmp_path, sides, box, options, words):
    whole = (1, 2, 300, 400) if options else (0, 0, 1, 1)
    for make in (one, lambda names, *of: row(names, whole, of)):
        rows = [one(sides, *whole) if make is one else row(sides, whole), make(sides, *box)]
        with refused("", "line 2", *words):
            listed(write(tmp_path / "m.jsonl", *rows), **options)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("make", [one, lambda sides, *box: row(sides, box)])
@pytest.mark.parametrize(("sides", "options"), [(CORNERS, PIXELS), (SIZES, XYWH)])
def test_a_table_in_pixels_whose_boxes_are_shares_is_refused(
    tmp_path, suffix, make, sides, options
):
    path = tmp_path / f"m{suffix}"
    shares = [make(sides, 0, 0, 0, 0), make(sides, 0.5, 0.5, 0.9, 0.7)]
    with refused("bbox_format", options["bbox_format"], "2 and all rows", "xmin, ymin"):
        schema_of(InputOptions(str(write(path, *shares)), **options))
    assert schema_of(InputOptions(str(write(path, *shares, make(sides, 7, 8, 9, 9))), **options))
    if sides == CORNERS:  # as the sentence says
        assert schema_of(InputOptions(str(write(path, *shares))))


OF_TWO = row(CORNERS, (0, 0, 1, 1), (0, 0, 0.5, 0.5))
UNDECLARED = {"drop_column": (BOX_CLASS_FEATURE,)}


@pytest.mark.parametrize(
    ("more", "options", "words"),
    [
        ({BOX_CLASS_FEATURE: ["car"]}, {}, [BOX_CLASS_FEATURE + " 1", "xmin 2"]),
        ({BOX_CLASS_FEATURE: ["car", " "]}, {}, [BOX_CLASS_FEATURE, "''"]),
        ({"image/object/age": [1, 2, 3]}, {}, ["image/object/age 3"]),
        ({"label": ["a"]}, SEVERAL, ["label 1", "xmin 2", "drop_column"]),
        ({"label": ["a", "b", "c"]}, {"label": "none"}, ["label 3"]),
        ({"label": "a|b|c"}, {"label_separator": "|"}, ["label 3"]),
        ({BOX_LABEL_FEATURE: [0.5, 1]}, {}, [BOX_LABEL_FEATURE, "expected int"]),
        ({BOX_CLASS_FEATURE: [1, 2]}, {}, [BOX_CLASS_FEATURE, "expected string"]),
    ],
)
def test_columns_of_boxes_have_a_value_for_each_box(tmp_path, more, options, words):
    path = write(tmp_path / "m.jsonl", OF_TWO | more)
    with refused("", "line 1", *words):
        listed(path, **options)
    if "drop_column" in words:  # the remedy: the list is not of the boxes
        sides = dict(zip(("xmin", "ymin", "xmax", "ymax"), BOX_FEATURES, strict=True))
        renamed = {sides.get(name, name): value for name, value in OF_TWO.items()}
        ref = first(write(path, renamed | more), **options, **UNDECLARED)
        assert (ref.label, ref.box_labels) == (("a",), ())


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("label", "options", "classes", "labels"),
    [
        (["b", "a"], SEVERAL, ["b", "a"], ("a", "b")),
        (["b", "b"], SEVERAL, ["b", "b"], ("b",)),
        ("b|a", {"label_separator": "|"}, ["b", "a"], ("a", "b")),
        (["b", "a"], {"label": "none"}, ["b", "a"], None),
        ("b", {"label": "none"}, ["b", "b"], None),
        ("b", {}, ["b", "b"], "b"),
    ],
)
def test_labels_beside_lists_of_sides_are_the_classes_of_the_boxes(
    tmp_path, suffix, label, options, classes, labels
):
    ref = first(write(tmp_path / f"m{suffix}", OF_TWO | {"label": label}), **options)
    assert (dict(ref.columns or {})[BOX_CLASS_FEATURE], ref.label) == (classes, labels)
    assert ref.box_labels == (tuple(classes) if isinstance(labels, tuple) else ())


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
@pytest.mark.parametrize(
    ("cells", "options", "classes", "label"),
    [
        ({"label": "street", "kinds": ["b", "a"]}, {}, ["b", "a"], "street"),
        ({"label": "street", "kinds": ["b", "a"]}, {"label": "none"}, ["b", "a"], None),
        ({"objects": ["b", "a"]}, SEVERAL, ["b", "a"], ("a", "b")),
        ({"label": "x", "colors": ["b", "a"], "classes": ["c", "d"]}, {}, ["c", "d"], "x"),
        ({"label": ["x", "y", "z"], "categories": ["b", "a"]}, SEVERAL, ["b", "a"],
         ("x", "y", "z")),
        ({"label": ["b", "a"], "classes": ["c", "d"]}, SEVERAL, ["b", "a"], ("a", "b")),
        ({"label": "street", "colors": ["r", "g"], "kinds": ["b", "a"]}, {}, ["street"] * 2,
         "street"),
        ({"label": "street", "area": [1, 2]}, {}, ["street"] * 2, "street"),
        ({"label": "street", "words": ["a", "b", "c"]}, {}, ["street"] * 2, "street"),
    ],
)  # fmt: skip
def test_a_list_with_a_class_for_each_box_is_their_class_whatever_its_name(
    tmp_path, suffix, cells, options, classes, label
):
    row_of = {name: value for name, value in OF_TWO.items() if name != "label"} | cells
    path = tmp_path / f"m{suffix}"
    if suffix == ".csv":
        with path.open("w", newline="") as file:
            texts = [v if isinstance(v, str) else json.dumps(v) for v in row_of.values()]
            csv.writer(file).writerows([[*row_of], texts])
    else:
        write(path, row_of)
    ref = first(path, **options)
    assert (dict(ref.columns or {})[BOX_CLASS_FEATURE], ref.label) == (classes, label)
    used = [name for name, value in cells.items() if value == classes]
    assert not {*used} & {*dict(ref.columns or {})}


@pytest.mark.parametrize(
    ("label", "options"),
    [("b", SEVERAL), (["b"], SEVERAL), ("b", {"label_separator": "|"}), ("b", {})],
)
def test_the_label_of_a_row_with_one_box_is_the_class_of_the_box(tmp_path, label, options):
    path = write(tmp_path / "m.jsonl", one(CORNERS, 0, 0, 1, 1) | {"label": label})
    ref = first(path, **options)
    assert dict(ref.columns or {})[BOX_CLASS_FEATURE] == ["b"]
    assert ref.label == (("b",) if options else "b")
    bare = first(path, **options, **UNDECLARED)
    assert bare.label == ref.label and bare.columns and BOX_CLASS_FEATURE not in bare.columns
    two = "a|b" if "label_separator" in options else ["a", "b"]
    if options:
        with refused("", "label 2", "xmin 1", "drop_column"):
            listed(write(path, one(CORNERS, 0, 0, 1, 1) | {"label": two}), **options)


@pytest.mark.parametrize("names", [SIZES, ("X", "Y", "w", "H")])
def test_a_corner_and_a_size_without_a_format_are_plain_numbers_with_a_warning(tmp_path, names):
    path = write(tmp_path / "m.jsonl", one(names, 7, 8, 90, 80))
    schema = schema_of(InputOptions(str(path)))
    assert schema and [column.name for column in schema.columns] == [*names]
    (said,) = schema.warnings
    assert all(repr(name) in said for name in names) and "--bbox_format xywh" in said
    assert first(path, **XYWH).in_pixels
    texts = schema_of(InputOptions(str(write(path, one(names, "7", "a", "b", "c")))))
    assert texts and not texts.warnings
