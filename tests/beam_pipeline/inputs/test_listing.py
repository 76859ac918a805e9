"""From an input to references: layouts, labels, splits and keys."""

import collections
import contextlib
import functools
import json
import os
import pathlib
import shutil
import unicodedata

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that
from pyarrow import parquet

from beam_pipeline.images.read import read_images
from beam_pipeline.inputs.listing import listing_tasks
from beam_pipeline.inputs.transforms import ListImages
from beam_pipeline.options import InputOptions
from beam_pipeline.planning.refs import names_of
from imageshards import tables
from tests.support.errors import refused
from tests.support.listings import labels, listed, put
from tests.support.stores import store_uri


def warned_of(path: object, **options) -> dict[str, int]:
    """`reason: name` → how often, of what is named in a warning."""
    return {told: count for told, count in listed(path, **options)[1].items() if ": " in told}


REGEX = {"label_regex": r"^([a-z]+)\."}
NONE, PLUS = {"label": "none"}, {"label_separator": "+"}
WITH_GROUPS = {"label_regex": "^(?:(?P<split>train|val)_)?(?P<group>p[0-9]+)_([a-z]+)"}
SPLIT_FOLDERS = {"layout": "split_folders"}
IN_BOTH = pytest.mark.parametrize("where", [str, store_uri], ids=["here", "store"])


# What is listed: name:label:split:group. A name behind a dash is passed over.
@pytest.mark.parametrize("where", [str, store_uri, "tar", "zip", "gztar"])
@pytest.mark.parametrize(
    ("options", "names", "wrapper", "told"),
    [
        ({}, "train/train/cat/a.jpg:cat:train test/Test/dog/b.jpg:dog:test", "", []),
        ({}, "seg_train/seg_train/cat/a.jpg:cat:train seg_test/seg_test/cat/b.jpg:cat:test", "",
         ["split_of_word"]),
        ({}, "train/images/cat/a.jpg:cat:train val/images/dog/b.jpg:dog:val", "", []),
        ({}, "cat/cat/a.jpg:cat steam_train/steam_train/b.jpg:steam_train", "", []),
        (SPLIT_FOLDERS, "fold1/fold1/cat/a.jpg:cat:fold1 fold2/fold2/dog/b.jpg:dog:fold2", "", []),
        ({}, "cat/a.jpg:cat dog/b/c.JPG:dog", "", []),
        ({}, "train/x.jpg:train bus/y.jpg:bus", "", []),
        ({}, "Train/cat/a.jpg:cat:Train val/dog/c.jpg:dog:val", "", []),
        ({}, "train/cat/a.jpg:cat:train train/dog/b.jpg:dog:train", "", ["given_split"]),
        (SPLIT_FOLDERS, "fold1/cat/a.jpg:cat:fold1 fold2/dog/a.jpg:dog:fold2", "", []),
        ({"extensions": (".raw",)}, "cat/x.raw:cat cat/x.RAW:cat", "", []),
        (REGEX, "cat.0.jpg:cat sub/dog.1.JPG:dog", "", []),
        (REGEX, "train/cat.0.jpg:cat:train val/dog.1.jpg:dog:val", "", []),
        (REGEX | SPLIT_FOLDERS, "fold1/cat.0.jpg:cat:fold1", "", []),
        (REGEX | {"layout": "flat"}, "train/cat.0.jpg:cat val/dog.1.jpg:dog", "", []),
        (WITH_GROUPS, "train_p7_cat.jpg:cat:train:p7 p8_dog.jpg:dog::p8", "", []),
        (NONE, "a.jpg: bus/b.jpg: train/cat/c.jpg::train", "", []),
        (NONE, "set/train/a.jpg::train set/test/b.jpg::test", "", []),
        (REGEX, "set/train/cat.0.jpg:cat:train set/Val/dog.1.jpg:dog:Val", "", []),
        (NONE | SPLIT_FOLDERS, "fold1/a.jpg::fold1", "", []),
        (NONE | {"layout": "class_folders"}, "train/a.jpg:", "", []),
        (PLUS | {"label_regex": "^([a-z+]+)"}, "dog+cat.jpg:cat,dog", "", []),
        (PLUS, "dog+cat/a.jpg:cat,dog dog/a.jpg:dog", "", []),
        ({}, "cat/1.jpg:cat dog/1.jpg:dog -README", "set/a/", []),
        ({}, "train/cat/1.jpg:cat:train test/cat/2.jpg:cat:test", "set-main/", []),
        (SPLIT_FOLDERS, "fold1/cat/1.jpg:cat:fold1 fold2/cat/1.jpg:cat:fold2", "set/", []),
        ({}, "train/cat/1.jpg:cat:train test/dog/1.jpg:dog:test -devkit/a.txt", "", []),
        ({}, "train/cat/1.jpg:cat:train -test/test/1.jpg", "", ["empty_split_folder"]),
        ({}, "cat/train/1.jpg:cat cat/test/2.jpg:cat dog/train/1.jpg:dog", "",
         ["split_below_class"]),
        ({}, "cat/1.jpg:cat -dog/1.txt -top.jpg -top.txt", "", ["empty_class_folder"]),
    ],
)  # fmt: skip
def test_a_tree_gives_the_same_in_whatever_form_it_comes(
    tmp_path, where, options, names, wrapper, told
):
    passed = [each[1:] for each in names.split() if each.startswith("-")]
    wanted = [(*each.split(":"), "", "")[:4] for each in names.split() if each[0] != "-"]
    put(tmp_path, *(f"{wrapper}{name}" for name in [*passed, *(key for key, *_ in wanted)]))
    put((tmp_path / wrapper / wanted[0][0]).parent, "notes.txt", ".hidden.jpg")
    if isinstance(where, str):
        where = functools.partial(shutil.make_archive, f"{tmp_path}-set", where)
    refs, skipped = listed(where(tmp_path), f"{tmp_path}-spool", **options)
    found = [
        (key, ",".join(names_of(ref.label)), ref.split or "", ref.group or "")
        for key, ref in refs.items()
    ]
    assert found == sorted(wanted)
    read = [data for _, data in read_images([*refs.values()], 1000)]
    assert read == [f"{wrapper}{key}".encode() for key in refs]
    plain = sum(count for reason, count in skipped.items() if ":" not in reason)
    assert plain == len(passed) + 2 and skipped["hidden"] == 1
    assert {reason.partition(":")[0] for reason in skipped if ":" in reason} >= {*told}


