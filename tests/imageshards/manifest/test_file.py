import errno
import functools
import json
import operator
import unittest.mock

import msgspec
import pytest

from imageshards import storage
from imageshards.errors import DamagedManifestError, LeaseLostError, UserError
from imageshards.manifest import REPLACED_NAME, STAGING_NAME, IndexFile, Roles, Shard, Split
from imageshards.manifest.file import (
    fingerprint_of,
    load_manifest,
    publish_manifest,
    read_rejects,
    to_json,
)
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused
from tests.support.manifests import blank, typed, write_manifest
from trainer.dataset.manifest import load_manifest as load_for_training

TRAIN = ("splits", "train")
SHARD = (*TRAIN, "shards", 1)
FILE = (*SHARD, "file")
INDEX = {"file": "index/a.parquet", "num_bytes": 1, "sha256": "0" * 64}


@pytest.fixture
def dataset(tmp_path):
    return Dataset(tmp_path / "set")


def changed(dataset, *path, value):
    """The manifest of a dataset with another value at a path; None removes it."""
    manifest = json.loads(to_json(dataset.manifest))
    inner = functools.reduce(operator.getitem, path[:-1], manifest)
    inner[path[-1]] = value
    if value is None:
        del inner[path[-1]]
    return manifest


def test_a_folder_that_is_no_dataset_is_refused_with_a_remedy(tmp_path):
    def is_told(below, *words):
        with refused("data", *words):
            load_manifest(f"{tmp_path}/{below}", "data")

    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "1.jpg").touch()
    is_told("absent", "which is no folder")
    is_told("photos/1.jpg", "which is no folder")
    is_told("photos/", "no manifest.json; name a dataset, or build one")
    (photos / "1.tfrec").touch()
    is_told("photos", f"describe these TFRecords by imageshards adopt {photos}.")
    before = photos / STAGING_NAME / REPLACED_NAME
    before.mkdir(parents=True)
    is_told("photos", "has not ended; wait for it, or run it again")
    (before / "manifest.json").touch()
    is_told("photos", "ended", f"is in {before};")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"format_version": 1, "spl', "truncated"),
        ('{"classes": ["\\ud800"]}', "could not be read"),
        ("[" * 100_000, "could not be read"),
        ('{"format_version": 0}', "format_version"),
    ],
)
def test_a_build_replaces_a_damaged_manifest(tmp_path, text, said):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DamagedManifestError, match=said) as caught:
        load_manifest(str(tmp_path))
    assert "--overwrite" in str(caught.value) and "\n" not in str(caught.value)


def test_a_newer_or_unreadable_manifest_does_not_count_as_damaged(dataset, monkeypatch):
    write_manifest(str(dataset.directory), changed(dataset, "format_version", value=2))
    with pytest.raises(UserError, match="format_version 2; .* up to 1; upgrade") as newer:
        load_manifest(str(dataset.directory))
    held_back = PermissionError(errno.EACCES, "refused by the store.\n at line 3")
    monkeypatch.setattr(storage, "read", unittest.mock.Mock(side_effect=held_back))
    with pytest.raises(UserError, match=r"not be read \(refused by the store\); .*fix its") as held:
        load_manifest("gs://bucket/set", "data")
    assert {newer.type, held.type} == {UserError}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((*TRAIN, "shards"), None, "missing required field `shards`"),
        (("splits", "../x"), {}, "key in splits"),
        (FILE, "../x", r"shards\[1\]: file is '../x'; expected the plain name of a shard"),
        (FILE, "train-00000-of-00003.tfrecord", "twice; expected it once"),
        ((*SHARD, "index"), INDEX | {"file": "../x.parquet"}, "index: file is '../x.parquet'"),
        ((*SHARD, "folder"), "a", "expected none in a build"),
        ((*SHARD, "num_records"), 2.0, "num_records"),
        ((*SHARD, "num_records"), float("nan"), "malformed"),
        ((*SHARD, "num_records"), 10**12, "num_records is 1000000000000; expected no more than"),
        ((*SHARD, "num_bytes"), 10**30, "num_bytes"),
        ((*SHARD, "sha256"), "00", "sha256"),
        (("classes",), ["cat", "cat"], "expected each class once"),
        (("features", "x"), {"dtype": "complex64", "shape": []}, "dtype"),
        (("features", "x"), {"dtype": "int64", "shape": [2**31]}, "a shape that fits"),
        (("image", "size"), [1, 2, 3], r"size is \(1, 2, 3\); expected one side or two"),
        (("options",), {"plan": {"splits": {"train": "0.9"}}}, "plan.splits"),
    ],
)
def test_a_manifest_of_a_wrong_form_is_refused_with_the_key(dataset, path, value, said):
    write_manifest(str(dataset.directory), changed(dataset, *path, value=value))
    with pytest.raises(DamagedManifestError, match=f"manifest.json .*{said}.*[:;] copy") as caught:
        load_manifest(str(dataset.directory))
    assert caught.value.argument == "path"


