"""Whole builds of manifests with extra columns: what TFT made of them is in the records."""

import csv
import io
import json
import math
import pathlib

import numpy as np
import pytest
from PIL import Image, ImageDraw

from imageshards.index import read_index
from tests.support.builds import build_set, manifest, records_of, shard_bytes
from tests.support.built_records import assert_records_are_as_described
from tests.support.html_page import Page
from tests.support.manifests import typed

pytestmark = pytest.mark.process

COUNT = 24
BOX = "image/object/bbox/"


def draw(path: pathlib.Path, i: int, orientation: int = 1) -> None:
    """A grey picture, 200 x 100, with a red rectangle at (0.5..0.6, 0.2..0.6) as stored."""
    image = Image.new("RGB", (200, 100), (90 + i, 90 + i, 90 + i))
    ImageDraw.Draw(image).rectangle((100, 20, 119, 59), fill=(250, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(path, quality=95, exif=exif)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("in")
    boxes = {"xmin": [0.5, 0.0], "xmax": [0.6, 0.05], "ymin": [0.2, 0.0], "ymax": [0.6, 1.0]}
    rows = [
        {
            "image": f"{i}.jpg",
            "label": "even" if i % 2 == 0 else "odd",
            "age": 20.0 + i,
            "tokens": list(range(i % 5)),
            "caption": f'No. {i}, said "hi"\nand left',
            "meta": [i / 2, -1.0, 0.25],
            **{BOX + side: values for side, values in boxes.items()},
            "image/object/class/label": [7, 8],
        }
        for i in range(COUNT)
    ]
    for i in range(COUNT):
        draw(folder / f"{i}.jpg", i, orientation=6 if i % 3 == 0 else 1)
    path = folder / "list.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    columns = ["age:float:zscore,tokens:int[],caption:string,meta:float[3]"]
    columns += [f"{BOX}{side}:float[]" for side in boxes] + ["image/object/class/label:int[]"]
    flags = ["--image_size", "50", "--columns", ",".join(columns),
             "--splits", "train=0.7,validation=0.3", "--num_shards", "2"]  # fmt: skip
    return build_set(path, folder / "set", *flags)


def test_columns_of_every_kind_are_in_the_records_and_small_ones_in_the_index(built):
    found = records_of(built)
    assert len(found) == COUNT
    for i in range(COUNT):
        record = found[f"{i}.jpg"]
        assert record["caption"] == [f'No. {i}, said "hi"\nand left'.encode()]
        assert (record["tokens"], record["meta"]) == ([*range(i % 5)], [i / 2, -1.0, 0.25])
    ages = np.array([found[f"{i}.jpg"]["age"][0] for i in range(COUNT)])
    assert (ages.mean(), ages.std()) == pytest.approx((0, 1), abs=1e-5)
    assert assert_records_are_as_described(built)
    names = read_index(str(built), typed(manifest(built))).column_names
    of_boxes = ["image/object/class/label", "image/object/class/text"]
    assert names[-6:] == ["age", "caption", *of_boxes, "meta", "tokens"]


def test_boxes_follow_the_picture_and_leave_when_out_of_sight(built):
    """50 x 50 from 200 x 100 by a centre crop: the left quarter and its box are gone."""
    for key, record in records_of(built).items():
        assert record["image/object/class/label"] == [7], key
        (x0,), (x1,) = record[BOX + "xmin"], record[BOX + "xmax"]
        (y0,), (y1,) = record[BOX + "ymin"], record[BOX + "ymax"]
        picture = np.asarray(Image.open(io.BytesIO(record["image/encoded"][0])).convert("RGB"))
        red, green, _ = picture[int((y0 + y1) * 25), int((x0 + x1) * 25)]
        assert red > 180 and green < 90, key
        is_tall = (y1 - y0) > (x1 - x0)
        assert is_tall != (int(key.split(".")[0]) % 3 == 0)  # EXIF 6 lays it down


PRICES = [None, 1, 2.5, "N/A", 4, 10, "", 7, 2, 3, 5, 6]
GRADES = [3, None, 1, 2, 0, 4, 1, 2, 3, 0, 1, 2]


@pytest.mark.long
def test_missing_numbers_are_nan_and_others_are_scaled(tmp_path, capsys):
    with open(tmp_path / "list.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "label", "price", "grade", "year", "note"])
        for i, (price, grade) in enumerate(zip(PRICES, GRADES, strict=True)):
            draw(tmp_path / f"{i}.jpg", i)
            rows.writerow([f"{i}.jpg", "ab"[i % 2], price, grade, 2000 + i, "N/A"])
    flags = ["--image_size", "32", "--columns", "price:float:zscore,grade:float:minmax"]
    build_set(tmp_path / "list.csv", tmp_path / "set", *flags, "--plan_only")
    line = "columns: price float, 3 missing; grade float, 1 missing; year int; note text"
    assert f"{line}, 1\n  value\n" in capsys.readouterr().out
    output = build_set(tmp_path / "list.csv", tmp_path / "set", *flags)
    line = "columns: grade float, 1 missing; note text; price float, 3 missing; year int"
    assert f"{line}\n" in capsys.readouterr().out
    said = manifest(output)
    assert said["features"]["price"] == {"dtype": "float32", "shape": []}
    assert said["source"]["missing"] == {"price": 3, "grade": 1}
    found = records_of(output)
    for name, given in (("price", PRICES), ("grade", GRADES)):
        values = np.array([v if isinstance(v, float | int) else math.nan for v in given])
        if name == "price":
            values = (values - np.nanmean(values)) / np.nanstd(values)
        else:
            values = (values - np.nanmin(values)) / (np.nanmax(values) - np.nanmin(values))
        held = np.array([found[f"{i}.jpg"][name][0] for i in range(len(given))])
        np.testing.assert_allclose(held, values, rtol=1e-6)
        index = read_index(str(output), typed(said), columns=["key", name])
        of_key = dict(zip(index["key"].to_pylist(), index[name].to_pylist(), strict=True))
        assert [of_key[f"{i}.jpg"] is None for i in range(len(given))] == [*np.isnan(values)]
    assert found["3.jpg"]["year"] == [2003] and found["3.jpg"]["note"] == [b"N/A"]
    # It verifies, reports and is copied, its JSON being JSON.
    for path in output.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)
    assert assert_records_are_as_described(output)
    page = Page((output / "report" / "index.html").read_text())
    assert "Missing values, NaN in the records" in page.text and "price" in page.text
    copy = build_set(output, tmp_path / "copy")
    assert manifest(copy)["source"]["missing"] == said["source"]["missing"]
    copied = records_of(copy)
    assert all(repr(copied[key]["price"]) == repr(found[key]["price"]) for key in found)


# File of the table, picture, class, sides in pixels of the stored picture; in the order of boxes.
BOXES: list[tuple[str, int, str, tuple[int, ...]]] = [
    ("a", 0, "traffic light", (50, 25, 150, 75)),
    ("a", 2, "dog", (0, 0, 100, 50)),
    ("a", 0, "dog", (100, 50, 150, 100)),
    ("a", 3, "", ()),
    ("b", 1, "cat", (50, 0, 100, 100)),
    ("b", 0, "cat", (75, 25, 125, 50)),
    ("b", 1, "bird", (200, 0, 250, 50)),  # outside of the picture
]


@pytest.mark.long
def test_rows_of_one_box_each_make_the_shards_that_lists_in_json_lines_make(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    rows: dict[int, dict] = {}
    for i in range(4):
        draw(folder / f"{i}.jpg", i, orientation=6 if i % 2 else 1)
        rows[i] = {"image": f"{i}.jpg", "label": [], "note": f"No. {i}"}
        rows[i] |= {BOX + side: [] for side in ("xmin", "xmax", "ymin", "ymax")}
        rows[i]["image/object/class/text"] = []
    for _, i, name, sides in BOXES:
        if sides:
            for side, pixels in zip(("xmin", "ymin", "xmax", "ymax"), sides, strict=True):
                rows[i][BOX + side].append(pixels / (200 if side[0] == "x" else 100))
            rows[i]["image/object/class/text"].append(name)
            rows[i]["label"] = sorted({*rows[i]["label"], name})
    (folder / "list.jsonl").write_text("\n".join(map(json.dumps, rows.values())) + "\n")
    options = ("--label", "several", "--image_size", "50", "--resize_mode", "pad",
               "--splits", "train=1", "--no_report")  # fmt: skip
    lists = build_set(folder / "list.jsonl", tmp_path / "lists", *options)
    assert len(records_of(lists)["0.jpg"]["image/object/class/text"]) == 3
    for file in "ab":
        lines = ["image,class,note,XMin,YMin,XMax,YMax"]
        for of, i, name, sides in BOXES:
            cells = ",".join(map(str, sides)) or ",,,"
            lines += [f"{i}.jpg,{name},No. {i},{cells}"] * (of == file)
        (folder / f"{file}.csv").write_text("\n".join(lines) + "\n")
    output = build_set(folder / "*.csv", tmp_path / "rows", "--bbox_format", "pixels", *options)
    assert shard_bytes(output) == shard_bytes(lists)
    for made in (output, lists):
        said = manifest(made)
        assert said["source"]["notes"]["boxes_dropped"] == 1
        assert any("1 picture had boxes outside" in warning for warning in said["warnings"])
        outside = records_of(made)["1.jpg"]
        assert outside["image/class/text"] == outside["image/object/class/text"] == [b"cat"]
