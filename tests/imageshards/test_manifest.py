"""The contract: what is written is loaded, what is damaged is refused with a remedy."""

from __future__ import annotations

import errno
import json

import pytest

from imageshards import storage
from imageshards.errors import DamagedManifestError, UserError
from imageshards.manifest import (
    REMOVAL_NAME,
    SHARD_NAME,
    STAGING_NAME,
    form_problems,
    load_manifest,
    read_manifest,
    shards_of,
    to_json,
    write_manifest,
)
from tests.support.dataset_factory import Dataset


@pytest.fixture
def dataset(tmp_path):
    return Dataset(tmp_path / "set")


def changed(dataset, *path, value):
    """The manifest of a data set with another value at a path; None removes it."""
    manifest = json.loads(to_json(dataset.manifest))
    inner = manifest
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return manifest


def test_what_is_written_is_loaded(dataset, tmp_path):
    write_manifest(str(tmp_path / "copy"), dataset.manifest)
    assert load_manifest(str(tmp_path / "copy")) == dataset.manifest
    assert [p.name for p in (tmp_path / "copy").iterdir()] == ["manifest.json"]


def test_every_shard_comes_with_its_split(dataset):
    found = [(split, shard["file"]) for split, shard in shards_of(dataset.manifest)]
    names = {split: SHARD_NAME.fullmatch(file) for split, file in found}
    assert len(found) == 5
    assert {split: match and match[1] for split, match in names.items()} == {
        "train": "train",
        "validation": "validation",
    }


@pytest.mark.parametrize(
    ("below", "why"),
    [
        ("absent", "which does not exist; .*fix the path, or build a data set there"),
        ("file/below", "which does not exist"),
        ("file", "which is a file; expected the folder that a build wrote"),
        ("empty", "where there is no manifest.json; .*build"),
    ],
)
def test_a_folder_without_one_is_no_data_set(tmp_path, below, why):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=f"^--data received .*{below}', {why}"):
        load_manifest(str(tmp_path / below), "--data")


def test_nobody_is_advised_to_build_into_the_folder_of_the_photos(tmp_path):
    photos = tmp_path / "photos"
    (photos / "cat").mkdir(parents=True)
    match = f"no manifest.json; .*: build one with .* --input PHOTOS --output {photos}\\.$"
    with pytest.raises(UserError, match=match):
        load_manifest(str(photos), "--data")
    (photos / "cat" / "1.jpg").write_bytes(b"x")
    beside = f"{photos}-shards"
    match = f"beside them with .* --input {photos} --output {beside}, and give {beside} instead\\.$"
    with pytest.raises(UserError, match=match):
        load_manifest(f"{photos}/", "--data")
    (photos / STAGING_NAME).mkdir()
    with pytest.raises(UserError, match="its build has not ended; run that again to finish it"):
        load_manifest(str(photos), "--data")
    (photos / STAGING_NAME / REMOVAL_NAME).touch()
    with pytest.raises(UserError, match=f"stopped: run imageshards remove {photos} "):
        load_manifest(str(photos), "--data")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"format_version": 1, "spl', "could not be read"),
        ("\x00", "could not be read"),
        ("[]", "holds a list; expected a JSON object"),
        ("{}", "lacks 'format_version'; expected a whole number"),
        ('{"format_version": 1, "splits": []}', r"has splits = \[\]; expected an object"),
    ],
)
def test_a_damaged_one_is_replaced_by_a_build(tmp_path, text, said):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DamagedManifestError, match=said) as caught:
        load_manifest(str(tmp_path))
    assert "--overwrite" in str(caught.value) and "\n" not in str(caught.value)


def test_a_newer_one_wants_a_newer_release(dataset):
    write_manifest(str(dataset.directory), changed(dataset, "format_version", value=2))
    with pytest.raises(UserError, match="format_version 2; .* up to 1: upgrade") as caught:
        load_manifest(str(dataset.directory))
    assert not isinstance(caught.value, DamagedManifestError)


def test_one_that_may_not_be_read_is_told_in_one_line(monkeypatch):
    def refused(path):
        raise PermissionError(errno.EACCES, "refused by the store.\n at line 3", path)

    monkeypatch.setattr(storage, "read", refused)
    with pytest.raises(UserError, match=r"could not be read \(refused by the store\); .*fix its"):
        load_manifest("gs://bucket/set", "--data")


TRAIN = ("splits", "train")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((*TRAIN,), 3, "split 'train' has no list of shards"),
        ((*TRAIN, "shards"), None, "split 'train' has no list of shards"),
        ((*TRAIN, "num_records"), "3", "split 'train' has no num_records"),
        ((*TRAIN, "shards", 1), [], "shard 1 of split 'train' has no valid 'file'"),
        ((*TRAIN, "shards", 1, "num_bytes"), None, "has no valid 'num_bytes'"),
        ((*TRAIN, "shards", 1, "classes"), [], "has no valid 'classes'"),
        (("features", "image/height"), {"dtype": "int64"}, "has no dtype and shape"),
        (("features", "x"), {"dtype": "complex64", "shape": []}, "'x' is complex64, not int64"),
        (("features", "x"), {"dtype": "int64", "shape": "3"}, "neither whole numbers nor null"),
        (("compression",), "zip", "compression is 'zip', not none or gzip"),
    ],
)
def test_a_wrong_form_is_named_before_anybody_trips_over_it(dataset, path, value, said):
    manifest = changed(dataset, *path, value=value)
    assert any(said in problem for problem in form_problems(manifest))
    write_manifest(str(dataset.directory), manifest)
    assert read_manifest(str(dataset.directory)) == manifest
    with pytest.raises(DamagedManifestError, match="in whose manifest.json .*; build"):
        load_manifest(str(dataset.directory))


@pytest.mark.parametrize(
    "path",
    [
        (*TRAIN, "shards", 0, "sha256"),
        (*TRAIN, "shards", 0, "classes"),
        ("features", "image/height"),
        ("image", "mode"),
    ],
)
def test_what_only_a_check_needs_keeps_nobody_from_reading(dataset, path):
    manifest = changed(dataset, *path, value=None)
    assert list(form_problems(manifest)) == []
    assert len(list(form_problems(manifest, complete=True))) == 1