def packed(folder: pathlib.Path, form: str) -> object:
    """The input of a form with the images of a folder."""
    if form == "table":
        rows = [f"{p},{p.parent.name}" for p in sorted(folder.rglob("*.jpg"))]
        (folder.parent / f"{folder.name}.csv").write_text("\n".join(["image,label", *rows]))
        return folder.parent / f"{folder.name}.csv"
    if form == "parquet":
        pictures = [{"image": b"x", "label": "cat", "id": f"{folder.name}.jpg"}]
        parquet.write_table(pa.Table.from_pylist(pictures), f"{folder}.parquet")
        return f"{folder}.parquet"
    if form == "webdataset":
        for picture in folder.rglob("*.jpg"):
            picture.with_suffix(".cls").write_text("cat")
        return shutil.make_archive(str(folder), "tar", folder)
    if form == "store":
        return store_uri(folder)
    if form == "glob":
        return f"{folder}/*/*.jpg"
    return folder if form == "folder" else shutil.make_archive(str(folder), form, folder)


FORMS = ["folder", "store", "tar", "zip", "table", "parquet", "webdataset", "glob"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train", "val"], ["train", "val"]),
        (["train-0000", "train-0001", "test_00"], ["train", "train", "test"]),
        (["flowers_train", "flowers_test"], ["train", "test"]),
        (["steam_train", "cargo_train"], [None, None]),
        (["one", "two"], [None, None]),
        (["only"], [None]),
        (["ILSVRC2012_img_train", "ILSVRC2012_img_val"], ["train", "val"]),
        (["train"], "train unless drawn"),
        (["val-0001"], "val unless drawn"),
        (["toy_train"], [None]),
    ],
)
@pytest.mark.parametrize("draws", [True, False])
def test_names_of_inputs_say_their_splits(tmp_path, form, names, splits, draws):
    if isinstance(splits, str):  # of a single input; files of the Hub are splits in any case
        splits = [None if draws and form != "parquet" else splits.split()[0]]
    for name in names:
        put(tmp_path / "test" / name, f"cat/{name}.jpg", f"dog/{name}.jpg")
    options: dict = {"allow_any_path": True} if form == "table" else {}
    options |= {"label_regex": "^(.)"} if form == "glob" else {}
    inputs = [packed(tmp_path / "test" / name, form) for name in names]
    refs, told = listed([*inputs], f"{tmp_path}/spool", draws=draws, **options)
    is_told = any(each.startswith("drawn_beside_word") for each in told)
    assert is_told == (not draws and splits[0] is None and "_train" in names[0])
    found = {(ref.source, key.rpartition("/")[2], ref.split) for key, ref in refs.items()}
    assert found == {(i, f"{n}.jpg", s) for i, (n, s) in enumerate(zip(names, splits, strict=True))}


