"""The transforms in a pipeline of one's own, whose steps Beam does again."""

import contextlib
import itertools
import signal
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import psutil
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import BundleManager
from apache_beam.testing.util import assert_that, equal_to

import beam_pipeline as bp
from beam_pipeline.commit import dataset, finalize
from beam_pipeline.shards import transforms
from imageshards.verification import command as verify
from tests.support.builds import class_folders, manifest, quarantined, rejects_of
from tests.support.commands import Command, wait_until
from tests.support.commit_steps import spreads
from tests.support.web_server import WebServer

pytestmark = pytest.mark.process


def failing(function, calls: Iterator[int], after: bool):
    """The function, whose first call fails, before or after it has done its work."""

    def call(*args, **named):
        is_first = next(calls) == 0
        if is_first and not after:
            raise OSError("disturbed")
        found = function(*args, **named)
        found = list(found) if function.__name__ == "finalize_write" else found
        if is_first:
            raise OSError("disturbed")
        return found

    return call


@pytest.fixture
def every_bundle_again(monkeypatch):
    """Beam does each bundle again: up to four times if it fails, then as its results are lost."""
    process = BundleManager.process_bundle

    def again(self: BundleManager, *given: Any) -> Any:
        for _ in range(4):
            with contextlib.suppress(OSError):
                process(self, *given[:4], dry_run=True)
                break
        return process(self, *given)

    monkeypatch.setattr(BundleManager, "process_bundle", again)


@pytest.mark.usefixtures("every_bundle_again")
def test_failed_steps_are_repeated_and_rejects_come_out_once(tmp_path, monkeypatch):
    root = class_folders(tmp_path / "photos", {"cat": 12, "dog": 9})
    broken = {"cat/bad.jpg": b"no picture", "dog/bad.jpg": b""}
    for key, data in broken.items():
        (root / key).write_bytes(data)
    paths = sorted(root.glob("*/*.jpg"))
    refs = [bp.ImageRef(str(p.relative_to(root)), str(p), p.parent.name) for p in paths]
    options = bp.ShardOptions(
        image=bp.ImageOptions(height_px=16, width_px=16),
        plan=bp.PlanOptions(splits={"train": 0.7, "test": 0.3}, num_shards={"*": 2}),
    )
    staging = f"{tmp_path}/set/.staging"
    write = bp.WriteBalancedTFRecord(
        f"{tmp_path}/set/", options, file_name_suffix=".tfrecord", staging=staging
    )
    steps = [
        (transforms.ShardWriter, "write", False),
        (transforms.ShardWriter, "close", True),
        (transforms.BalancedSink, "finalize_write", True),
        (transforms, "decode_reject", True),
        (finalize, "note_activity", True),
        (dataset, "publish_manifest", True),
    ]
    calls = [itertools.count() for _ in steps]
    for (owner, name, after), counter in zip(steps, calls, strict=True):
        monkeypatch.setattr(owner, name, failing(getattr(owner, name), counter, after))
    with beam.Pipeline("FnApiRunner", options=PipelineOptions([])) as pipeline:
        own = pipeline | beam.Create(refs)
        batches = own | bp.BatchRefs() | bp.AssignSplits(options)
        columns = batches | bp.AnalyseColumns(f"{staging}/transform", options=options)
        planned = columns.batches | bp.PlanShards(options, features=columns.features)
        files = planned.units | write
        spec = bp.CommitSpec(write.places, write.options, max_reject_fraction=0.1)
        files | bp.CommitShards(spec, planned.plan)
        found = files | bp.ReadRejects(write) | beam.Map(lambda reject: (reject.key, reject.reason))
        assert_that(found, equal_to([("cat/bad.jpg", "not_an_image"), ("dog/bad.jpg", "empty")]))
    assert all(next(counter) >= 2 for counter in calls)  # each of them failed once
    made = manifest(tmp_path / "set")
    assert (made["listed"], made["rejects"]) == (23, {"empty": 1, "not_an_image": 1})
    assert sum(split["num_records"] for split in made["splits"].values()) == 21
    assert spreads(tmp_path / "set") <= {0, 1}
    assert rejects_of(tmp_path / "set").keys() == broken.keys()
    assert quarantined(tmp_path / "set") == {key: [data] for key, data in broken.items()}
    assert verify.main([str(tmp_path / "set")]) == 0


def test_shards_are_written_at_the_same_time_and_ctrl_c_waits_for_none(tmp_path):
    with WebServer({}) as server:
        addresses = [f"{server.url}/silent?{name}" for name in "ab"]
        module = "tests.support.own_pipeline_run"
        running = Command("beam_pipeline", module, tmp_path, *addresses)
        wait_until(lambda: len(set(server.asked)) == 2, running)
        children = psutil.Process(running.pid).children()
        running.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in running.communicate(timeout=20)[1]
        assert not psutil.wait_procs(children, timeout=20)[1]
    assert len(server.asked) == 2  # none was given up before, as after a time-out
