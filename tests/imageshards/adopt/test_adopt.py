"""TFRecords that others wrote: Kaggle's, tf-slim's ImageNet, and what is asked for or refused."""

import gzip
import json
import re

import pytest

from imageshards import storage
from imageshards.adopt import AdoptOptions, adopt
from imageshards.adopt.command import main
from imageshards.duplicates import command as duplicates
from imageshards.errors import UserError
from imageshards.index import read_index
from imageshards.manifest import load_manifest, shard_path, shards_of
from imageshards.reporting import command as report
from imageshards.tfrecord import write_records
from imageshards.verification.command import verify
from tests.support.dataset_factory import Dataset
from tests.support.external_sets import (
    example,
    flip_byte,
    jpeg,
    records_of,
    write_kaggle,
    write_slim,
)
from tests.support.html_page import Page

TEXTS = {1: "tench", 2: "crane", 3: "crane"}
SCALAR = {"dtype": "string", "shape": []}


@pytest.fixture
def kaggle(tmp_path):
    """`flowers00-230.tfrec`, features `image`, `class`, `id`; a test split without labels."""
    root = tmp_path / "kaggle"
    write_kaggle(root / "train", {"00-7.tfrec": 7, "01-5.tfrec": 5})
    write_kaggle(root / "val", {"00-7.tfrec": 3})
    write_kaggle(root / "test", {"00-2.tfrec": 2}, **{"class": "number"})
    return root


@pytest.fixture
def slim(tmp_path):
    """ImageNet: 1-based labels, names without endings, one text for two classes."""
    shards = {
        "train-00000-of-00002": [1, 2, 3, 1],
        "train-00001-of-00002": [3, 3, 1],
        "validation-00000-of-00001": [2, 1],
    }
    write_slim(tmp_path / "slim", shards, TEXTS)
    return tmp_path / "slim"


def counts_of(manifest):
    return {n: [s["num_records"] for s in e["shards"]] for n, e in manifest["splits"].items()}


def test_folders_are_splits_and_usual_names_are_found(kaggle, capsys):
    told = adopt(str(kaggle), options=AdoptOptions(class_names=("rose", "tulip", "daisy")))
    assert told == load_manifest(str(kaggle), adopted=True)
    assert counts_of(told) == {"train": [7, 5], "val": [3]}
    assert told["classes"] == ["rose", "tulip", "daisy"]
    assert told["adopted"] == {"image": "image", "label": "class", "filename": "id", "text": None}
    assert told["features"]["class"] == {"dtype": "int64", "shape": []}
    assert told["image"] == {"size": [32, 40], "mode": "exact", "channels": 3}
    first = told["splits"]["train"]["shards"][0]
    assert first["classes"] == {"rose": 3, "tulip": 2, "daisy": 2} and first["folder"] == "train"
    assert "split test is left out, since its records have no feature class" in (
        capsys.readouterr().err
    )


def test_every_record_has_a_row_that_leads_to_it_and_names_its_class(slim, capsys):
    adopt(str(slim))
    assert "begin at 1" in capsys.readouterr().err
    told = adopt(str(slim), options=AdoptOptions(label_offset=1))
    assert (told["first_label"], told["classes"]) == (1, ["tench", "crane 1", "crane 2"])
    assert told["features"]["image/object/bbox/xmin"] == {"dtype": "float32", "shape": None}
    rows = read_index(str(slim), told).to_pylist()
    assert [row["label"] for row in rows] == [1, 2, 3, 1, 3, 3, 1, 2, 1]
    assert [row["class_name"] for row in rows][:3] == ["tench", "crane 1", "crane 2"]
    assert [row["key"] for row in rows][:2] == ["n00000001_0.JPEG", "n00000002_1.JPEG"]
    assert {(row["height"], row["width"]) for row in rows} == {(32, 40)}
    for row, record in zip(rows, records_of(slim / "train-00000-of-00002"), strict=False):
        assert row["offset"] == record.offset_bytes


