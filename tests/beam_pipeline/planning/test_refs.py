"""How references, batches of them and shards travel."""

import pickle

from hypothesis import example, given
from hypothesis import strategies as st

from beam_pipeline.planning.refs import ImageRef, RefBatch, ShardUnit
from imageshards.manifest import FeatureSpec

TEXT = st.text(st.characters())  # lone surrogates too: names of files may be no text
COLUMNS = st.dictionaries(TEXT, st.integers() | st.floats(allow_nan=False) | st.lists(TEXT))
REFS = st.builds(
    ImageRef, TEXT, TEXT, TEXT, st.none() | TEXT, st.none() | TEXT,
    st.integers(-1, 2**63), st.integers(0, 2**63), st.none() | COLUMNS,
)  # fmt: skip


@given(st.lists(REFS, max_size=5))
@example([])
@example([ImageRef("nul\0in a key", "elsewhere", "x", None, "g", 2**64, -1, {"a": [1]})])
def test_references_round_trip_in_batches_and_in_units(refs):
    features = {"age": FeatureSpec("int64", ())}
    unit = ShardUnit("train", 3, 8, {"dog": 1, "cat": 0}, refs, features)
    batch, found = pickle.loads(pickle.dumps((RefBatch(refs), unit), protocol=5))
    assert batch.refs == refs and found == unit
    assert list(found.class_ids) == ["dog", "cat"]
    assert all(type(ref) is ImageRef for ref in [*batch.refs, *found.refs])


def test_a_reference_travels_in_few_bytes():
    keys = [f"cat/cat_{i:08d}.jpg" for i in range(2000)]
    refs = [ImageRef(key, f"gs://bucket/photos/{key}", "cat", "train") for key in keys]
    plain = len(pickle.dumps([tuple(ref) for ref in refs], protocol=5))
    assert len(pickle.dumps(RefBatch(refs), protocol=5)) < 0.3 * plain
