"""Tables as they are on Kaggle: templates of paths, and roles that follow from the cells."""

import os
from typing import Any

import pytest
from pyarrow import csv, parquet

from beam_pipeline.inputs.tables.schema import read_schema
from beam_pipeline.options import InputOptions
from tests.support.errors import refused
from tests.support.listings import listed, put

TAKEN = "is taken as the label"
# A table, its files, --image_path, and label and columns of its first row.
KAGGLE = {
    "APTOS": (
        "id_code,diagnosis\n000c1434d8d7,2\n001639a390f0,0\n0024cdab0c1e,1\n002c21358ce6,0\n",
        "train_images/000c1434d8d7.png train_images/001639a390f0.png train_images/0024cdab0c1e.png",
        "train_images/{id_code}.png", "2", None,
    ),
    "Planet": (
        "image_name,tags\ntrain_0,haze primary\ntrain_1,agriculture clear primary water\n"
        "train_2,clear primary\n",
        "train-jpg/train_0.jpg train-jpg/train_1.jpg train-jpg/train_2.jpg other/train_1.jpg",
        "train-jpg/{image_name}.jpg", ("haze", "primary"), None,
    ),
    "Whale": (
        "Image,Id\n0a.jpg,w_f4\n0b.jpg,new_whale\n0c.jpg,w_98\n0d.jpg,new_whale\n",
        "train/0a.jpg train/0b.jpg train/0c.jpg train/0d.jpg", "train/{Image}", "w_f4", None,
    ),
    "Cassava": (
        "image_id,label\n1000015157.jpg,0\n1000201771.jpg,3\n",
        "train_images/1000015157.jpg train_images/1000201771.jpg", "train_images/{image_id}",
        "0", None,
    ),
    "dogs": (
        "id,breed\n000bec,boston_bull\n001513,dingo\n001cdf,pekinese\n00214f,dingo\n",
        "train/000bec.jpg train/001513.jpg train/001cdf.jpg train/00214f.jpg",
        "train/{id}.jpg", "boston_bull", None,
    ),
    "names": ("filename,class\na.jpg,cat\nb.jpg,dog\n", "a.jpg b.jpg", None, "cat", None),
    "folders": (
        "id,label,sex\n7,cat,f\n8,dog,m\n", "all/cat/7.jpg all/dog/8.jpg README/7.md",
        "all/{label}/{id}.jpg", "cat", {"sex": "f"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KAGGLE)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_of_kaggle_is_read_as_it_is_after_the_sentence_that_proposes_a_template(
    tmp_path, name, suffix
):
    content, files, template, label, columns = KAGGLE[name]
    put(tmp_path, *files.split(), "train.csv")
    path = tmp_path / f"train.{suffix}"
    (tmp_path / "train.csv").write_text(content)
    if suffix == "parquet":
        parquet.write_table(csv.read_csv(tmp_path / "train.csv"), path)
    more: dict[str, Any] = {}
    if template is not None:
        with refused("input", f"image_path='{template}'", "image"):
            listed(path)
        more = {"image_path": template}
    if name == "Planet":
        with refused("input", "label column", "label_column='tags' label_separator=' '"):
            listed(path, **more)
        more |= {"label_column": "tags", "label_separator": " "}
    found, _ = listed(path, **more)
    first = next(iter(found.values()))
    assert (first.label, first.columns) == (label, columns)
    assert len(found) == content.count("\n") - 1
    assert first.key == ("000bec" if name == "dogs" else "7" if name == "folders" else first.key)
    assert os.path.relpath(first.uri, tmp_path) in files.split()
    warnings = read_schema(InputOptions(str(path), **more)).warnings
    assert [TAKEN in text for text in warnings] == [True] * (name in ("APTOS", "Whale", "dogs"))


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("id,label\n7,a\n", {"image_path": "{idd}.jpg"}, ["image_path", "'idd'", "'id', 'label'"]),
        ("id,label\n7,a\n", {"image_path": "../{id}.jpg"}, ["line 2", "'../7.jpg'", "outside"]),
        ("id,label\n,a\n", {"image_path": "{id}.jpg"}, ["line 2", "'id'", "not empty"]),
        # Captions, quantities, counts with gaps and single texts are no classes.
        ("image,text\nx,a red cat\ny,a dog here\nz,a dog here\n", {}, ["label column", "'text'"]),
        ("image,price\nx,0.5\ny,0.5\n", {}, ["no label column"]),
        ("image,age\nx,31\ny,42\nz,31\n", {}, ["no label column"]),
        ("image,name\nx,a\ny,b\n", {}, ["no label column"]),
        ("image,one,two\nx,a,b\ny,a,b\n", {}, ["no label column"]),
    ],
)  # fmt: skip
def test_a_template_and_a_label_that_do_not_fit_are_refused(tmp_path, content, options, words):
    (tmp_path / "m.csv").write_text(content)
    with refused(None, *words):
        listed(tmp_path / "m.csv", **options)


def test_a_template_is_an_address_or_any_path_and_replaces_the_image_column(tmp_path):
    (tmp_path / "m.csv").write_text("id,label,site\n7,a,x\n")
    (ref,) = listed(tmp_path / "m.csv", image_path="https://h/{site}/{id}.jpg")[0].values()
    assert (ref.key, ref.uri, ref.columns) == ("7", "https://h/x/7.jpg", None)
    (ref,) = listed(tmp_path / "m.csv", image_path="/data/{id}.jpg", allow_any_path=True)[
        0
    ].values()
    assert ref.uri == "/data/7.jpg"
    with refused("image_path", "image_column='id'"):
        InputOptions("m.csv", image_path="{id}.jpg", image_column="id")


def test_a_flag_for_the_label_keeps_a_column_from_being_the_key(tmp_path):
    (tmp_path / "m.csv").write_text("Image,Id,sex\na.jpg,w_1,f\nb.jpg,w_1,m\n")
    found, _ = listed(tmp_path / "m.csv", label_column="Id")
    assert {key: ref.label for key, ref in found.items()} == {"a.jpg": "w_1", "b.jpg": "w_1"}