@pytest.mark.parametrize("name", ["train", "ILSVRC2012_img_train"])
@pytest.mark.parametrize("form", ["folder", "tar", "table"])
def test_a_name_that_says_a_split_draws_no_image_of_another_input_into_it(tmp_path, form, name):
    put(tmp_path, "in/train.tar.d/cat/1.jpg", "in/more/cat/2.jpg", "in/more/dog/3.jpg")
    train = shutil.make_archive(f"{tmp_path}/in/{name}", "tar", tmp_path / "in/train.tar.d")
    more = packed(tmp_path / "in/more", form)
    options: dict = {"allow_any_path": True} if form == "table" else {}
    inputs = [InputOptions(train), InputOptions(str(more), **options)]
    with refused("input", f"{name}.tar'", str(more), "splits='train=1'"):
        listed(inputs, draws=False)
    splits = {key.rpartition("/")[2]: ref.split for key, ref in listed(inputs)[0].items()}
    of_name = "train" if name == "train" else None  # a word counts only beside other splits
    assert splits == {"1.jpg": of_name, "2.jpg": None, "3.jpg": None}


def test_class_folders_with_names_of_every_kind(tmp_path):
    nfc, nfd = (unicodedata.normalize(form, "Čmelák") for form in ("NFC", "NFD"))
    names = [
        "bee's nest/a b.jpg", 'say "hi"/x.JPG', f"{nfc}/x.Jpeg", f"{nfd}/x.png", "train/x.webp",
        "a,b/x;y=z.tiff", "#1 100%/x?.bmp", "-x/--input.gif", "cat/deep/deeper/x.jpg", "cat/x.jpg",
        "new\nline/x.jpg", " space /x.jpg", "C[2]/x.jpg", "[misc]/x.jpg", "猫/猫.jpg",
    ]  # fmt: skip
    root = tmp_path / "my [old] set.csv"
    put(root, *names)
    refs, skipped = listed(root)
    assert refs.keys() == set(names)
    for name, ref in refs.items():
        assert ref.label == unicodedata.normalize("NFC", name.split("/")[0])
        assert ref.uri == f"{root}/{name}" and ref.size_bytes == len(name.encode())
    assert skipped == {}


def test_a_label_in_a_file_name_or_table_is_in_one_form_of_unicode(tmp_path):
    nfc, nfd = (unicodedata.normalize(form, "Čmelák") for form in ("NFC", "NFD"))
    put(tmp_path, f"{nfc}.1.jpg", f"{nfd}.2.jpg")
    expected = {f"{nfc}.1.jpg": (nfc, None), f"{nfd}.2.jpg": (nfc, None)}
    for regex in (rf"^({nfc})\.", rf"^({nfd})\."):
        assert labels(tmp_path, label_regex=regex) == expected
    rows = [f"{key},{key[:-6]}" for key in expected]
    (tmp_path / "rows.csv").write_text("\n".join(["image,label", *rows]))
    assert labels(tmp_path / "rows.csv") == expected
    rows = [f"{key},{nfc}|{nfd}" for key in expected]
    (tmp_path / "rows.csv").write_text("\n".join(["image,label", *rows]))
    several = dict.fromkeys(expected, ((nfc,), None))
    assert labels(tmp_path / "rows.csv", label_separator="|") == several


UNCLEAR = ["train/cat/x.jpg val/cat/x.jpg devkit/a.jpg", "train/x.jpg test/y.jpg"]


@pytest.mark.parametrize("names", [*UNCLEAR, "train/cat/x.jpg bus/x.jpg"])
def test_folders_that_may_be_splits_or_classes_need_a_layout(tmp_path, names):
    put(tmp_path, *names.split())
    with refused("input", "layout='split_folders'", "layout='class_folders'"):
        listed(tmp_path)
    assert labels(tmp_path, layout="class_folders")[names.split()[0]] == ("train", None)


