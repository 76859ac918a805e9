"""How the plan grows: what is held, grouped and broadcast, for one size and for another."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from typing import Any

import pytest
from apache_beam.coders import StrUtf8Coder

from beam_pipeline.inputs import duplicate_keys
from beam_pipeline.options import PlanOptions
from beam_pipeline.planning import plan
from benchmarks import scale, scale_graph, scale_plan
from benchmarks.cases import Settings
from benchmarks.scale import fit, side_inputs
from benchmarks.scale_plan import PlanOnPaper
from benchmarks.scale_refs import Synthetic
from benchmarks.scale_shuffle import DiskList, DiskShuffle
from benchmarks.scale_simulation import Assumptions, simulate

IDEAL = Assumptions(
    start_sec=(0, 0), slow_fraction=0, shard_spread=0, losses_per_hour=0, plan_steps=0,
    step_sec=0, page_sec=0, plan_cpu_usec=0, commit_shard_msec=0,
)  # fmt: skip


@pytest.fixture(scope="module")
def plans(tmp_path_factory) -> dict[tuple[int, int, bool], scale_plan.Measured]:
    """Plans of a shuffled manifest and of folders: 8 and 32 thousand images in 8 shards."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "MIN_BUCKET_SIZE", 200)
        patch.setattr(duplicate_keys, "BUCKET_SIZE", 1000)
        for images in (8_000, 32_000):
            for shards in (8, images // 1000):
                shuffled = shards == 8
                folder = tmp_path_factory.mktemp("plan")
                options = PlanOptions(splits={"train": 1.0}, num_shards={"*": shards})
                source = Synthetic(images, 4, shuffled)
                found[images, shards, shuffled] = PlanOnPaper(source, options, folder).run()
    return found


def test_the_paper_plan_makes_the_shards_of_the_pipeline(plans):
    for (images, shards, _), found in plans.items():
        units = found.traffic["Spread of units"]
        assert (found.shards, units.elements) == (shards, shards)
        assert units.largest_refs == math.ceil(images / shards)


def test_nothing_grouped_is_larger_than_a_shard(plans):
    for (images, shards, _), found in plans.items():
        for name in ("GroupBuckets", "sorted buckets", "GroupShards", "Spread of units"):
            # Hashes fall into buckets as they like: five deviations.
            refs = images / shards
            assert found.traffic[name].largest_refs <= refs + 5 * math.sqrt(refs), name
        assert found.traffic["GroupHashes, manifests only"].largest_refs <= 1000 + 5 * 32


def test_bytes_shuffled_and_elements_do_not_outgrow_the_images(plans):
    small, large = plans[8_000, 8, True], plans[32_000, 8, True]
    for name, before in small.traffic.items():
        after = large.traffic[name]
        assert after.size_bytes <= 4 * 1.05 * before.size_bytes, name
        assert after.elements <= 4 * before.elements + 10, name


def test_side_inputs_are_constant_in_the_images_when_the_shards_are_as_many(plans):
    small, large = plans[8_000, 8, True], plans[32_000, 8, True]
    for name, size_bytes in large.side_bytes.items():
        assert size_bytes <= 1.1 * small.side_bytes[name], name


def test_a_shuffled_manifest_is_not_shuffled_row_by_row(plans):
    found = plans[32_000, 8, True].traffic["GroupBuckets"]
    assert 32_000 / found.elements > 1000


def test_side_inputs_follow_from_counts_alone():
    small, large = side_inputs(1_000_000, 1000), side_inputs(100_000_000, 1000)
    assert large["layout"] < 1.1 * small["layout"]
    assert large["ranks"] / large["shards"] < 30  # bytes
    assert large["largest bucket"] <= max(plan.MIN_BUCKET_SIZE, large["refs of a shard"])


def test_a_synthetic_input_is_always_the_same_and_whole():
    source = Synthetic(2500, 10)
    refs = [ref for batch in source.batches() for ref in batch.refs]
    assert [ref for batch in source.batches() for ref in batch.refs] == refs
    assert len({ref.key for ref in refs}) == 2500
    counts = {ref.label: 0 for ref in refs}
    for ref in refs:
        counts[ref.label] += 1
    assert set(counts.values()) == {250}
    rows = [ref.label for ref in Synthetic(2500, 10, shuffled=True).batch(1).refs]
    assert rows != sorted(rows)


def test_a_shuffle_on_disk_groups_and_counts(tmp_path):
    source = Synthetic(3000, 3)
    shuffle = DiskShuffle(tmp_path / "shuffle", StrUtf8Coder(), 3 * 64e6)
    kept = DiskList(tmp_path / "list")
    for number in range(3):
        batch = source.batch(number)
        kept.put(batch)
        shuffle.put(batch.refs[0].label, batch)
        shuffle.put("all", batch)
    assert [batch.refs for batch in kept.batches()] == [b.refs for b in source.batches()]
    groups = dict(shuffle.groups())
    assert sorted(map(len, groups["all"])) == [1000, 1000, 1000]
    assert len(groups) == 4
    traffic = shuffle.traffic
    assert (traffic.elements, traffic.keys, traffic.largest_refs) == (6, 4, 3000)
    assert traffic.size_bytes > traffic.largest_bytes > 3000 * 30
    assert list((tmp_path / "shuffle").iterdir()) == []


@pytest.mark.parametrize(
    ("points", "fixed", "per_image", "exponent"),
    [
        ([(10, 25.0), (100, 205.0), (1000, 2005.0)], 5, 2, 1),
        ([(10, 7.0), (1000, 7.0)], 7, 0, None),
        ([(50, 100.0)], 0, 2, 1),
    ],
)
def test_a_law_is_found_through_its_own_points(points, fixed, per_image, exponent):
    law = fit(points)
    assert law.fixed == pytest.approx(fixed, abs=1e-6)
    assert law.per_image == pytest.approx(per_image, abs=1e-9)
    assert law.at(10_000) == pytest.approx(fixed + per_image * 10_000)
    if exponent is not None:
        assert law.exponent == pytest.approx(exponent, abs=1e-6)


def test_a_quadratic_law_is_seen():
    assert fit([(n, 1e-3 * n * n) for n in (1000, 2000, 4000)]).exponent > 1.8


def test_workers_that_wait_for_nothing_are_busy_all_the_time():
    run = simulate(1_000_000, 1000, 100, IDEAL, 0)
    assert run.busy > 0.97
    assert run.written == pytest.approx(1_000_000 / IDEAL.images_per_sec / 100, rel=0.03)
    assert run.redone == 0


@pytest.mark.parametrize(
    ("change", "least"),
    [
        ({"start_sec": (60, 60)}, 60),
        ({"plan_steps": 3, "step_sec": 7.0}, 21),
        ({"slow_fraction": 1.0, "slow_speed": 0.5}, 55),
        ({"reads_per_sec": 5000.0, "doubling_sec": 1e9}, 130),
        ({"losses_per_hour": 100.0}, 5),
        ({"shard_spread": 0.5}, 1),
        ({"commit_shard_msec": 20.0}, 20),
    ],
)
def test_every_assumption_costs_time(change, least):
    ideal = simulate(1_000_000, 1000, 100, IDEAL, 1).total
    assumed = dataclasses.replace(IDEAL, **change)
    assert simulate(1_000_000, 1000, 100, assumed, 1).total >= ideal + least


def test_few_shards_leave_workers_idle():
    whole = simulate(1_000_000, 100, 100, IDEAL, 0).written
    assert simulate(1_000_000, 101, 100, IDEAL, 0).written > 1.9 * whole
    assert simulate(1_000_000, 801, 100, IDEAL, 0).written < 1.15 * whole


@pytest.mark.slow
def test_the_graph_of_synthetic_references_runs(capsys):
    arguments = ["--images", "4321", "--classes", "7", "--shuffled", "--runner", "FnApiRunner"]
    assert scale_graph.main(arguments) == 0
    assert capsys.readouterr().out == "1 units, 4321 images\n"


@pytest.mark.slow
def test_the_benchmark_and_the_tables(tmp_path, monkeypatch, capsys):
    measured: dict[str, Any] = {}

    def measure(images: int, work: pathlib.Path, *flags: str) -> dict[str, Any]:
        measured[f"paper {images}"] = measure_plan(images, work, *flags)
        return measured[f"paper {images}"]

    measure_plan = scale.measure_plan
    monkeypatch.setattr(scale, "measure_plan", measure)
    outcome = scale.plan_at_scale(Settings(tmp_path, [], listed=16_000))
    assert outcome.rows.keys() == {"2,000 images", "16,000 images"}
    assert all(math.isfinite(value) for figure in outcome.figures for value in figure.values)
    (tmp_path / "scale.json").write_text(json.dumps(measured))
    monkeypatch.setattr(scale, "measure_plan", None)  # what is known is not measured again
    monkeypatch.setattr(scale, "TARGETS", (20_000, 30_000))
    assert scale.main(["--paper", "2000,16000", "--work", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    for name in ("KeyByBucket", "GroupShards", "30,000 images, 1,000 classes", "cold bucket"):
        assert name in said
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
