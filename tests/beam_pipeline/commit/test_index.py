"""The index of a built data set: a row for each record, where it is after records have moved."""

from __future__ import annotations

import hashlib

import pytest

from imageshards.example import decode_example
from imageshards.index import read_index
from imageshards.tfrecord import frame_record
from tests.support.builds import manifest
from tests.support.manifests import shards_of, typed

pytestmark = pytest.mark.process


def test_every_record_is_where_its_row_says_with_what_it_says(insects):
    described = manifest(insects)
    found = read_index(str(insects), typed(described)).to_pylist()
    assert len(found) == 36
    assert [(row["split"], row["shard"], row["record"]) for row in found] == [
        (split, shard["file"], number)
        for split, shard in shards_of(described)
        for number in range(shard["num_records"])
    ]
    for row in found:
        with open(insects / row["shard"], "rb") as file:
            file.seek(row["offset"])
            frame = file.read(row["num_bytes"])
        payload = frame[12:-4]
        assert frame == frame_record(payload)
        features = decode_example(payload)
        original = (insects.parent / row["key"]).read_bytes()
        assert features["image/filename"] == [row["key"].encode()]
        assert features["image/class/text"] == [row["class_name"].encode()]
        assert features["image/class/label"] == [row["label"]]
        assert (row["source_bytes"], row["width"], row["height"]) == (len(original), 32, 24)
        assert row["source_sha256"] == hashlib.sha256(original).hexdigest()