def test_a_changed_manifest_is_refused_but_keys_may_be_reordered(dataset):
    path = dataset.directory / "manifest.json"
    path.write_text(json.dumps(dict(reversed(dataset.manifest.items()))))
    assert load_manifest(str(dataset.directory)) == typed(dataset.manifest)
    for key, value in (("classes", ["dog", "cat"]), ("more", 1), ("digest", None)):
        path.write_text(to_json(changed(dataset, key, value=value)))
        with pytest.raises(DamagedManifestError, match="not have the digest of its content.*copy"):
            load_manifest(str(dataset.directory))


def test_unknown_keys_are_allowed_and_some_features_may_be_missing(dataset):
    for path in ((), TRAIN, SHARD, ("image",), ("features", "image/height")):
        write_manifest(str(dataset.directory), changed(dataset, *path, "more", value=[1]))
        load_manifest(str(dataset.directory), complete=True)
    write_manifest(str(dataset.directory), changed(dataset, "features", "image/height", value=None))
    load_manifest(str(dataset.directory))
    with pytest.raises(DamagedManifestError, match="image/height is missing"):
        load_manifest(str(dataset.directory), complete=True)


@pytest.mark.parametrize(("line", "said"), [("{", "line 2: "), ('{"key": "a"}', "line 2: .*`uri`")])
def test_read_rejects_stops_at_a_damaged_line(tmp_path, line, said):
    made = Dataset(tmp_path, rejects={"empty": 1}).directory
    (whole,) = read_rejects(str(made))
    assert (whole.reason, whole.key) == ("empty", "cat/bad0.jpg")
    with open(made / "quarantine" / "rejects.jsonl", "a") as file:
        file.write(line)
    rejects = read_rejects(str(made))
    assert next(rejects) == whole
    with pytest.raises(ValueError, match=said):
        next(rejects)


def test_records_have_one_label_none_or_several(dataset):
    """Whatever else an adopted dataset has, its records have one."""
    features = dataset.manifest["features"]
    kept = {name: spec for name, spec in features.items() if "class" not in name}
    variable = {"image/class/labels": "int64", "image/class/text": "string"}
    several = kept | {name: {"dtype": kind, "shape": None} for name, kind in variable.items()}
    roles = {"image": "i", "label": "l", "filename": None, "text": None}
    adopted = dataset.manifest | {"adopted": roles, "features": several}
    for found, label, role in (
        (dataset.manifest, "one", "image/class/label"),
        (dataset.manifest | {"features": several}, "several", "image/class/labels"),
        (dataset.manifest | {"features": kept, "classes": []}, "none", None),
        (adopted, "one", "l"),
    ):
        write_manifest(str(dataset.directory), found)
        loaded = load_manifest(str(dataset.directory), complete=True, adopted=found is adopted)
        assert (loaded.label, loaded.roles.label) == (label, role)
    for wrong in (kept, several | {"image/class/text": features["image/class/text"]}):
        write_manifest(str(dataset.directory), dataset.manifest | {"features": wrong})
        with pytest.raises(DamagedManifestError, match="image/class/"):
            load_manifest(str(dataset.directory), complete=True)


def test_the_fingerprint_covers_what_decides_records_and_nothing_else(dataset):
    """The trainer compares it, too."""
    said = fingerprint_of(typed(dataset.manifest))
    same = {
        ("listed",): 99, ("rejects",): {"empty": 1}, ("skipped", "hidden"): 7, ("source",): {},
        ("versions",): {}, ("options",): {}, ("warnings",): ["new"], ("copies",): {"copies": 1},
        ("files",): {}, ("inputs",): [], (*SHARD, "index"): INDEX, ("fingerprint",): "",
    }  # fmt: skip
    for path, value in same.items():
        assert fingerprint_of(typed(changed(dataset, *path, value=value))) == said, path
    others = {
        ("classes",): ["dog", "cat"], ("features", "x"): {"dtype": "int64", "shape": []},
        ("image", "mean"): [0.5] * 3, (*SHARD, "sha256"): "0" * 64, (*FILE,): "x",
    }  # fmt: skip
    found = {fingerprint_of(typed(changed(dataset, *p, value=v))) for p, v in others.items()}
    assert len({said, *found}) == 1 + len(others)
    for manifest in (dataset.manifest, changed(dataset, "fingerprint", value="of a stranger")):
        write_manifest(str(dataset.directory), manifest)
        assert load_for_training(str(dataset.directory)).fingerprint == said


@pytest.mark.parametrize("is_adopted", [False, True])
def test_a_manifest_is_published_again_but_not_over_the_one_of_another_dataset(
    tmp_path, is_adopted
):
    folder = storage.join(str(tmp_path), "elsewhere")
    adopted = Roles("image", None, None, None, labels="none") if is_adopted else None
    shard = Shard("a", 0, 0, "0" * 64, {}, IndexFile("index/a", 0, "0" * 64), folder * is_adopted)
    manifest = blank(splits={"train": Split(0, [shard])}, adopted=adopted)
    first = publish_manifest(str(tmp_path), manifest)
    assert publish_manifest(str(tmp_path), manifest) == first
    other = msgspec.structs.replace(manifest, fingerprint="other")
    with pytest.raises(LeaseLostError, match="another process has put a dataset into"):
        publish_manifest(str(tmp_path), other)
    assert publish_manifest(str(tmp_path), other, replaces=True) != first
