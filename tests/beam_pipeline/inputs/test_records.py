"""The records of data sets are listed with their places, from an index or by reading shards."""

from __future__ import annotations

import dataclasses
import json

import pytest

from beam_pipeline.inputs.data_sets import open_inputs
from beam_pipeline.inputs.records import list_records, shards_to_list
from beam_pipeline.options import BuildOptions, ColumnSpec, InputOptions
from beam_pipeline.planning.refs import LOST_RECORD
from imageshards.errors import UserError
from imageshards.example import decode_example
from imageshards.storage import read_range
from tests.support.dataset_factory import Dataset

SHARD = "train-00000-of-00003.tfrecord"


@pytest.fixture
def made(tmp_path):
    return Dataset(tmp_path / "a")


def source_of(made: Dataset) -> InputOptions:
    return open_inputs(BuildOptions(InputOptions(str(made.directory)), "/out")).source


def refs_of(made: Dataset, name: str = SHARD) -> list:
    source = source_of(made)
    (found,) = [found for found in shards_to_list(source) if found[0].endswith(name)]
    return list(list_records(*found))


def test_records_are_listed_with_their_places(made):
    refs = refs_of(made)
    assert [ref.label for ref in refs] == ["cat", "dog"] * 3
    assert {ref.split for ref in refs} == {"train"}
    for ref, payload in zip(refs, made.payloads[SHARD], strict=True):
        framed = read_range(ref.uri, ref.offset_bytes, ref.offset_bytes + 16 + ref.size_bytes)
        assert framed[12:-4] == payload
        assert decode_example(payload)["image/filename"] == [ref.key.encode()]


def test_an_index_says_the_same_and_more(made, tmp_path):
    indexed = Dataset(tmp_path / "b", index=True)
    refs = refs_of(indexed)
    where = str(made.directory / SHARD)
    assert [ref._replace(uri=where, source_bytes=None) for ref in refs] == refs_of(made)
    assert {ref.source_bytes for ref in refs} == {1000}
    (indexed.directory / SHARD).write_bytes(b"")  # nothing of it is read
    assert refs_of(indexed) == refs
    (indexed.directory / "index" / SHARD.replace("tfrecord", "parquet")).write_bytes(b"half")
    with pytest.raises(UserError, match="is not the file that manifest.json names.*copy it again"):
        refs_of(indexed)


def test_an_index_says_of_records_that_are_read_what_they_do_not(made, tmp_path):
    width = ColumnSpec("image/width", "int", ())
    indexed = Dataset(tmp_path / "b", index=True)
    (found,) = [f for f in shards_to_list(source_of(indexed)) if f[0].endswith(SHARD)]
    refs = list(list_records(*found, columns=[width]))
    assert [ref._replace(columns=None) for ref in refs] == refs_of(indexed)
    assert [ref.columns for ref in refs] == [{"image/width": 16}] * 6


def test_splits_are_left_open_where_they_are_drawn_again(made):
    source = dataclasses.replace(source_of(made), keeps_splits=False)
    path, split, entry = next(iter(shards_to_list(source)))
    assert split is None and [ref.split for ref in list_records(path, split, entry)] == [None] * 6


def damage(made: Dataset, at: int, by: bytes = b"\xff\xff\xff\xff") -> None:
    path = made.directory / SHARD
    data = bytearray(path.read_bytes())
    data[at : at + len(by)] = by
    path.write_bytes(bytes(data))


def test_a_damaged_picture_is_listed_by_its_own_name(made):
    refs = refs_of(made)
    damage(made, refs[2].offset_bytes + 12 + made.payloads[SHARD][2].index(b"\xff\xda") + 4)
    assert refs_of(made) == refs


def test_records_behind_a_damaged_length_are_listed_as_lost_of_the_classes_that_are_missing(made):
    refs = refs_of(made)
    damage(made, refs[3].offset_bytes)
    found = refs_of(made)
    assert found[:3] == refs[:3]
    assert [ref.key for ref in found[3:]] == [f"{SHARD}#{n}" for n in (3, 4, 5)]
    assert [ref.label for ref in found[3:]] == ["cat", "dog", "dog"]
    assert {ref.offset_bytes for ref in found[3:]} == {LOST_RECORD}


def test_shards_that_are_not_those_of_the_manifest_end_the_build(made):
    made.write_shard(SHARD)
    with pytest.raises(UserError, match="holds more than the 5 records"):
        list(list_records(str(made.directory / SHARD), "train", {"num_records": 5}))
    (made.directory / SHARD).unlink()
    with pytest.raises(UserError, match=f"{SHARD}' is gone; restore it"):
        refs_of(made)
    source = source_of(made)
    made.manifest["fingerprint"] = "other"
    (made.directory / "manifest.json").write_text(json.dumps(made.manifest))
    with pytest.raises(UserError, match="was replaced while this build read it"):
        list(shards_to_list(source))
