"""The transform of labels alone: the same for any class list but for its vocabulary."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from beam_pipeline.columns import label_transform
from beam_pipeline.columns import transforms as columns

CLASSES = ["b", "a", "ž", " spaced out ", "0"]

# Looks classes up with what a person would use, in a process that may load TensorFlow.
LOOK_UP = """
import json, sys
import tensorflow as tf
import tensorflow_transform as tft
output = tft.TFTransformOutput(sys.argv[1])
names = json.loads(sys.argv[2])
found = output.transform_raw_features({"image/class/text": tf.constant(names)})
domain = output.transformed_metadata.schema.feature[0].int_domain
signature = tf.saved_model.load(sys.argv[1] + "/transform_fn")
print(json.dumps({
    "ids": found["image/class/label"].numpy().tolist(),
    "vocabulary": [v.decode() for v in output.vocabulary_by_name("label")],
    "domain": [domain.min, domain.max],
    "raw": sorted(output.raw_feature_spec()),
}))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> pathlib.Path:
    """A cache folder of its own, with a template that a process has made."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        with label_transform.template_in_the_making():
            assert label_transform._maker is not None
            assert label_transform._template().parent == folder / "imageshards"
            assert label_transform._maker.returncode == 0
    return folder


@pytest.fixture
def cached(cache, monkeypatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


@pytest.mark.slow
def test_the_exported_transform_gives_the_ids(cached, tmp_path):
    target = str(tmp_path / "transform")
    assert label_transform.export_labels(CLASSES, target) == target
    assert columns.exported_classes(target) == CLASSES
    names = [*CLASSES, "unknown"]
    done = subprocess.run(
        [sys.executable, "-c", LOOK_UP, target, json.dumps(names)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == {
        "ids": [*range(len(CLASSES)), -1],
        "vocabulary": CLASSES,
        "domain": [-1, len(CLASSES) - 1],
        "raw": ["image/class/text"],
    }


@pytest.mark.slow
def test_once_made_the_template_needs_no_process_and_no_tensorflow(cached, tmp_path):
    code = (
        "import sys\n"
        "from beam_pipeline.columns import label_transform as labels\n"
        "with labels.template_in_the_making():\n"
        "    labels.export_labels(['x', 'y'], sys.argv[1])\n"
        "    assert labels._maker is None\n"
        "sys.exit(bool({'tensorflow', 'apache_beam'} & set(sys.modules)))\n"
    )
    for number in range(2):
        target = tmp_path / str(number)
        subprocess.run([sys.executable, "-c", code, target], check=True)
        assert columns.exported_classes(str(target)) == ["x", "y"]
    files = [
        {p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()}
        for f in (tmp_path / "0", tmp_path / "1")
    ]
    assert files[0] == files[1] and files[0]


@pytest.mark.slow
def test_a_killed_process_costs_time_only(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with label_transform.template_in_the_making():
        assert label_transform._maker is not None
        label_transform._maker.kill()
        label_transform.export_labels(["x", "y"], str(tmp_path / "t"))
    assert columns.exported_classes(str(tmp_path / "t")) == ["x", "y"]
    assert len(list((tmp_path / "cache" / "imageshards").iterdir())) == 1


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    label_transform.export_labels(["x", "y"], str(tmp_path / "t"))
    assert columns.exported_classes(str(tmp_path / "t")) == ["x", "y"]
    assert os.listdir(tmp_path) == ["file", "t"] or os.listdir(tmp_path) == ["t", "file"]
