"""Elements of a shuffle are few and hold every reference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.planning import batching
from beam_pipeline.planning.batching import BatchByKeyFn
from beam_pipeline.planning.refs import ImageRef, RefBatch


def by_label(batch: RefBatch, suffix: str = ""):
    for ref in batch.refs:
        yield ref.label + suffix, ref


def batches_of(labels: str) -> list[RefBatch]:
    refs = [ImageRef(str(i), "u", label) for i, label in enumerate(labels)]
    return [RefBatch(refs[i : i + 3]) for i in range(0, len(refs), 3)]


def test_references_of_one_key_are_sent_together_over_a_bundle_and_no_other():
    fn = BatchByKeyFn(by_label)
    for labels, expected in (
        ("abcabcaab", [("a!", 4), ("b!", 3), ("c!", 2)]),
        ("b", [("b!", 1)]),
    ):
        fn.start_bundle()
        assert [sent for batch in batches_of(labels) for sent in fn.process(batch, "!")] == []
        sent = [windowed.value for windowed in fn.finish_bundle()]
        assert [(key, len(batch)) for key, batch in sent] == expected


@given(st.text("abcd", max_size=60), st.integers(1, 20))
def test_all_are_sent_once_and_few_wait(labels, limit):
    fn = BatchByKeyFn(by_label)
    before, batching.MAX_HELD_REFS = batching.MAX_HELD_REFS, limit
    try:
        fn.start_bundle()
        sent: list[tuple[str, RefBatch]] = []
        for batch in batches_of(labels):
            sent += fn.process(batch)
            assert sum(map(len, fn._batches.values())) < limit
        sent += [windowed.value for windowed in fn.finish_bundle()]
    finally:
        batching.MAX_HELD_REFS = before
    assert all(ref.label == key for key, batch in sent for ref in batch.refs)
    found = sorted(int(ref.key) for _, batch in sent for ref in batch.refs)
    assert found == list(range(len(labels)))
