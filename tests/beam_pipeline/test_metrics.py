"""What a runner shows of a build: items, bytes and milliseconds of each stage."""

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import MetricsFilter

from tests.support import builds

pytestmark = pytest.mark.process


def test_counters_of_all_stages_are_metrics_of_the_job(tmp_path, monkeypatch):
    results, run = [], beam.Pipeline.run

    def noting_run(pipeline: beam.Pipeline) -> Any:
        results.append(run(pipeline))
        return results[-1]

    monkeypatch.setattr(beam.Pipeline, "run", noting_run)
    photos = builds.class_folders(tmp_path / "in", {"cat": 10, "dog": 10}, broken=2)
    flags = ["--image_size", "16", "--num_shards", "2", "--max_reject_fraction", "0.1"]
    output = builds.build_set(photos, tmp_path / "set", "--no_report", *flags)
    named = MetricsFilter().with_namespace("imageshards")
    found = {
        each.key.metric.name: each.committed
        for each in results[0].metrics().query(named)["counters"]
    }
    originals = [path.stat().st_size for path in photos.rglob("*.jpg")]
    made = sum(path.stat().st_size for path in output.glob("*.tfrecord"))
    records = dict.fromkeys(("encode", "write", "commit"), 20)
    images = dict.fromkeys(("list", "plan", "read", "decode"), len(originals))
    assert {stage: found[f"{stage}_items"] for stage in (images | records)} == images | records
    assert found["list_bytes"] == found["read_bytes"] == sum(originals)
    assert found["write_bytes"] == found["commit_bytes"] == made
    assert found["read_rejects"] == 2
    assert all(found[f"{stage}_msec"] >= 0 for stage in images | records)
    assert found["decode_msec"] + found["list_msec"] + found["commit_msec"] > 0
