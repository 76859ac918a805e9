"""Units of work: how they travel."""

from __future__ import annotations

import pickle

from beam_pipeline.planning.refs import ImageRef
from beam_pipeline.planning.shard_unit import ShardUnit


def unit_of(images: int) -> ShardUnit:
    refs = [
        ImageRef(f"cat/cat_{i:08d}.jpg", f"gs://bucket/photos/cat/cat_{i:08d}.jpg", "cat", "train")
        for i in range(images)
    ]
    return ShardUnit("train", 3, 8, "cat", {"cat": 0, "dog": 1}, refs)


def test_a_unit_survives_a_shuffle():
    for unit in (unit_of(0), unit_of(200)):
        found = pickle.loads(pickle.dumps(unit, protocol=5))
        assert found == unit
        assert list(found.class_ids) == list(unit.class_ids)
        assert all(type(ref) is ImageRef for ref in found.refs)


def test_a_reference_of_a_unit_travels_in_few_bytes():
    packed = len(pickle.dumps(unit_of(2000), protocol=5)) / 2000
    plain = len(pickle.dumps([tuple(ref) for ref in unit_of(2000).refs], protocol=5)) / 2000
    assert packed < 0.6 * plain
