"""The index and the descriptions of a built dataset, as TFDS and `mlcroissant` read them."""

import hashlib
import json
import logging
import pathlib

import numpy as np
import pytest

from beam_pipeline.commit.descriptions import tfds_files
from imageshards.index import COLUMNS, read_index
from tests.support.builds import build_set, class_folders, manifest, records_of
from tests.support.built_records import assert_records_are_as_described
from tests.support.manifests import shards_of, typed

pytestmark = pytest.mark.process

KINDS = "age:int,weight:float,place:float[2],tokens:int[],note:string,words:string[]"


@pytest.fixture(scope="module")
def insects(tmp_path_factory) -> pathlib.Path:
    """36 pictures of three classes with columns of every kind; rejects made records move."""
    root = tmp_path_factory.mktemp("insects")
    photos = class_folders(root / "photos", {"ant": 12, "bee's nest": 12, "Čmelák": 12}, broken=4)
    rows = [
        {
            # Paths are keys, from which splits are drawn: not those of a temporary folder.
            "image": str(path.relative_to(root)), "label": path.parent.name, "age": i,
            "weight": i / 4, "place": [i / 2, -1.0], "tokens": list(range(i % 3)),
            "note": "naïve", "words": ["w"] * (i % 3),
        }
        for i, path in enumerate(sorted(photos.rglob("*.jpg")))
    ]  # fmt: skip
    listed = root / "list.jsonl"
    listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shards = ["--splits", "train=0.8,validation=0.2", "--num_shards", "train=4,validation=2"]
    flags = ["--image_size", "24x32", "--max_reject_fraction", 0.5, "--columns", KINDS, *shards]
    return build_set(listed, root / "set", "--no_report", *flags)


@pytest.mark.long
def test_every_record_is_made_of_the_original_that_its_row_names(insects):
    assert assert_records_are_as_described(insects) == 36
    for row in read_index(str(insects), typed(manifest(insects))).to_pylist():
        original = (insects.parent / row["key"]).read_bytes()
        assert row["source_bytes"] == len(original)
        assert row["source_sha256"] == hashlib.sha256(original).hexdigest()


def test_lists_shards_with_checksums_the_index_splits_classes_and_columns(insects):
    found = json.loads((insects / "croissant.json").read_text())
    assert found["description"].startswith("36 labelled JPEG images of 3 classes (train ")
    files = {file["@id"]: file for file in found["distribution"]}
    sets = {records["@id"]: records for records in found["recordSet"]}
    entries = [shard for _, shard in shards_of(manifest(insects))]
    assert list(files) == ["index", *(shard["file"] for shard in entries)]
    for shard in entries:
        file = files[shard["file"]]
        assert (file["contentUrl"], file["sha256"]) == (shard["file"], shard["sha256"])
        assert file["contentSize"] == f"{shard['num_bytes']} B"
    assert sets["splits"]["data"] == [{"splits/name": s} for s in ("train", "validation")]
    assert sets["classes"]["data"][1] == {"classes/label": 1, "classes/name": "bee's nest"}
    fields = {field["name"]: field for field in sets["records"]["field"]}
    assert set(fields) == {*COLUMNS, "age", "weight", "place", "note", "tokens", "words"}
    assert fields["split"]["references"] == {"field": {"@id": "splits/name"}}
    shapes = {name: field["arrayShape"] for name, field in fields.items() if "isArray" in field}
    assert shapes == {"place": "2", "tokens": "-1", "words": "-1"}


def test_mlcroissant_finds_it_valid_and_reads_the_index(insects):
    mlc = pytest.importorskip("mlcroissant", reason="mlcroissant is not installed")
    logging.getLogger("absl").setLevel(logging.ERROR)
    described = mlc.Dataset(str(insects / "croissant.json"))
    known = described.metadata
    assert known.name == "set" and not known.ctx.issues.errors
    asked = ("citeAs", "license", "creator", "url", "datePublished")
    assert [text for text in known.ctx.issues.warnings if not any(a in text for a in asked)] == []
    rows = read_index(str(insects), typed(manifest(insects))).to_pylist()
    found = {record["records/key"].decode(): record for record in described.records("records")}
    assert len(found) == len(rows) == 36
    for row in rows:
        for name, value in row.items():
            assert decoded(found[row["key"]][f"records/{name}"]) == pytest.approx(value)


def decoded(value):
    """Texts in place of bytes."""
    if isinstance(value, list):
        return [decoded(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


def test_tfds_reads_every_record_of_every_split_by_its_shape_and_names(insects):
    builder = pytest.importorskip("tensorflow_datasets").builder_from_directory(insects)
    known, described = builder.info.features, manifest(insects)
    label = known["image/class/label"]
    assert label.names == described["classes"] == ["ant", "bee's nest", "Čmelák"]
    assert known["tokens"].shape == (None,) and known["place"].shape == (2,)
    written = records_of(insects)
    for split in described["splits"]:
        expected_of = {key: of for key, of in written.items() if of["split"] == split}
        found = list(builder.as_dataset(split=split, shuffle_files=False).as_numpy_iterator())
        assert len(found) == len(expected_of) > 4
        for example in found:
            expected = expected_of.pop(example["image/filename"].decode())
            assert set(example) == set(described["features"])
            assert example.pop("image/encoded").shape == (24, 32, 3)
            for name, value in example.items():
                np.testing.assert_array_equal(np.ravel(value), expected.get(name, []), err_msg=name)


def features_of(folder, insects, **changes):
    """What TFDS makes of the features of a changed manifest."""
    tfds = pytest.importorskip("tensorflow_datasets")
    for file, text in tfds_files(typed(manifest(insects) | changes)).items():
        (folder / file).write_text(text, encoding="utf-8")
    return tfds.builder_from_directory(folder).info.features


@pytest.mark.parametrize(
    ("image", "shape"),
    [
        ({"size": 32, "mode": "pad", "channels": 3}, (32, 32, 3)),
        ({"size": [16, 32], "mode": "stretch", "channels": 1}, (16, 32, 1)),
        ({"size": 32, "mode": "shortest", "channels": 3}, (None, None, 3)),
        ({"size": 32, "mode": "crop", "channels": 3, "only_shrink": True}, (None, None, 3)),
    ],
)
def test_picture_shape_follows_the_resize_mode(tmp_path, insects, image, shape):
    assert features_of(tmp_path, insects, image=image)["image/encoded"].shape == shape


@pytest.mark.parametrize("classes", [["a", " a"], ["a", " "]])
def test_names_tfds_would_confuse_are_left_out(tmp_path, insects, classes):
    label = features_of(tmp_path, insects, classes=classes)["image/class/label"]
    assert (label.num_classes, label.names) == (2, ["0", "1"])
