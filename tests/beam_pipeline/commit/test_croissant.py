"""`croissant.json`: what it says, valid for `mlcroissant`, which reads the index by it."""

import json
import logging

import pytest

from imageshards.index import COLUMNS, read_index
from tests.support.builds import manifest
from tests.support.manifests import shards_of, typed

pytestmark = pytest.mark.process


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
