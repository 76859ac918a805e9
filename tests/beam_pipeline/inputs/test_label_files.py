"""Labels in a file for images that no folder labels, and ImageNet's official files."""

import pathlib
import shutil
import tarfile

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that

from beam_pipeline.inputs.label_files import match_labels, read_labels
from beam_pipeline.inputs.transforms import ListImages
from beam_pipeline.options import InputOptions
from tests.support.builds import build, jpeg, manifest, records_of
from tests.support.errors import refused
from tests.support.imagenet import (
    DEVKIT,
    KAGGLE,
    SYNSETS,
    TRAIN,
    VAL,
    draw_imagenet,
    val_name,
    val_synset,
)
from tests.support.listings import listed, put

NAMED = [("v_1.JPEG", "a"), ("v_2.JPEG", "b")]
TEXTS = {
    "ImageId,PredictionString\nv_1,n1 1 2 3 4 n1 -5 6 7 8 \nv_2,n2 1 2 3 4 \n": [
        ("v_1", "n1"), ("v_2", "n2")
    ],
    "v_1.JPEG a\nv_2.JPEG  b\n": NAMED, "v_1.JPEG,a\r\nv_2.JPEG,b\r\n": NAMED,
    "\ufefffile;synset\nv_1.JPEG;a\nv_2.JPEG;b": NAMED,
    "label\tphoto\na\tv_1.JPEG\nb\tv_2.JPEG": NAMED,
    "id,image,class\n7,v_1.JPEG,a\n8,v_2.JPEG,b": NAMED,
    "my cat 1.jpg a\n": [("my cat 1.jpg", "a")], "490\n361\n": [("", "490"), ("", "361")],
    "n01751748\n": [("", "n01751748")],
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_file_of_labels_is_read_in_its_usual_forms(tmp_path, text):
    (tmp_path / "labels").write_text(text)
    assert read_labels(str(tmp_path / "labels")) == TEXTS[text]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"), ("a.jpg x\na.jpg y\n", "twice"), ("a.jpg x\ny\n", "lacks names"),
        ("one,two,three\na,b,c\n", "the columns 'one, two, three'"),
        ("a,b\nc\n", "row 2 has 1 column"),
        ("ImageId,PredictionString\na,n1 1 2 3 4 n2 1 2 3 4\n", "row 2 has not one class"),
        ("file,label\na,\n", "row 2 has not one class"),
    ],
)  # fmt: skip
def test_a_file_that_holds_no_labels_is_refused(tmp_path, text, words):
    (tmp_path / "labels").write_text(text)
    with refused("labels", words, "PredictionString"):
        read_labels(str(tmp_path / "labels"))


KEYS = ["val/v_2.JPEG", "val/v_1.JPEG"]


@pytest.mark.parametrize(
    ("rows", "more"),
    [
        (NAMED, {}), ([("v_1", "a"), ("v_2", "b")], {}), ([("", "a"), ("", "b")], {}),
        ([("val/v_1.JPEG", "a"), ("v_2", "b")], {}),
        ([("CLS-LOC/val/v_1.JPEG", "a"), ("v_2", "b")], {}),
        ([("", "1"), ("", "2")], {"class_names": ["a", "b"]}),
        ([("v_1", "0"), ("v_2", "1")], {"class_names": ["a", "b"]}),
        pytest.param(NAMED, {"known": frozenset("abc")}, id="known"),
    ],
)  # fmt: skip
def test_rows_meet_images_by_path_name_stem_or_order(rows, more):
    found = match_labels(KEYS, rows, "val.csv", **more)
    assert found == ({"val/v_1.JPEG": "a", "val/v_2.JPEG": "b"}, {})


@pytest.mark.parametrize(
    ("keys", "rows", "more", "words"),
    [
        ([], NAMED, {}, ["folders label every image"]),
        (["x.jpg"], NAMED, {}, ["'v_1.JPEG'", "'x.jpg'"]),
        (["a/v_1.JPEG", "b/v_1.JPEG"], NAMED, {}, ["both 'a/v_1.JPEG' and 'b/v_1.JPEG'"]),
        (["v_1.JPEG"], [("a/v_1.JPEG", "a"), ("b/v_1.JPEG", "b")], {}, ["several rows"]),
        (KEYS, [("", "a")], {}, ["1 line, for 2 images", "exclude_glob"]),
        (KEYS, NAMED, {"known": frozenset("a")}, ["the class 'b'", "class_names"]),
        (KEYS, [("", "2"), ("", "2")], {"class_names": ["a", "b", "c"]}, ["with both ends"]),
        (KEYS, [("", "0"), ("", "3")], {"class_names": ["a", "b", "c"]}, ["from 0 to 3"]),
    ],
)
def test_rows_and_images_that_do_not_belong_together_are_refused(keys, rows, more, words):
    with refused("labels", *words):
        match_labels(keys, rows, "val.csv", **more)


