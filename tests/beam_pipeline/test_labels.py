"""Whole builds of images without a label, and with several each, read as others read them."""

import csv
import itertools
import json
import pathlib
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from beam_pipeline.columns.export import exported_classes
from imageshards.deduplication.command import duplicates
from imageshards.index import read_index
from imageshards.manifest import FeatureSpec
from imageshards.manifest.file import load_manifest
from imageshards.verification.command import verify
from tests.support.builds import build_set, jpeg, manifest, records_of, rejects_of
from tests.support.manifests import shards_of

pytestmark = pytest.mark.process

EVERY = {"bird": 5, "cat": 2, "dog": 3}
LABELS = {f"{i}.jpg": [name for name in EVERY if i % EVERY[name] == 0] for i in range(36)}
BROKEN = {"2.jpg", "10.jpg", "21.jpg", "32.jpg"}
FLAGS = ["--image_size", "16", "--splits", "train=0.7,validation=0.3", "--num_shards", "3"]
SEPARATED = ["--label_separator", "|", "--max_reject_fraction", "0.2"]
COPY = ["--num_shards", "3", "--no_report"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("photos")
    for i, name in enumerate(LABELS):
        broken = b"\xff\xd8 no picture"
        (root / name).write_bytes(broken if name in BROKEN else jpeg(i // 35))  # many alike
    return root


def table(path: pathlib.Path, labels: dict[str, list[str]], separator: str = "|") -> pathlib.Path:
    """A CSV file of labels between separators, in no order and with spaces."""
    with open(path, "w", newline="") as file:
        rows = [(name, f"{separator} ".join(found[::-1])) for name, found in labels.items()]
        csv.writer(file).writerows([("image", "label"), *rows])
    return path


@pytest.fixture(scope="module")
def several(photos, tmp_path_factory) -> pathlib.Path:
    rows = table(photos / "rows.csv", LABELS)
    return build_set(rows, tmp_path_factory.mktemp("several") / "set", *SEPARATED, *FLAGS)


def assert_even(output: pathlib.Path) -> None:
    for split in manifest(output)["splits"].values():
        counts = [shard["num_records"] for shard in split["shards"]]
        assert len(counts) == 3 and max(counts) - min(counts) <= 1, counts
    assert verify(str(output)).problems == []


def labels_of(output):
    found = records_of(output).items()
    return {key: (r["image/class/labels"], r["image/class/text"]) for key, r in found}


def expected(labels: dict[str, list[str]], *classes: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in labels.keys() - BROKEN:
        ids = [number for number, name in enumerate(classes) if name in labels[key]]
        found[key] = ids, [classes[number].encode() for number in ids]
    return found


def test_texts_at_a_separator_are_labels_by_their_ids_and_rejects_leave_no_hole(several):
    assert_even(several)
    assert labels_of(several) == expected(LABELS, "bird", "cat", "dog")
    said = load_manifest(str(several), complete=True)
    assert said.features["image/class/labels"] == FeatureSpec("int64", None)
    assert said.features["image/class/text"] == FeatureSpec("string", None)
    assert "image/class/label" not in said.features
    accepted = {key: names for key, names in LABELS.items() if key not in BROKEN}
    counts = Counter[str]()
    for _, shard in shards_of(manifest(several)):
        counts.update(shard["classes"])
    assert counts == Counter(itertools.chain(*accepted.values()))
    assert rejects_of(several).keys() == BROKEN
    assert rejects_of(several)["10.jpg"]["label"] == "bird, cat"
    rows = read_index(str(several), said, columns=["key", "class_name"]).to_pylist()
    assert {row["key"]: row["class_name"] for row in rows} == accepted


def test_report_and_duplicates_show_several_labels(several):
    page = (several / "report" / "index.html").read_text()
    assert "do not add up to the number of records" in page and ">bird, cat, dog</span>" in page
    duplicates(several, distance=0, output=several.parent / "twins")
    found = json.loads((several.parent / "twins" / "duplicates.json").read_text())
    assert found["exact"] == 30
    assert {pair["kept"]["class_name"] for pair in found["pairs"]} <= {"", "cat", "bird, cat, dog"}
    assert any(pair["other"]["class_name"] == "cat, dog" for pair in found["pairs"])


def test_tfds_and_the_exported_transform_know_the_labels(several):
    tfds = pytest.importorskip("tensorflow_datasets")
    import tensorflow as tf

    builder = tfds.builder_from_directory(several)
    assert builder.info.features["image/class/labels"].feature.names == ["bird", "cat", "dog"]
    written = labels_of(several)
    for example in builder.as_dataset(split="train").as_numpy_iterator():
        read = (example["image/class/labels"].tolist(), example["image/class/text"].tolist())
        assert read == written[example["image/filename"].decode()]
    transform = tf.saved_model.load(str(several / "transform" / "transform_fn")).transform_fn
    text = tf.sparse.from_dense([["dog", "bird"], ["cat", ""], ["emu", ""]])
    (ids,) = transform({"image/class/text": text}).values()
    np.testing.assert_array_equal(ids.values, [2, 0, 1, -1])


@pytest.mark.long
def test_copies_have_each_renamed_label_once_and_a_rebuild_keeps_class_ids(
    several, photos, tmp_path
):
    output = build_set(several, tmp_path / "set", "--class_map", "dog=cat", *COPY)
    assert_even(output)
    joined = {k: ["cat" if name == "dog" else name for name in ns] for k, ns in LABELS.items()}
    assert labels_of(output) == expected(joined, "bird", "cat")
    before = records_of(several)
    for key, record in records_of(output).items():
        assert record["image/encoded"] == before[key]["image/encoded"]
    labels = {key: ["ant", *names] for key, names in LABELS.items()}
    rows = table(photos / "more.csv", labels)
    build_set(rows, output, *SEPARATED, "--overwrite", "--no_report", *FLAGS)
    assert manifest(output)["classes"] == ["bird", "cat", "ant", "dog"]
    assert labels_of(output) == expected(labels, "bird", "cat", "ant", "dog")


def test_copies_can_leave_labels_out(several, tmp_path):
    output = build_set(several, tmp_path / "set", "--label", "none", *COPY)
    assert_even(output)
    found = records_of(output)
    assert found.keys() == records_of(several).keys()
    assert not any("class" in name for name in found["0.jpg"])


@pytest.mark.long
def test_lists_of_a_parquet_file_beside_an_extra_column(photos, tmp_path):
    """Columns go through tensorflow-transform, which looks the labels up, too."""
    keys = [key for key in LABELS if key not in BROKEN]
    columns = {"image": keys, "label": [LABELS[key] for key in keys], "price": [1.5] * len(keys)}
    parquet.write_table(pa.table(columns), photos / "rows.parquet")
    flags = ["--label", "several", "--no_report", *FLAGS]
    output = build_set(photos / "rows.parquet", tmp_path / "set", *flags)
    assert_even(output)
    assert labels_of(output) == expected(LABELS, "bird", "cat", "dog")
    assert manifest(output)["features"]["price"] == {"dtype": "float32", "shape": []}
    assert exported_classes(str(output / "transform")) == ["bird", "cat", "dog"]


def test_folders_of_images_without_labels_may_be_splits_or_have_any_name(tmp_path):
    for i in range(40):
        folder = tmp_path / "photos" / ("test", "a/b", "c")[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.jpg").write_bytes(b"\xff\xd8" if i in (1, 4, 7) else jpeg(i))
    flags = ["--label", "none", "--max_reject_fraction", "0.1", *FLAGS]
    output = build_set(tmp_path / "photos", tmp_path / "set", *flags)
    assert_even(output)
    said = load_manifest(str(output), complete=True)
    assert said.classes == [] and not any(shard.classes for _, shard in said.shards())
    found = records_of(output)
    assert len(found) == 37 and {*found["c/2.jpg"]} == {*said.features, "split"}
    assert not [name for name in said.features if "class" in name]
    in_test = [key for key, record in found.items() if record["split"] == "test"]
    assert sorted(in_test) == sorted(f"test/{i}.jpg" for i in range(0, 40, 3))
    names = read_index(str(output), said).column_names
    assert "label" not in names and "class_name" not in names
    page = (output / "report" / "index.html").read_text()
    assert ">2.jpg</span>" in page and 'id="classes"' not in page
