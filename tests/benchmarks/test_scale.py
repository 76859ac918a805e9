"""How the plan grows: what is shuffled and broadcast, for one size and for another."""

from __future__ import annotations

import math

import pytest

from beam_pipeline.planning import plan
from benchmarks import scale
from benchmarks.cases import Settings
from benchmarks.scale import Synthetic, fit, run_graph, side_inputs


def test_side_inputs_follow_from_counts_alone():
    small, large = side_inputs(1_000_000, 1000), side_inputs(100_000_000, 1000)
    assert large["layout"] < 1.1 * small["layout"]
    assert large["ranks"] / large["shards"] < 30  # bytes
    assert large["largest bucket"] <= max(plan.MIN_BUCKET_SIZE, large["refs of a shard"])


def test_a_synthetic_input_is_always_the_same_and_whole():
    source = Synthetic(2500, 10)
    refs = [ref for number in range(source.batches) for ref in source.batch(number).refs]
    assert len({ref.key for ref in refs}) == 2500
    assert source.batch(1).refs == source.batch(1).refs
    counts = {ref.label: 0 for ref in refs}
    for ref in refs:
        counts[ref.label] += 1
    assert set(counts.values()) == {250}
    rows = [ref.label for ref in Synthetic(2500, 10, shuffled=True).batch(1).refs]
    assert rows != sorted(rows)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(10, 25.0), (100, 205.0), (1000, 2005.0)], (5, 2)),
        ([(10, 7.0), (1000, 7.0)], (7, 0)),
        ([(50, 100.0)], (0, 2)),
    ],
)
def test_a_law_is_found_through_its_own_points(points, expected):
    assert fit(points) == pytest.approx(expected, abs=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_bytes_shuffled_and_elements_do_not_outgrow_the_images(monkeypatch):
    monkeypatch.setattr(plan, "MIN_BUCKET_SIZE", 200)
    small, large = (run_graph(Synthetic(n, 4, shuffled=True), 8) for n in (4_000, 16_000))
    assert (small["units"], large["images"]) == (8, 16_000)
    for name in ("SpreadBatches", "Plan/GroupBuckets", "Plan/GroupShards", "Plan/SpreadUnits"):
        before, after = small["shuffles"][name], large["shuffles"][name]
        assert before["size_bytes"] > 4_000 * 30
        assert after["size_bytes"] <= 4 * 1.05 * before["size_bytes"], name
        assert after["elements"] <= 4 * before["elements"] + 10, name
    assert 100 < scale.shuffled_bytes(large) < 500
    assert "UniqueKeys/FindEqualHashes/GroupHashes" in large["shuffles"]


@pytest.mark.long
@pytest.mark.slow
def test_the_benchmark_and_the_tables(tmp_path):
    outcome = scale.plan_at_scale(Settings(tmp_path, [], listed=8_000))
    assert outcome.rows.keys() == {"1,000 images", "8,000 images"}
    assert all(math.isfinite(value) for figure in outcome.figures for value in figure.values)
    measured = [run_graph(Synthetic(n, 4), 2) for n in (500, 1_000)]
    said = scale.tables(measured)
    for words in ("Plan/GroupShards", "law: 100,000,000", "100,000,000 images, 1,000 classes"):
        assert words in said