def test_what_is_left_over_on_either_side_is_counted():
    found = match_labels([*KEYS, "test/t_1.JPEG"], [*NAMED, ("w", "c")], "val.csv")
    assert found.labels.keys() == {*KEYS}
    said = {"no_label_row": 1, "no_label_row: test/t_1.JPEG": 1, "no_image_of_row: w": 1}
    assert found.skipped == said


@pytest.mark.parametrize("form", ["folder", "tar"])
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("1.jpg 2.jpg", {"1.jpg": None, "2.jpg": None}),
        ("val/1.jpg test/2.jpg", {"val/1.jpg": "val", "test/2.jpg": "test"}),
        ("ILSVRC2012_img_val/1.jpg", {"ILSVRC2012_img_val/1.jpg": None}),
        ("set/train/a/0.jpg set/val/1.jpg", {"train/a/0.jpg": "train", "val/1.jpg": "val"}),
        ("a/0.jpg b/1.jpg stray.jpg", {"a/0.jpg": None, "b/1.jpg": None}),
    ],
)
def test_images_outside_of_class_folders_wait_for_their_labels(tmp_path, form, names, expected):
    put(tmp_path / "in", *names.split())
    path = tmp_path / "in"
    if form == "tar":
        path = pathlib.Path(shutil.make_archive(str(path), "tar", path))
    refs, skipped = listed(path, labels="val.csv")
    assert {key: ref.split for key, ref in refs.items()} == expected
    assert {key: ref.label for key, ref in refs.items() if "/a/" in key or key[0] in "ab"} == {
        key: key.split("/")[-2] for key in expected if "/a/" in key or key[0] in "ab"
    }
    assert skipped.get("outside_class_folders", 0) == names.count("stray")


def test_a_pipeline_of_ones_own_gets_the_labels_from_the_listing(tmp_path):
    put(tmp_path / "in", "1.jpg", "2.jpg", "3.jpg")
    (tmp_path / "labels.txt").write_text("1.jpg a\n2 b\n")

    def check(batches):
        assert {ref.key: ref.label for batch in batches for ref in batch.refs} == {
            "1.jpg": "a", "2.jpg": "b"
        }  # fmt: skip

    with beam.Pipeline(FnApiRunner()) as pipeline:
        source = InputOptions(str(tmp_path / "in"), labels=str(tmp_path / "labels.txt"))
        assert_that((pipeline | ListImages(source)).batches, check)


@pytest.mark.process
class TestImageNet:
    @pytest.fixture(scope="class")
    def official(self, tmp_path_factory):
        return draw_imagenet(tmp_path_factory.mktemp("imagenet") / "in")

    @pytest.mark.parametrize("form", ["kaggle", "devkit by one glob", "folder"])
    @pytest.mark.one_row
    def test_official_files_become_two_splits_with_the_synsets_of_train(
        self, official, tmp_path, form, capsys
    ):
        inputs, labels = [official / TRAIN, official / VAL], official / KAGGLE
        more: list = ["--num_shards", "train=4,validation=2"]
        if form == "devkit by one glob":
            inputs, labels = [official / "ILSVRC2012_img_*.tar"], official / DEVKIT
            more += ["--class_names", ",".join(SYNSETS)]
        if form == "folder":  # as Kaggle's archive unpacks
            inputs = [tmp_path / "CLS-LOC"]
            with tarfile.open(official / VAL) as packed:
                packed.extractall(inputs[0] / "val", filter="data")
            for name in [*(f"train/{s}/{s}_1.JPEG" for s in SYNSETS), "test/t_1.JPEG"]:
                (inputs[0] / name).parent.mkdir(parents=True, exist_ok=True)
                (inputs[0] / name).write_bytes(jpeg(len(name) + ord(name[-8])))
            more = ["--num_shards", "train=1,val=2"]
        flags = [flag for path in inputs for flag in ("--input", path)]
        output = tmp_path / "set"
        assert build(*flags, "--labels", labels, "--output", output, *more, "--image_size", "16",
                     "--no_report") == 0  # fmt: skip
        found, records = manifest(output), records_of(output)
        assert found["classes"] == ([*SYNSETS] if labels.name == DEVKIT else sorted(SYNSETS))
        counts = {split: each["num_records"] for split, each in found["splits"].items()}
        assert counts == {"train": 3 if form == "folder" else 18, "val": 9}
        of_val = {key.rpartition("/")[2]: each for key, each in records.items() if "val_" in key}
        assert {each["split"] for each in of_val.values()} == {"val"}
        for number in range(9):
            assert of_val[val_name(number)]["image/class/text"] == [val_synset(number).encode()]
        for key, each in records.items():
            if "val_" not in key:
                synset = key.rpartition("/")[2].partition("_")[0].encode()
                assert each["image/class/text"] == [synset] and each["split"] == "train"
        assert ("no_label_row 1" in capsys.readouterr().out) == (form == "folder")
