"""Builds whose labels begin at 1, with a background at 0: records, transform, TFDS, verify."""

from __future__ import annotations

import json

import pytest

from beam_pipeline.columns.export import exported_classes
from beam_pipeline.planning.classes import names_by_label
from imageshards.verification import command as verify
from tests.support.builds import build, class_folders, manifest, records_of
from tests.support.built_records import assert_records_are_as_described

pytestmark = pytest.mark.process

COUNTS = {"ant": 9, "bee": 6, "cat": 7}
NAMES = ["background", *COUNTS]
SMALL = ("--image_size", "16", "--num_shards", "1", "--no_report")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return class_folders(tmp_path_factory.mktemp("in") / "photos", COUNTS)


def of_folders(photos, output):
    assert build("--input", photos, "--output", output, *SMALL, "--first_label", "1") == 0


def of_a_table(photos, output):
    """With an extra column, so that tensorflow-transform gives the labels."""
    rows = [
        {"path": str(path), "label": path.parent.name, "age": number}
        for number, path in enumerate(sorted(photos.rglob("*.jpg")))
    ]
    listed = output.with_name("list.jsonl")
    listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert build("--input", listed, "--output", output, *SMALL, "--first_label", "1") == 0


@pytest.fixture(scope="module", params=[of_folders, of_a_table])
def built(request, photos, tmp_path_factory):
    output = tmp_path_factory.mktemp("out") / "set"
    request.param(photos, output)
    return output


def test_the_first_class_is_1_in_records_and_the_manifest_says_so(built):
    records = records_of(built).values()
    labels = {(r["image/class/text"][0], r["image/class/label"][0]) for r in records}
    assert labels == {(b"ant", 1), (b"bee", 2), (b"cat", 3)}
    assert manifest(built)["first_label"] == 1
    assert manifest(built)["classes"] == list(COUNTS)
    assert verify.main([str(built)]) == 0
    assert assert_records_are_as_described(built)


def test_label_0_is_the_default_and_is_other_work(photos, built, tmp_path):
    assert build("--input", photos, "--output", tmp_path / "set", *SMALL) == 0
    assert "first_label" not in manifest(tmp_path / "set")
    assert manifest(tmp_path / "set")["fingerprint"] != manifest(built)["fingerprint"]


def test_tfds_and_the_transform_name_the_background(built):
    import tensorflow as tf

    tfds = pytest.importorskip("tensorflow_datasets")
    label = tfds.builder_from_directory(str(built)).info.features["image/class/label"]
    assert (label.names, label.num_classes) == (NAMES, 4)
    assert exported_classes(str(built / "transform")) == NAMES
    loaded = tf.saved_model.load(str(built / "transform" / "transform_fn"))
    raw = {"image/class/text": tf.constant(["cat", "ant", "dog"])}
    if "age" in manifest(built)["features"]:
        raw["age"] = tf.constant([1, 2, 3], tf.int64)
    assert loaded.transform_fn(raw)["image/class/label"].numpy().tolist() == [3, 1, -1]


def test_a_class_called_background_does_not_meet_label_0():
    assert names_by_label(["background", "x"], 1) == ["background_", "background", "x"]
    assert names_by_label(["x"], 0) == ["x"]