@pytest.mark.parametrize(
    ("names", "path", "options", "words"),
    [
        ([], "none", {}, ["cannot be listed (No such file"]),
        (["x.jpg"], "x.jpg", {}, ["cannot be listed (Not a directory)", ".csv"]),
        (["x.jpg"], ".", {}, ["no class folder", "ROOT/<class>", "label_regex"]),
        (["x.jpg"], ".", {"layout": "flat"}, ["flat", "label_regex"]),
        (["x.jpg"], ".", {"label_regex": "^(cat)"}, ["label_regex", "'x.jpg'", "match"]),
    ],
)
def test_an_input_without_labels_is_refused(tmp_path, names, path, options, words):
    put(tmp_path, *names)
    with refused(None, *words):
        listed(f"{tmp_path}/{path}".removesuffix("/."), **options)


def test_in_a_pipeline_odd_names_survive_and_what_is_passed_over_is_counted(tmp_path):
    put(tmp_path, "cat/x.jpg", "dog/notes.txt", "dog/y.jpg", "stray.jpg")
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    with open(os.fsencode(tmp_path) + b"/\xff/\xfe.jpg", "wb"):
        pass

    def check_refs(batches):
        (batch,) = batches  # of three small folders
        labels = {ref.key: ref.label for ref in batch.refs if os.path.exists(ref.uri)}
        odd = {"\\udcff/\\udcfe.jpg": "\\udcff"}
        assert labels == odd | {"cat/x.jpg": "cat", "dog/y.jpg": "dog"}

    def check_skipped(found):
        assert sum(map(collections.Counter, found), collections.Counter[str]()) == {
            "not_an_image_name": 2,
            "outside_class_folders": 1,
        }

    def check_rows(batches):
        (ref,) = (ref for batch in batches for ref in batch.refs)
        assert (ref.key, ref.label, ref.columns) == ("a.jpg", "cat", {"age": 3})

    (tmp_path / "rows.csv").write_text("image,label,age\na.jpg,cat,3\n")
    with beam.Pipeline(FnApiRunner()) as pipeline:
        result = pipeline | ListImages(InputOptions(str(tmp_path)))
        assert_that(result.batches, check_refs, "refs")
        assert_that(result.skipped, check_skipped, "skipped")
        table = pipeline | "Table" >> ListImages(InputOptions(str(tmp_path / "rows.csv")))
        assert_that(table.batches, check_rows, "rows")  # the schema is found


@pytest.mark.parametrize(
    ("options", "label"),
    [({"label": "several"}, ("1", "10")), (NONE, None), (NONE | {"label_column": "label"}, None)],
)
def test_boxes_in_several_files_are_one_reference(tmp_path, monkeypatch, options, label):
    monkeypatch.setattr(tables, "_PART_ROWS", 2)
    for name, images in (("b", "xyxz"), ("a", "yxy")):
        first = 10 * (name == "b")
        rows = [
            {"image": image, "note": image, "image/object/number": first + i}
            | dict.fromkeys(("xmin", "xmax", "ymin", "ymax"), 0.5 if image != "z" else None)
            | {"label": first + i % 2 if image != "z" else None}
            for i, image in enumerate(images)
        ]
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet", 1)
    source = InputOptions(str(tmp_path / "*.parquet"), **options)
    assert len(list(listing_tasks(source))) > 2

    def check(batches):
        refs = {ref.key: ref for batch in batches for ref in batch.refs}
        assert sum(map(len, batches)) == len(refs) == 3
        found = {key: dict(ref.columns) for key, ref in refs.items()}
        assert found["x"]["image/object/number"] == [1, 10, 12]
        assert found["x"]["image/object/class/text"] == ["1", "10", "10"]
        assert found["y"]["image/object/number"] == [0, 2, 11]
        assert [found[key]["image/object/bbox/xmin"] for key in "xyz"] == [[0.5] * 3, [0.5] * 3, []]
        assert all(columns["note"] == key for key, columns in found.items())
        assert [refs[key].label for key in "xz"] == [label, label and ()]

    with beam.Pipeline(FnApiRunner()) as pipeline:
        assert_that((pipeline | ListImages(source)).batches, check)


def dataset(folder: pathlib.Path) -> None:
    """What a build leaves, as far as a listing looks at it."""
    put(folder, "report/index.html", "train-00000-of-00001.tfrecord", "features.json")
    found = {"format_version": 1, "splits": {}, "fingerprint": "", "classes": []}
    (folder / "manifest.json").write_text(json.dumps(found))