def test_records_are_pointed_at_and_the_fingerprint_sees_changes_but_not_places(slim, tmp_path):
    before = sorted(path.name for path in slim.iterdir())
    out, one = tmp_path / "out", AdoptOptions(label_offset=1)
    assert main([str(slim), "--output", str(out), "--label_offset", "1"]) == 0
    assert sorted(path.name for path in slim.iterdir()) == before
    told = load_manifest(str(out), adopted=True, records_root=slim)
    shards = [shard for _, shard in shards_of(told)]
    assert {shard["folder"] for shard in shards} == {str(slim)}
    assert all(storage.exists(shard_path(str(out), shard)) for shard in shards)
    assert (out / "index" / "train-00001.parquet").exists()
    assert adopt(str(slim), options=one)["fingerprint"] == told["fingerprint"]
    named = AdoptOptions(label_offset=1, class_names=("tench", "crane 1", "b"))
    assert adopt(str(slim), options=named)["fingerprint"] != told["fingerprint"]
    write_slim(slim, {"train-00001-of-00002": [1, 3, 3]}, TEXTS)
    assert adopt(str(slim), options=one)["fingerprint"] != told["fingerprint"]


def test_splits_are_given_by_folders_and_globs(kaggle):
    train, other = f"train={kaggle}/train/00*", f"validation={kaggle}/train/01*"
    assert main([str(kaggle), "--split", train, "--split", other]) == 0
    told = load_manifest(str(kaggle), adopted=True)
    assert counts_of(told) == {"train": [7], "validation": [5]}


def adopted(folder, *records, name="a.tfrecord"):
    """The manifest of a file of such records, and their rows."""
    write_records(str(folder / name), map(example, records))
    told = adopt(str(folder))
    return told, read_index(str(folder), told).to_pydict()


def test_labels_as_texts_are_the_classes_and_a_broken_picture_is_left_to_training(tmp_path):
    pictures = {"wolf": jpeg(), "ant": b"\xff\xd8\xffnothing"}
    records = [{"image": pictures[n], "label": n} for n in ("wolf", "ant", "wolf")]
    told, rows = adopted(tmp_path, *records)
    assert told["classes"] == ["ant", "wolf"] and told["features"]["label"] == SCALAR
    assert rows["label"] == [1, 0, 1] and rows["key"][0] == "a.tfrecord#0"
    assert told["image"]["size"] is None and rows["width"] == [40, 0, 40]


def test_lengths_of_all_records_make_a_shape(tmp_path):
    least = {"image": jpeg(), "label": 0}
    records = [least | {"box": [0.5] * 4, "tags": [1] * i, "none": []} for i in range(40)]
    assert adopted(tmp_path, *records, least)[0]["features"] == {
        "box": {"dtype": "float32", "shape": None},
        "image": SCALAR,
        "label": {"dtype": "int64", "shape": []},
        "tags": {"dtype": "int64", "shape": None},
    }


def test_a_build_does_not_write_over_shards_of_others(slim):
    with pytest.raises(UserError, match=f"write it by imageshards adopt {slim}"):
        load_manifest(str(slim), adopted=True)
    adopt(str(slim), options=AdoptOptions(label_offset=1))
    with pytest.raises(UserError, match="TFRecords that others wrote, .*; expected what imagesh"):
        load_manifest(str(slim), "--output")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--feature_map", "picture=image"], "received 'picture'; expected NAME=FEATURE"),
        (["--feature_map", "image"], "expected NAME=VALUE, for example image=image_raw"),
        (["--feature_map", "image=imag"], "have not; expected .*, one string .*: id, image"),
        (["--feature_map", "image=class"], "received image=class, which the records of .* have no"),
        (["--feature_map", "image=id"], "feature 'id' holds no encoded picture"),
        (["--class_names", "a,a,b"], "expected every name once"),
        (["--class_names", "a,b"], "record 2 of .* has class 2; expected 0 to 1 .*names"),
        (["--label_offset", "1"], "record 0 of .* has class 0; expected 1 to 2 .* correct it"),
        (["--label_offset", "-1"], "label_offset received -1; expected at least 0"),
        (["--split", "train=none/"], "--split received .*none', where there is no TFRecord"),
        (["--split", "train"], "--split received 'train'; expected NAME=VALUE"),
        (["--split", "a={0}/train", "--split", "b={0}/train"], "00-7.tfrec twice; expected every"),
        (["--split", "a b={0}/train"], "--split received 'a b'; expected the name of a split"),
    ],
)
def test_a_wrong_flag_is_refused_in_a_sentence(kaggle, capsys, flags, sentence):
    assert main([str(kaggle), *(flag.format(kaggle) for flag in flags)]) == 2
    err = capsys.readouterr().err
    assert re.search(sentence, err), err
    assert not (kaggle / "manifest.json").exists()


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        ({"picture": jpeg(), "label": 0}, "no feature is known to be the image; .*--feature_map"),
        ({"image": jpeg(), "label": 20210101}, "label is up to 20210101; expected class ids"),
        ({"image": b"pixels", "label": 0}, "holds no encoded picture"),
    ],
)
def test_records_that_are_none_to_train_on(tmp_path, payload, sentence):
    with pytest.raises(UserError, match=sentence):
        adopted(tmp_path, payload)


