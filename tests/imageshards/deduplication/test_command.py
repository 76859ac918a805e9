import errno
import itertools
import json
import os
import shutil
from typing import Any
from unittest import mock

import pytest
from PIL import Image, ImageOps

import imageshards as ims
from beam_pipeline.inputs.selection import read_keys
from beam_pipeline.progress import final_table
from imageshards.deduplication import search
from imageshards.deduplication.command import keys_to_remove, main, text_of
from imageshards.page import render
from imageshards.reporting.page import write_report
from tests.support.builds import build, jpeg, manifest
from tests.support.dataset_factory import Dataset
from tests.support.html_page import Page
from tests.support.manifests import typed

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Pictures of their own, and copies: the same file, smaller, badly compressed, mirrored."""
    root = tmp_path_factory.mktemp("planted")
    for number, (split, kind) in enumerate(itertools.product(("train", "validation"), "ab")):
        folder = root / "photos" / split / kind
        folder.mkdir(parents=True)
        for i in range(12):
            (folder / f"{i}.jpg").write_bytes(jpeg(100 * number + i, 240, 160))
    train, validation = root / "photos" / "train", root / "photos" / "validation"
    shutil.copy(train / "a" / "0.jpg", validation / "a" / "same.jpg")
    shutil.copy(train / "a" / "0.jpg", train / "b" / "same.jpg")  # and of another class
    original = Image.open(validation / "b" / "3.jpg")
    original.resize((120, 80)).save(train / "b" / "small.jpg", quality=95)
    original = Image.open(train / "b" / "5.jpg")
    original.save(train / "b" / "bad.jpg", quality=30)
    ImageOps.mirror(original).save(train / "b" / "mirrored.jpg", quality=95)
    flags = ("--image_size", "64", "--num_shards", "train=3,validation=2")
    assert build("--input", root / "photos", "--output", root / "set", *flags) == 0
    return root / "set"


@pytest.fixture(scope="module")
def found(built, tmp_path_factory):
    output = tmp_path_factory.mktemp("found")
    assert main([str(built), "--output", str(output)]) == 0
    return output


def test_planted_copies_are_found_and_shown_leaks_first(found):
    said = json.loads((found / "duplicates.json").read_text())
    pairs = [(p["kept"]["key"], p["other"]["key"], p["exact"]) for p in said["pairs"]]
    assert pairs == [
        ("validation/a/same.jpg", "train/b/same.jpg", True),
        ("validation/a/same.jpg", "train/a/0.jpg", True),
        ("validation/b/3.jpg", "train/b/small.jpg", False),
        ("train/b/5.jpg", "train/b/bad.jpg", False),
    ]
    assert said["splits"] == [
        {"kept": "validation", "other": "train", "exact": 2, "near": 1},
        {"kept": "train", "other": "train", "exact": 0, "near": 1},
    ]
    assert (said["exact"], said["near"], said["num_records"], said["undecodable"]) == (2, 2, 53, 0)
    page = Page((found / "index.html").read_text())
    assert len(page.all("img")) == 8
    assert page.words.count("two classes") == 1
    for words in ("The same file", "validation, stays", "train/b/bad.jpg", "1 image to check, wi"):
        assert words in page.text
    # The page and exclude.txt agree about each image.
    keys = (found / "exclude.txt").read_text().splitlines()
    assert page.text.count("train, goes: exclude.txt leaves it out") == len(keys) == 3
    assert "exclude.txt has 3 keys" in page.text
    assert page.text.count("train, to check: not in exclude.txt") == 1


def test_a_build_with_the_keys_file_excludes_the_duplicates(built, found, tmp_path):
    photos = built.parent / "photos"
    flags = ("--exclude", found / "exclude.txt", "--image_size", "64", "--num_shards", "1")
    assert build("--input", photos, "--output", tmp_path / "clean", *flags) == 0
    # A copy of another class stays: nobody knows which of the two labels is wrong.
    assert "train/b/same.jpg" not in (found / "exclude.txt").read_text().splitlines()
    assert manifest(tmp_path / "clean")["listed"] == 50
    said = text_of(json.loads((found / "duplicates.json").read_text()), str(found))
    assert "not in exclude.txt, but in duplicates.json: 1 duplicate with another class" in said


def test_a_second_search_removes_an_outdated_keys_file(tmp_path):
    made = Dataset(tmp_path / "set", {"train": 1}, per_shard=1).directory
    folder = tmp_path / "out"
    folder.mkdir()
    page = render("imageshards.page", "base.jinja", title="t", what="w", tiles=[], parts=[])
    for name in ("index.html", "duplicates.json", "exclude.txt", "duplicates.json.tmp-863179ee"):
        (folder / name).write_text(page)
    (folder / "log.txt").write_text("mine")
    assert main([str(made), "--output", str(folder), "--workers", "1"]) == 0
    assert {*os.listdir(folder)} == {"duplicates.json", "index.html", "log.txt"}
    assert json.loads((folder / "duplicates.json").read_text())["pairs"] == []
    assert "No image is a duplicate of another one." in (folder / "index.html").read_text()


def test_keys_that_no_line_can_hold_are_not_written(tmp_path):
    def _goes(key, kept="a"):
        return {"kept": {"key": "k", "class_name": kept}, "other": {"key": key, "class_name": "a"}}

    keys = ["a/1.jpg", "a/new\nline.jpg", "b\u2028c", "d\r"]
    found = keys_to_remove({"pairs": [*map(_goes, keys), _goes("of another", "b")]})
    path = tmp_path / "exclude.txt"
    path.write_text("".join(f"{key}\n" for key in found))
    assert read_keys(str(path)) == found == ["a/1.jpg", "b\u2028c"]


def test_python_gets_what_the_json_holds_and_errors_name_its_arguments(built, found, tmp_path):
    shown = json.loads((found / "duplicates.json").read_text())
    assert ims.duplicates(built, output=tmp_path / "out", workers=1) == shown
    assert {*os.listdir(tmp_path / "out")} == {"duplicates.json", "exclude.txt", "index.html"}
    equal = ims.duplicates(built, output=tmp_path / "out", workers=1, distance=0)
    assert {pair["distance"] for pair in equal["pairs"]} == {0}
    (tmp_path / "index.html").write_text("mine")
    calls: dict[str, Any] = {
        "^path received '.*/none'": lambda: ims.duplicates(tmp_path / "none"),
        "^distance received 11; expected 0 to 10": lambda: ims.duplicates(built, distance=11),
        "^output received '.*', which holds 1 file": lambda: ims.duplicates(built, output=tmp_path),
    }
    for told, call in calls.items():
        with pytest.raises(ims.UserError, match=told) as caught:
            call()
        assert " DIR" not in str(caught.value)


def test_pictures_that_cannot_be_decoded_are_counted(built, tmp_path, capsys):
    directory = tmp_path / "set"
    shutil.copytree(built, directory)
    entry = manifest(directory)["splits"]["train"]["shards"][0]
    shard = directory / entry["file"]
    shard.write_bytes(b"x" * shard.stat().st_size)
    assert main([str(directory), "--output", str(tmp_path / "out"), "--workers", "1"]) == 0
    lost = entry["num_records"]
    words = f"\n{lost} of 53 images cannot be decoded: near duplicates of these are not found\n"
    assert words in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "duplicates.json").read_text())
    assert (found["undecodable"], found["exact"]) == (lost, 2)


def test_a_build_counts_equal_files_and_warns_of_those_between_splits(built):
    page = (built / "report" / "index.html").read_text()
    assert "2 images are copies of another one, byte for byte" in page
    said = manifest(built)
    assert said["copies"] == {"copies": 2, "between_splits": 1}
    (leak,) = [text for text in said["warnings"] if "in more than one split" in text]
    assert leak.startswith("1 original in") and leak in page
    assert leak in final_table(typed(said), 1, 0)
    assert write_report(str(built), typed(manifest(built)))
    assert (built / "report" / "index.html").read_text() == page


def test_an_error_of_the_search_does_not_blame_the_output(built, tmp_path, monkeypatch):
    no_process = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    monkeypatch.setattr(search, "find_twins", mock.Mock(side_effect=no_process))
    with pytest.raises(OSError, match="Resource temporarily unavailable"):
        main([str(built), "--output", str(tmp_path / "out")])
