"""The index of a built dataset: a row for each record, where it is after records have moved."""

import hashlib

import pytest

from imageshards.example import decode_example
from imageshards.index import read_index
from imageshards.tfrecord import frame_record
from tests.support.builds import manifest
from tests.support.built_records import assert_records_are_as_described
from tests.support.manifests import typed

pytestmark = pytest.mark.process


def test_every_record_is_where_its_row_says_and_made_of_the_original_that_the_row_names(insects):
    assert assert_records_are_as_described(insects) == 36
    for row in read_index(str(insects), typed(manifest(insects))).to_pylist():
        data = (insects / row["shard"]).read_bytes()
        frame = data[row["offset"] : row["offset"] + row["num_bytes"]]
        payload = frame[12:-4]
        assert frame == frame_record(payload)
        assert decode_example(payload)["image/filename"] == [row["key"].encode()]
        original = (insects.parent / row["key"]).read_bytes()
        assert row["source_bytes"] == len(original)
        assert row["source_sha256"] == hashlib.sha256(original).hexdigest()
