"""The records of datasets are listed with their places, from the index."""

import dataclasses

import pytest

from beam_pipeline.inputs.datasets import open_inputs
from beam_pipeline.inputs.records import list_records, shards_to_list
from beam_pipeline.options import BuildOptions, CopiedInput, InputOptions
from imageshards.errors import UserError
from imageshards.example import decode_example
from imageshards.storage import read_range
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused

SHARD = "train-00000-of-00003.tfrecord"


@pytest.fixture
def made(tmp_path):
    return Dataset(tmp_path / "a")


def source_of(made):
    source = open_inputs(BuildOptions(InputOptions(str(made.directory)), "/out")).source
    assert isinstance(source, CopiedInput)
    return source


def refs_of(made):
    (found,) = [f for f in shards_to_list(source_of(made)) if f[0].endswith(SHARD)]
    return list(list_records(*found))


def test_records_are_listed_with_their_places(made):
    refs = refs_of(made)
    assert [ref.label for ref in refs] == ["cat", "dog"] * 3
    assert {ref.split for ref in refs} == {"train"}
    for ref, payload in zip(refs, made.payloads[SHARD], strict=True):
        framed = read_range(ref.uri, ref.offset_bytes, ref.offset_bytes + 16 + ref.size_bytes)
        assert framed[12:-4] == payload
        assert decode_example(payload)["image/filename"] == [ref.key.encode()]


def test_listing_records_without_columns_reads_only_the_index(made):
    refs = refs_of(made)
    assert {ref.source_bytes for ref in refs} == {1000}
    (made.directory / SHARD).write_bytes(b"")
    assert refs_of(made) == refs
    (made.directory / "index" / SHARD.replace("tfrecord", "parquet")).write_bytes(b"half")
    with pytest.raises(UserError, match="is not the file that manifest.json names.*copy it again"):
        refs_of(made)


def test_records_have_no_split_when_splits_are_drawn_again(made):
    source = dataclasses.replace(source_of(made), keeps_splits=False)
    path, split, entry = next(iter(shards_to_list(source)))
    assert split is None and [ref.split for ref in list_records(path, split, entry)] == [None] * 6


def test_a_dataset_replaced_during_the_build_ends_the_build(made):
    source = source_of(made)
    made.manifest["fingerprint"] = "other"
    made.save()
    with refused("input", str(made.directory)):
        list(shards_to_list(source))
