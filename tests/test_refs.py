"""Batches of references survive their coder."""

from __future__ import annotations

import apache_beam as beam
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.refs import ImageRef, RefBatch, RefBatchCoder

TEXT = st.text(st.characters())  # lone surrogates too: names of files may be no text
COLUMNS = st.dictionaries(TEXT, st.integers() | st.floats(allow_nan=False) | st.lists(TEXT))
REFS = st.builds(
    ImageRef, TEXT, TEXT, TEXT, st.none() | TEXT, st.none() | TEXT,
    st.integers(-1, 2**63), st.integers(0, 2**63), st.none() | COLUMNS,
)  # fmt: skip


@given(st.lists(REFS, max_size=5))
def test_what_is_encoded_is_decoded(refs):
    coder = RefBatchCoder()
    found = coder.decode(coder.encode(RefBatch(refs))).refs
    assert found == refs
    assert all(type(ref) is ImageRef for ref in found)


def test_beam_uses_the_coder_for_batches_and_says_that_it_cannot_be_a_key():
    coder = beam.coders.registry.get_coder(RefBatch)
    assert isinstance(coder, RefBatchCoder)
    assert not coder.is_deterministic()


def test_a_batch_is_as_long_as_its_references():
    batch = RefBatch([ImageRef("k", "u", "l")] * 3)
    assert len(batch) == 3
    assert repr(batch) == "RefBatch(3 refs)"
