import base64
import io
import shutil
import subprocess
import sys

import pytest
from PIL import Image

import imageshards as ims
from imageshards.adoption.command import adopt
from imageshards.tfrecord import write_records
from tests.support.dataset_factory import Dataset
from tests.support.external_sets import example, flip_byte, records_of
from tests.support.html_page import Page
from tests.support.pictures import saved


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Dataset(tmp_path_factory.mktemp("data") / "set").directory


def shown(data):
    """The page of an object; its pictures are inside, and it asks for nothing else."""
    html = data._repr_html_()
    assert "http" not in html and "url(" not in html
    page = Page(html)
    for picture in page.all("img"):
        prefix, _, encoded = str(picture["src"]).partition(",")
        assert prefix == "data:image/jpeg;base64"
        Image.open(io.BytesIO(base64.b64decode(encoded))).load()
    return page


def words_of(page):
    """The text, that of the style sheet aside, with one space between words."""
    return " ".join((page.text.partition("}\n\n")[2] or page.text).split())


def captions(page):
    return [str(picture["alt"]) for picture in page.all("img")]


def test_a_dataset_shows_its_splits_classes_and_pictures(made):
    data = ims.open(made)
    page = shown(data)
    # The first records of three shards with six records each.
    names = data.index("train")["class_name"].to_pylist()
    assert captions(page) == [*names[0:3], *names[6:9], *names[12:14]]
    words = words_of(page)
    assert f"Data '{made}'" in words and "16 x 16 pixels" in words
    assert "train18 records" in words and "validation12 records" in words
    assert "classtrainvalidation" in words and "cat96" in words and "dog96" in words


def test_many_classes_are_cut_and_names_are_escaped(tmp_path):
    classes = ["<script>alert(1)</script>", '"quoted', *(f"class {i}" for i in range(28))]
    made = Dataset(tmp_path, {"train": 2}, per_shard=30, classes=sorted(classes))
    data = ims.open(made.directory)
    page = shown(data)
    assert not page.all("script") and "and 10 more" in page.text
    assert captions(page) == 2 * list(data.classes[:4])  # of two shards


@pytest.mark.parametrize("damage", ["record", "shard", "index", "picture", "all"])
def test_table_is_shown_without_pictures_that_cannot_be_read(made, tmp_path, damage):
    copy = shutil.copytree(made, tmp_path / "copy")
    data = ims.open(copy)
    shard = copy / "train-00000-of-00003.tfrecord"
    if damage == "record":
        flip_byte(shard, records_of(shard)[2].offset_bytes + 30)
    elif damage == "picture":
        shard.write_bytes(shard.read_bytes().partition(b"\xff\xd8")[0])
    elif damage == "shard":
        shard.unlink()
    else:
        shutil.rmtree(copy / "index" if damage == "index" else copy)
    left = {"index": 0, "record": 7, "all": 0}.get(damage, 5)
    page = shown(data)
    assert len(page.all("img")) == left
    assert "cat" in page.text


def test_adopted_records_show_pngs_with_their_labels(tmp_path):
    png = saved(Image.new("RGB", (40, 20), (200, 30, 30)), "PNG")
    rows = [(png, 1), (png, 2), (png, 1), (b"none", 2)]
    records = [example({"image": picture, "label": label}) for picture, label in rows]
    write_records(tmp_path / "train-00000-of-00001.tfrecord", records)
    adopt(str(tmp_path), label_offset=1, class_names=("red", "blue"))
    page = shown(ims.open(tmp_path))
    assert captions(page) == ["red", "blue", "red"]


@pytest.mark.process
def test_notebook_and_source_load_neither_tensorflow_nor_beam(made):
    code = (
        f"import sys, imageshards as ims\ndata = ims.open({str(made)!r})\n"
        "assert data._repr_html_().count('<img') == 8\n"
        "assert repr(data.train(batch_size=2)) and repr(data.evaluation(batch_size=2))\n"
        "assert data.source('train', decode=True)[17]['image'].shape\n"
        "assert not {'tensorflow', 'keras', 'apache_beam', 'torch', 'grain'} & {*sys.modules}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
