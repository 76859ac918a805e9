"""Whole builds of manifests with extra columns: what TFT made of them is in the records."""

from __future__ import annotations

import io
import json
import pathlib

import pytest
from PIL import Image, ImageDraw

from imageshards.index import read_index
from imageshards.verification import command as verify
from tests.support.builds import build, manifest, records_of
from tests.support.built_records import assert_records_are_as_described

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
def rows(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("in")
    lines = []
    for i in range(COUNT):
        draw(folder / f"{i}.jpg", i, orientation=6 if i % 3 == 0 else 1)
        lines.append(
            json.dumps(
                {
                    "image": f"{i}.jpg",
                    "label": "even" if i % 2 == 0 else "odd",
                    "person": f"p{i // 4}",
                    "age": 20.0 + i,
                    "tokens": list(range(i % 5)),
                    "caption": f'No. {i}, said "hi"\nand left',
                    "meta": [i / 2, -1.0, 0.25],
                    BOX + "xmin": [0.5, 0.0],
                    BOX + "xmax": [0.6, 0.05],
                    BOX + "ymin": [0.2, 0.0],
                    BOX + "ymax": [0.6, 1.0],
                    "image/object/class/label": [7, 8],
                }
            )
        )
    path = folder / "list.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


COLUMNS = (
    f"age:float:zscore,tokens:int[],caption:string,meta:float[3],{BOX}xmin:float[],{BOX}xmax:float[],"
    f"{BOX}ymin:float[],{BOX}ymax:float[],image/object/class/label:int[]"
)


@pytest.fixture(scope="module")
def built(rows, tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("out") / "set"
    assert build("--input", rows, "--output", output, "--image_size", "50", "--columns", COLUMNS,
                 "--group_column", "person", "--splits", "train=0.7,validation=0.3",
                 "--num_shards", "2") == 0  # fmt: skip
    return output


def test_columns_of_every_kind_are_in_the_records_of(built):
    found = records_of(built)
    assert len(found) == COUNT
    for i in range(COUNT):
        record = found[f"{i}.jpg"]
        assert record["tokens"] == list(range(i % 5))
        assert record["caption"] == [f'No. {i}, said "hi"\nand left'.encode()]
        assert record["meta"] == [i / 2, -1.0, 0.25]
    ages = [found[f"{i}.jpg"]["age"][0] for i in range(COUNT)]
    assert sum(ages) == pytest.approx(0, abs=1e-5)
    assert sum(age * age for age in ages) / COUNT == pytest.approx(1, abs=1e-5)


def test_the_manifest_tells_their_types_and_shapes(built):
    features = manifest(built)["features"]
    assert features["age"] == {"dtype": "float32", "shape": []}
    assert features["meta"] == {"dtype": "float32", "shape": [3]}
    assert features["tokens"] == {"dtype": "int64", "shape": None}
    assert features["caption"] == {"dtype": "string", "shape": []}
    assert verify.main([str(built)]) == 0
    assert assert_records_are_as_described(built)  # and the small ones are in the index
    names = read_index(str(built), manifest(built)).column_names
    small = ["age", "caption", "image/object/class/label", "meta", "tokens"]
    assert names[-5:] == small


def test_a_group_is_in_one_split(built):
    found = records_of(built)
    for person in range(COUNT // 4):
        assert len({found[f"{i}.jpg"]["split"] for i in range(4 * person, 4 * person + 4)}) == 1
    assert {record["split"] for record in found.values()} == {"train", "validation"}


def test_boxes_follow_the_picture_and_leave_when_out_of_sight(built):
    """50 x 50 from 200 x 100 by a centre crop: the left quarter and its box are gone."""
    for key, record in records_of(built).items():
        assert record["image/object/class/label"] == [7], key
        (x0,), (x1,) = record[BOX + "xmin"], record[BOX + "xmax"]
        (y0,), (y1,) = record[BOX + "ymin"], record[BOX + "ymax"]
        picture = Image.open(io.BytesIO(record["image/encoded"][0])).convert("RGB")
        middle = picture.getpixel((int((x0 + x1) * 25), int((y0 + y1) * 25)))
        assert isinstance(middle, tuple)
        assert middle[0] > 180 and middle[1] < 90, (key, middle)
        tall = (y1 - y0) > (x1 - x0)
        assert tall != (int(key.split(".")[0]) % 3 == 0)  # EXIF 6 lays it down


def test_a_transform_module_replaces_the_columns(rows, tmp_path):
    module = tmp_path / "mine.py"
    module.write_text(
        "import tensorflow as tf\n"
        "def preprocessing_fn(inputs):\n"
        "    return {'age_in_days': inputs['age'] * 365.0}\n"
    )
    output = tmp_path / "out"
    assert build("--input", rows, "--output", output, "--columns", "age:float", "--image_size",
                 "32", "--transform_module", module, "--no_report") == 0  # fmt: skip
    found = records_of(output)
    assert found["3.jpg"]["age_in_days"] == [23 * 365.0]
    assert "age" not in found["3.jpg"]