def test_class_names_in_another_order_than_the_texts_are_refused(tmp_path):
    write_slim(tmp_path, {"train-00000-of-00001": [1, 2, 1]}, {1: "ant", 2: "bee"})
    with pytest.raises(UserError, match="class 0 is 'bee', but most records .* text 'ant'"):
        adopt(str(tmp_path), options=AdoptOptions(label_offset=1, class_names=("bee", "ant")))
    assert adopt(str(tmp_path), options=AdoptOptions(label_offset=1))["classes"] == ["ant", "bee"]


def _flip(path):
    flip_byte(path, 60)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def _compress(path):
    path.write_bytes(gzip.compress(path.read_bytes()))


def _broken_label(path):
    write_records(str(path), [example({"image/encoded": jpeg(), "image/class/label": [1, 2]})])


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_flip, "train-00001-of-00002, record 0 at byte 0: the payload's checksum is wrong; exp"),
        (_cut, "00002, record 2 at byte .*: the file ends inside the record .*--split NAME=GLOB"),
        (_broken_label, "record 0 at byte 0: it has no feature image/class/label with one value"),
        (_compress, "00001-of-00002 is compressed with gzip, .*: gunzip them first"),
        (lambda path: path.write_bytes(b"a text, no TFRecord"), "at byte 0: the checksum of its"),
    ],
    ids=["flipped", "cut", "two labels", "compressed", "text"],
)
def test_a_damaged_file_is_named(slim, damage, sentence):
    damage(slim / "train-00001-of-00002")
    with pytest.raises(UserError, match=sentence):
        splits = (("train", f"{slim}/train-*"),)
        adopt(str(slim), options=AdoptOptions(label_offset=1, splits=splits))
    assert not (slim / "manifest.json").exists()


def test_the_manifest_of_a_build_is_not_replaced(tmp_path, capsys):
    made = Dataset(tmp_path / "set")
    assert main([str(made.directory)]) == 2
    assert "a data set that imageshards build wrote; expected TFRecords" in capsys.readouterr().err
    assert load_manifest(str(made.directory)) == made.manifest


def test_an_adopted_data_set_is_checked_and_shown(slim, tmp_path, capsys):
    out = str(tmp_path / "out")
    told = adopt(str(slim), out, AdoptOptions(label_offset=1))
    flag = ["--records_root", str(slim)]
    assert verify(out, workers=1, records_root=slim).ok
    assert report.main([out, *flag]) == duplicates.main([out, "--workers", "1", *flag]) == 0
    page = Page((tmp_path / "out" / "report" / "index.html").read_text())
    shown = [str(image["alt"]) for image in page.all("img")]
    assert len(shown) == 9 and "tench: n00000001_0.JPEG" in shown
    found = json.loads((tmp_path / "out" / "duplicates" / "duplicates.json").read_text())
    assert found["undecodable"] == 0 and found["exact"] == 6  # three pictures, nine times
    flip_byte(slim / "train-00001-of-00002", 60)
    problems = verify(out, workers=1, records_root=slim).problems
    assert {problem.file for problem in problems} == {str(slim / "train-00001-of-00002")}
    assert len(told["splits"]) == 2 and problems[1].record == 0
