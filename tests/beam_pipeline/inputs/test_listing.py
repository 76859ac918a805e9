"""From an input to references: layouts, labels, splits and keys."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import subprocess
import sys
import unicodedata

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that
from pyarrow import parquet

from beam_pipeline.inputs import listing, table_rows
from beam_pipeline.inputs.folders import Skipped
from beam_pipeline.inputs.layout import layout_of
from beam_pipeline.inputs.listing import list_task, listing_tasks, schema_of
from beam_pipeline.inputs.transforms import ListImages
from beam_pipeline.options import InputOptions
from beam_pipeline.planning.refs import ImageRef, RefBatch
from imageshards.errors import UserError, user_error_in
from tests.support.stores import store_uri


def put(root: pathlib.Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def listed(path: object, **options) -> tuple[list[ImageRef], dict[str, int]]:
    """All references, and what was passed over."""
    source = InputOptions(str(path), **options)
    schema = schema_of(source)
    refs: list[ImageRef] = []
    skipped: collections.Counter[str] = collections.Counter()
    for task in listing_tasks(source):
        for found in list_task(task, source, schema):
            if not isinstance(found, Skipped):
                refs += found.refs
            elif not found.name:
                skipped[found.reason] += 1
    return sorted(refs, key=lambda ref: ref.key), dict(skipped)


def names_told(path: object, **options) -> dict[str, list[str]]:
    """Reason → what is named in a warning."""
    source = InputOptions(str(path), **options)
    told: dict[str, list[str]] = collections.defaultdict(list)
    for task in listing_tasks(source):
        for found in list_task(task, source, None):
            if isinstance(found, Skipped) and found.name:
                told[found.reason].append(found.name)
    return dict(told)


def labels(path: object, **options) -> dict[str, tuple[str, str | None]]:
    """Key → (label, split)."""
    return {ref.key: (ref.label, ref.split) for ref in listed(path, **options)[0]}


def test_class_folders_with_names_of_every_kind(tmp_path):
    nfc, nfd = (unicodedata.normalize(form, "Čmelák") for form in ("NFC", "NFD"))
    names = [
        "bee's nest/a b.jpg", 'say "hi"/x.JPG', f"{nfc}/x.Jpeg", f"{nfd}/x.png", "train/x.webp",
        "a,b/x;y=z.tiff", "#1 100%/x?.bmp", "-x/--input.gif", "cat/deep/deeper/x.jpg", "cat/x.jpg",
        "new\nline/x.jpg", " space /x.jpg", "猫/猫.jpg",
    ]  # fmt: skip
    put(tmp_path, *names)
    refs, skipped = listed(tmp_path)
    assert {ref.key for ref in refs} == set(names)
    assert all(ref.label == ref.key.split("/")[0] for ref in refs)
    assert all(ref.uri == f"{tmp_path}/{ref.key}" and ref.size_bytes == 1 for ref in refs)
    assert skipped == {}


def test_names_that_are_not_text_get_keys_and_labels_that_are(tmp_path):
    raw = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(raw)
    with open(raw + b"/\xff.jpg", "wb") as file:
        file.write(b"x")
    put(tmp_path, "dog/x.jpg")
    refs, _ = listed(tmp_path)
    assert [(r.key, r.label) for r in refs] == [
        ("caf\\udce9/\\udcff.jpg", "caf\\udce9"), ("dog/x.jpg", "dog"),
    ]  # fmt: skip
    assert os.path.getsize(refs[0].uri) == 1


def test_files_that_are_not_images_are_counted(tmp_path):
    put(tmp_path, "cat/x.jpg", "cat/notes.txt", "cat/.x.jpg", "cat/._x.jpg", "cat/Thumbs.db",
        "cat/.cache/x.jpg", "cat/jpg", "stray.jpg", ".DS_Store", "cat/dir.jpg/y.jpg")  # fmt: skip
    os.mkfifo(tmp_path / "cat" / "fifo.jpg")
    refs, skipped = listed(tmp_path)
    assert [ref.key for ref in refs] == ["cat/dir.jpg/y.jpg", "cat/x.jpg"]
    assert skipped == {
        "hidden": 4, "not_an_image_name": 3, "outside_class_folders": 1, "special_file": 1,
    }  # fmt: skip


def test_extensions_can_be_chosen(tmp_path):
    put(tmp_path, "cat/x.jpg", "cat/x.raw", "cat/x.RAW")
    assert set(labels(tmp_path, extensions=(".raw",))) == {"cat/x.raw", "cat/x.RAW"}


def test_split_folders_are_told_by_their_names(tmp_path):
    put(tmp_path, "Train/cat/x.jpg", "Train/dog/y.jpg", "val/cat/z.jpg", "val/stray.jpg", "a.txt")
    assert labels(tmp_path) == {
        "Train/cat/x.jpg": ("cat", "Train"),
        "Train/dog/y.jpg": ("dog", "Train"),
        "val/cat/z.jpg": ("cat", "val"),
    }
    assert listed(tmp_path)[1] == {"outside_class_folders": 2}
    assert names_told(tmp_path) == {}
    told = names_told(tmp_path, tells_given_splits=True)
    assert {split for name in told for split in told[name]} == {"Train", "val"}


def test_a_class_may_be_called_train(tmp_path):
    put(tmp_path, "train/x.jpg", "bus/y.jpg")
    assert labels(tmp_path) == {"train/x.jpg": ("train", None), "bus/y.jpg": ("bus", None)}


@pytest.mark.parametrize(
    "names",
    [
        ["train/cat/x.jpg", "val/cat/x.jpg", "devkit/readme.txt"],
        ["train/x.jpg", "test/y.jpg"],
        ["train/cat/x.jpg", "bus/x.jpg"],
    ],
)
def test_folders_that_may_be_splits_or_classes_need_a_layout(tmp_path, names):
    put(tmp_path, *names)
    with pytest.raises(UserError, match="a split or a class; .*split_folders.*class_folders"):
        listed(tmp_path)
    by_class = labels(tmp_path, layout="class_folders")
    assert by_class["/".join(names[0].split("/"))] == ("train", None)


def test_split_folders_may_have_any_name_when_asked_for(tmp_path):
    put(tmp_path, "fold1/cat/x.jpg", "fold2/dog/x.jpg")
    assert labels(tmp_path, layout="split_folders") == {
        "fold1/cat/x.jpg": ("cat", "fold1"),
        "fold2/dog/x.jpg": ("dog", "fold2"),
    }


@pytest.mark.parametrize("as_glob", [False, True])
def test_labels_from_file_names(tmp_path, as_glob):
    put(tmp_path, "cat.0.jpg", "dog.1.JPG", "sub/cat.2.jpg", "notes.txt")
    source = f"{tmp_path}/**" if as_glob else tmp_path
    assert labels(source, label_regex=r"^([a-z]+)\.") == {
        "cat.0.jpg": ("cat", None), "dog.1.JPG": ("dog", None), "sub/cat.2.jpg": ("cat", None),
    }  # fmt: skip
    assert listed(source, label_regex=r"^([a-z]+)\.")[1] == {"not_an_image_name": 1}


def test_a_regex_can_give_split_and_group_too(tmp_path):
    put(tmp_path, "train_p7_cat.jpg", "p8_dog.jpg")
    refs, _ = listed(tmp_path, label_regex="^(?:(?P<split>train|val)_)?(?P<group>p[0-9]+)_([a-z]+)")
    assert [(r.label, r.split, r.group) for r in refs] == [
        ("dog", None, "p8"), ("cat", "train", "p7"),
    ]  # fmt: skip


@pytest.mark.parametrize("layout", ["auto", "split_folders"])
def test_with_a_regex_split_folders_still_give_the_split(tmp_path, layout):
    put(tmp_path, "train/cat.0.jpg", "val/dog.1.jpg")
    assert labels(tmp_path, label_regex=r"^([a-z]+)\.", layout=layout) == {
        "train/cat.0.jpg": ("cat", "train"), "val/dog.1.jpg": ("dog", "val"),
    }  # fmt: skip
    flat = labels(tmp_path, label_regex=r"^([a-z]+)\.", layout="flat")
    assert {split for _, split in flat.values()} == {None}


def test_a_folder_with_brackets_in_its_name_is_a_folder(tmp_path):
    put(tmp_path, "my [old] photos/cat/x.jpg", "my [old] photos/dog/x.jpg")
    assert set(labels(tmp_path / "my [old] photos")) == {"cat/x.jpg", "dog/x.jpg"}


@pytest.mark.parametrize(
    ("names", "path", "options", "words"),
    [
        ([], "none", {}, ["does not exist"]),
        ([], "none", {"label_regex": "(.)"}, ["does not exist"]),
        (["x.jpg"], "x.jpg", {}, ["is a file", ".csv"]),
        (["x.jpg"], "x.jpg", {"label_regex": "(.)"}, ["is a file", ".csv"]),
        (["x.jpg"], ".", {}, ["no class folder", "ROOT/<class>", "--label_regex"]),
        ([], ".", {}, ["no class folder"]),
        ([".hidden/x.jpg"], ".", {}, ["no class folder"]),
        (["x.jpg"], "*.jpg", {}, ["flat", "--label_regex"]),
        (["x.jpg"], ".", {"layout": "flat"}, ["flat", "--label_regex"]),
        (["x.jpg"], ".", {"label_regex": "^(cat)"}, ["--label_regex", "'x.jpg'", "match"]),
        (["m.csv"], "m.csv", {"label_regex": "^(cat)"}, ["--label_regex", "image table"]),
    ],
)
def test_an_input_without_labels_is_one_sentence(tmp_path, names, path, options, words):
    put(tmp_path, *names)
    with pytest.raises(UserError) as error:
        listed(f"{tmp_path}/{path}".removesuffix("/."), **options)
    text = str(error.value)
    assert all(word in text for word in words), text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["cat/a.jpg", "dog/b/c.jpg"], {"cat/a.jpg": ("cat", None), "dog/b/c.jpg": ("dog", None)}),
        (
            ["train/cat/a.jpg", "val/dog/c.jpg"],
            {"train/cat/a.jpg": ("cat", "train"), "val/dog/c.jpg": ("dog", "val")},
        ),
        (["cat/a.jpg", ".trash/b.jpg", "cat/.b.jpg"], {"cat/a.jpg": ("cat", None)}),
    ],
)
def test_folders_of_a_store(tmp_path, names, expected):
    put(tmp_path, *names)
    assert labels(store_uri(tmp_path)) == expected


def test_the_layout_of_a_store_can_be_given(tmp_path):
    put(tmp_path, "train/deep/a.jpg")
    uri = store_uri(tmp_path)
    assert labels(uri, layout="class_folders") == {"train/deep/a.jpg": ("train", None)}
    assert labels(uri, layout="split_folders") == {"train/deep/a.jpg": ("deep", "train")}


def test_a_store_and_a_local_folder_list_the_same_images(tmp_path):
    put(
        tmp_path,
        "a.jpg",
        ".hidden/x/b.jpg",
        "cat/c.jpg",
        "cat/sub/d.jpg",
        "dog/e.txt",
        "dog/.f.jpg",
    )
    here, passed_over = listed(tmp_path)
    there, passed_over_there = listed(store_uri(tmp_path))
    assert [(r.key, r.label, r.size_bytes) for r in there] == [
        (r.key, r.label, r.size_bytes) for r in here
    ]
    assert passed_over_there == passed_over


def test_a_folder_of_a_store_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="--input 'teststore://.*none' holds nothing"):
        listed(store_uri(tmp_path / "none"))


def test_batches_are_small(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "BATCH_SIZE", 3)
    put(tmp_path, *(f"cat/{i}.jpg" for i in range(7)))
    source = InputOptions(str(tmp_path))
    sizes = [
        len(found)
        for task in listing_tasks(source)
        for found in list_task(task, source, None)
        if isinstance(found, RefBatch)
    ]
    assert sizes == [3, 3, 1]


def test_a_long_parquet_file_is_several_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(table_rows, "_PART_ROWS", 4)
    keys = [f"{n}.jpg" for n in range(40)]
    for name, part in (("1", keys[:25]), ("2", keys[25:])):
        table = pa.table({"image": part, "label": ["a"] * len(part)})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=2)
    assert len(list(listing_tasks(InputOptions(f"{tmp_path}/*.parquet")))) > 8
    assert labels(f"{tmp_path}/*.parquet") == dict.fromkeys(keys, ("a", None))


@pytest.mark.parametrize(
    ("path", "options", "layout"),
    [
        ("in", {}, "folders"),
        ("in/*.jpg", {}, "flat"),
        ("in", {"label_regex": "(.)"}, "flat"),
        ("in", {"layout": "split_folders", "label_regex": "(.)"}, "flat"),
        ("a.csv", {}, "table"),
        ("gs://b/A.JSONL", {}, "table"),
        ("a[1].parquet", {}, "table"),
        ("s3://b/rows/*.parquet", {}, "table"),
        ("list.txt", {"layout": "table"}, "table"),
    ],
)
def test_layout_by_name(path, options, layout):
    assert layout_of(InputOptions(path, **options)) == layout


def test_a_folder_named_like_a_table_is_a_folder(tmp_path):
    put(tmp_path, "set.csv/cat/a.jpg", "set.csv/dog/a.jpg")
    assert set(labels(tmp_path / "set.csv")) == {"cat/a.jpg", "dog/a.jpg"}


def test_in_a_pipeline_odd_names_survive_and_what_is_passed_over_is_counted(tmp_path):
    put(tmp_path, "cat/x.jpg", "dog/notes.txt", "dog/y.jpg", "stray.jpg")
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    with open(os.fsencode(tmp_path) + b"/\xff/\xfe.jpg", "wb"):
        pass

    def check_refs(batches):
        assert len(batches) == 1  # of three small folders
        keys = sorted(ref.key for batch in batches for ref in batch.refs)
        assert keys == ["\\udcff/\\udcfe.jpg", "cat/x.jpg", "dog/y.jpg"], keys
        assert all(os.path.exists(ref.uri) for batch in batches for ref in batch.refs)

    def check_skipped(found):
        assert sorted(found, key=str) == [{"not_an_image_name": 1}, {"outside_class_folders": 1}]

    with beam.Pipeline(FnApiRunner()) as pipeline:
        result = pipeline | ListImages(InputOptions(str(tmp_path)))
        assert_that(result.batches, check_refs, "refs")
        assert_that(result.skipped, check_skipped, "skipped")


def test_a_table_in_a_pipeline_of_ones_own_needs_no_schema(tmp_path):
    (tmp_path / "rows.csv").write_text("image,label,age\na.jpg,cat,3\n")

    def check_refs(batches):
        (ref,) = (ref for batch in batches for ref in batch.refs)
        assert (ref.key, ref.label, ref.columns) == ("a.jpg", "cat", {"age": 3})

    with beam.Pipeline(FnApiRunner()) as pipeline:
        result = pipeline | ListImages(InputOptions(str(tmp_path / "rows.csv")))
        assert_that(result.batches, check_refs)


@pytest.mark.process
def test_listing_a_table_loads_neither_pillow_nor_tensorflow(tmp_path):
    (tmp_path / "rows.csv").write_text("image,label\na.jpg,cat\n")
    code = (
        "import sys; from beam_pipeline.inputs import listing\n"
        "from beam_pipeline.options import InputOptions\n"
        "source = InputOptions(sys.argv[1]); schema = listing.schema_of(source)\n"
        "tasks = listing.listing_tasks(source)\n"
        "found = [batch for task in tasks for batch in listing.list_task(task, source, schema)]\n"
        "sys.exit(len(found[0]) != 1 or bool({'PIL', 'tensorflow'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "rows.csv")]
    assert subprocess.run(command, check=False).returncode == 0


def test_a_wrong_input_comes_out_of_a_pipeline_as_its_sentence(tmp_path):
    with pytest.raises(Exception, match="does not exist") as error:
        with beam.Pipeline(FnApiRunner()) as pipeline:
            pipeline | ListImages(InputOptions(str(tmp_path / "none")))
    known = user_error_in(error.value)
    assert str(known) == (
        f"--input '{tmp_path}/none' does not exist; expected a folder, glob or image table."
    )


def data_set(folder: pathlib.Path) -> None:
    """What a build leaves, as far as a listing could take it for images."""
    put(folder, "report/contact_sheet-train.png", "train-00000-of-00001.tfrecord", "features.json")
    found = {"format_version": 1, "splits": {}, "fingerprint": "", "classes": []}
    (folder / "manifest.json").write_text(json.dumps(found))


@pytest.mark.parametrize("in_store", [False, True])
@pytest.mark.parametrize("place", ["shards", "cat/deep/shards"])
def test_no_image_of_a_finished_data_set_is_listed(tmp_path, in_store, place):
    put(tmp_path, "cat/a.jpg", "dog/b.jpg")
    data_set(tmp_path / place)
    path = store_uri(tmp_path) if in_store else str(tmp_path)
    assert labels(path) == {"cat/a.jpg": ("cat", None), "dog/b.jpg": ("dog", None)}
    assert names_told(path) == {"finished_data_set": [f"{path}/{place}"]}


@pytest.mark.parametrize("in_store", [False, True])
def test_a_finished_data_set_is_not_listed_by_a_glob_or_as_a_split(tmp_path, in_store):
    put(tmp_path, "train/cat/cat.a.png", "val/cat/cat.b.png")
    data_set(tmp_path / "shards")
    path = store_uri(tmp_path) if in_store else str(tmp_path)
    both = {"train/cat/cat.a.png", "val/cat/cat.b.png"}
    assert set(labels(path)) == both
    assert set(labels(f"{path}/**.png", label_regex=r"^([a-z]+)\.")) == both
    assert names_told(path) == {"finished_data_set": [f"{path}/shards"]}


@pytest.mark.parametrize("in_store", [False, True])
def test_a_finished_data_set_is_no_input(tmp_path, in_store):
    data_set(tmp_path)
    path = store_uri(tmp_path) if in_store else str(tmp_path)
    flat = {"label_regex": "^([a-z]+)"}
    for given, options in ((path, {}), (path, flat), (f"{path}/*/*.png", flat)):
        if in_store and "*" in given:
            continue  # the listing begins behind its manifest.json
        with pytest.raises(UserError, match="is a finished data set.*move the data set"):
            listed(given, **options)


@pytest.mark.parametrize("in_store", [False, True])
def test_a_manifest_json_of_somebody_else_hides_nothing(tmp_path, in_store):
    put(tmp_path, "cat/a.jpg", "dog/b.jpg")
    (tmp_path / "cat" / "manifest.json").write_text('{"splits": "of somebody else"}')
    (tmp_path / "dog" / "manifest.json").write_text("[not json")
    path = store_uri(tmp_path) if in_store else str(tmp_path)
    assert set(labels(path)) == {"cat/a.jpg", "dog/b.jpg"}


def test_pictures_of_formats_that_are_not_read_are_told_by_their_endings(tmp_path):
    put(tmp_path, "cat/a.jpg", "cat/b.HEIC", "cat/c.heic", "dog/d.NEF", "dog/notes.txt")
    assert names_told(str(tmp_path)) == {
        "empty_class_folder": ["dog"],
        "unread_format": [".heic", ".heic", ".nef"],  # once a picture; added up later
    }
    assert names_told(str(tmp_path), extensions=(".heic", ".nef")) == {}


@pytest.mark.parametrize("in_store", [False, True])
def test_folders_without_an_image_are_named(tmp_path, in_store):
    put(tmp_path, "cat/a.jpg", "dog/notes.txt", "emu/.hidden.jpg")
    path = store_uri(tmp_path) if in_store else str(tmp_path)
    assert names_told(path) == {"empty_class_folder": ["dog", "emu"]}
    put(tmp_path, "s/train/cat/a.jpg", "s/val/cat/a.txt", "s/test/a.txt")
    assert names_told(f"{path}/s", layout="split_folders") == {
        "empty_class_folder": ["val/cat"],
        "empty_split_folder": ["test"],
    }