@IN_BOTH
@pytest.mark.parametrize("place", ["shards", "train/cat/deep/shards"])
def test_a_dataset_among_the_images_is_no_split_and_no_class(tmp_path, where, place):
    put(tmp_path, "train/cat/cat.a.png", "val/cat/cat.b.png")
    dataset(tmp_path / place)
    path = where(tmp_path)
    expected = {"train/cat/cat.a.png": ("cat", "train"), "val/cat/cat.b.png": ("cat", "val")}
    assert labels(path) == labels(f"{path}/**.png", **REGEX) == expected
    assert warned_of(path) == {"given_split: train": 1, "given_split: val": 1}


@IN_BOTH
@pytest.mark.parametrize(("pattern", "options"), [("", {}), ("", REGEX), ("/*/*.png", REGEX)])
def test_a_finished_dataset_is_no_input(tmp_path, where, pattern, options):
    dataset(tmp_path)
    with refused("input", "layout='dataset'"):
        listed(where(tmp_path) + pattern, **options)


@pytest.mark.parametrize(
    ("names", "path", "options", "closed"),
    [
        ("cat/a.jpg dog/b.jpg dog/deep/c.jpg", "", {}, "dog"),
        ("cat/a.jpg cat/deep/b.jpg", "", {}, "cat/deep"),
        ("train/cat/a.jpg val/cat/b.jpg", "", SPLIT_FOLDERS, "val"),
        ("a.jpg b/c.jpg", "", NONE, "b"),
        ("a/x.jpg b/z.jpg", "/*/*.jpg", NONE, "b"),
    ],
)
def test_a_closed_folder_is_named(tmp_path, nobody_closes, names, path, options, closed):
    put(tmp_path, *names.split())
    nobody_closes(closed)
    refs, skipped = listed(f"{tmp_path}{path}", **options)
    assert names.split()[0].endswith(*refs) and len(refs) == 1
    assert skipped[f"unreadable_folder: {tmp_path}/{closed}"] == 1


@pytest.mark.parametrize(
    ("path", "options"), [("", {}), ("", NONE), ("/*/*.jpg", NONE), ("/a", NONE)]
)
def test_an_input_of_closed_folders_is_refused(tmp_path, nobody_closes, path, options):
    put(tmp_path, "a/x.jpg", "b/y.jpg")
    nobody_closes("a", "b")
    with refused("input", f"'{tmp_path}/"):
        listed(f"{tmp_path}{path}", **options)


PHONES = "cat/a.jpg cat/b.HEIC cat/c.heic dog/d.NEF dog/notes.txt"
NO_DOG, NEF = "empty_class_folder: dog", "unread_format: .nef"


@IN_BOTH
@pytest.mark.parametrize(
    ("names", "options", "told"),
    [
        ("cat/x.jpg dog/z.jpg dog/a.txt", {}, []),
        ("Train/cat/x.jpg val/cat/x.jpg a.txt", {}, ["given_split: Train", "given_split: val"]),
        (PHONES, {"extensions": (".jpg",)}, [NO_DOG, *["unread_format: .heic"] * 2, NEF]),
        (PHONES, {}, [NO_DOG, NEF]),  # the extra that reads HEIC is installed
        (
            "train/cat/a.jpg val/cat/a.txt test/.a.jpg",
            SPLIT_FOLDERS,
            ["empty_class_folder: val/cat", "empty_split_folder: test", "given_split: train"],
        ),
    ],
)
def test_what_deserves_a_warning_is_named(tmp_path, where, names, options, told):
    put(tmp_path, *names.split())
    assert warned_of(where(tmp_path), **options) == collections.Counter(told)


@IN_BOTH
@pytest.mark.parametrize(
    ("names", "is_refused"),
    [
        ("images/1.jpg images/2.jpg masks/1.png masks/2.png", True),
        ("train/images/1.jpg train/masks/1_mask.png val/images/3.jpg val/masks/3_mask.png", True),
        ("JPEGImages/1.jpg SegmentationClass/1.png Annotations/1.xml", True),
        ("images/1.jpg labels/1.txt", True),
        ("images/1.jpg masks/7.jpg", False),
        ("masks/1.jpg hats/1.jpg", False),
        ("images/1.jpg masks/1.png cat/1.jpg", False),
    ],
)
def test_masks_beside_their_images_are_no_class(tmp_path, where, names, is_refused):
    put(tmp_path, *names.split())
    with refused("input", "annotations") if is_refused else contextlib.nullcontext():
        assert labels(where(tmp_path))
