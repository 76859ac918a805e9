"""How references, batches of them and shards travel."""

from __future__ import annotations

import pickle

import apache_beam as beam
from hypothesis import example, given
from hypothesis import strategies as st

from beam_pipeline.planning.batching import RefBatchCoder
from beam_pipeline.planning.refs import (
    ImageRef,
    RefBatch,
    ShardUnit,
    with_split,
)

TEXT = st.text(st.characters())  # lone surrogates too: names of files may be no text
COLUMNS = st.dictionaries(TEXT, st.integers() | st.floats(allow_nan=False) | st.lists(TEXT))
REFS = st.builds(
    ImageRef, TEXT, TEXT, TEXT, st.none() | TEXT, st.none() | TEXT,
    st.integers(-1, 2**63), st.integers(0, 2**63), st.none() | COLUMNS,
)  # fmt: skip


@given(st.lists(REFS, max_size=5))
@example([])
@example([ImageRef("nul\0in a key", "elsewhere", "x", None, "g", 2**64, -1, {"a": [1]})])
def test_references_round_trip(refs):
    coder = RefBatchCoder()
    found = coder.decode(coder.encode(RefBatch(refs))).refs
    assert found == refs
    assert all(type(ref) is ImageRef for ref in found)


def test_beam_uses_the_coder_for_batches_and_says_that_it_cannot_be_a_key():
    coder = beam.coders.registry.get_coder(RefBatch)
    assert isinstance(coder, RefBatchCoder)
    assert not coder.is_deterministic()


def test_with_split_changes_nothing_else():
    ref = ImageRef("k", "u", "l", None, "g", 5, 6, {"a": 1})
    assert with_split(ref, "train") == ref._replace(split="train")
    assert type(with_split(ref, "train")) is ImageRef


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
    assert packed < 0.3 * plain
