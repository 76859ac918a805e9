"""What must hold before a manifest says so, in whole builds whose commit is disturbed."""

import dataclasses
import os
import pathlib
import threading

import pytest

import beam_pipeline.commit.transforms as commit
from beam_pipeline.commit import finalize
from imageshards.errors import OutputError, UserError
from imageshards.verification import command as verify
from tests.support.builds import build, class_folders, manifest, run_example
from tests.support.commit_steps import Job, fingerprint_if_whole, make_units, spreads
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused
from tests.support.manifests import shards_of

pytestmark = pytest.mark.process


@pytest.fixture
def flags(tmp_path) -> list[str]:
    photos = class_folders(tmp_path / "in", {"ant": 12, "bee": 12}, broken=4)
    return [
        "--input", str(photos), "--output", str(tmp_path / "set"), "--image_size", "16",
        "--splits", "train=1", "--num_shards", "4", "--max_reject_fraction", "0.5",
    ]  # fmt: skip


_TOGETHER = threading.Barrier(4)


def finalize_together(task, places):
    """Waits until four shards are made final at the same time."""
    _TOGETHER.wait(60)
    return finalize.finalize_shard(task, places)


def test_shards_made_final_side_by_side_are_on_the_disk_before_the_manifest_is(
    flags, tmp_path, monkeypatch
):
    output = tmp_path / "set"
    synced: list[str] = []
    fsync, link = os.fsync, os.link

    def noting_fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def noting_link(source: str, target: str) -> None:
        synced.append(f"link {target}")
        link(source, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "link", noting_link)
    monkeypatch.setattr(commit, "finalize_shard", finalize_together)
    assert build(*flags, "--no_report") == 0
    place = synced.index(f"link {output}/manifest.json")
    paths = [*output.glob("*.tfrecord"), *(output / "quarantine").iterdir(), output]
    assert len(paths) > 6 and {*map(str, paths)} <= {*synced[:place]}
    assert str(output) in synced[place:], "the name of the manifest itself"


def test_a_report_that_cannot_be_drawn_costs_no_dataset(flags, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("imageshards.reporting.page.page_of", lambda *args: 1 / 0)
    assert build(*flags) == 0
    output = tmp_path / "set"
    assert manifest(output)["listed"] == 28
    (warning,) = [r for r in caplog.records if r.name == "imageshards.reporting.page"]
    assert f"imageshards report {output}" in warning.getMessage()


def test_overwrite_leaves_nothing_of_the_dataset_before(flags, tmp_path, capsys):
    output = Dataset(tmp_path / "set", rejects={"truncated": 1}).directory
    earlier = ("croissant.json", "image.class.label.labels.txt", "test-00000-of-00001.tfrecord")
    others = ("notes.json", "my.labels.txt", "duplicates/exclude.txt")
    for name in (*earlier, *others, "index/old.parquet", "report/index.html"):
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_text("earlier")
    assert verify.main([str(output)]) == 1
    said = capsys.readouterr().out
    assert all(f"{name}: the manifest does not list it" in said for name in earlier)
    assert build(*flags, "--label", "none", "--overwrite", "--no_report") == 0
    found = {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}
    told = manifest(output)
    shards = [shard for _, shard in shards_of(told)]
    files = {file for one in shards for file in (one["file"], one["index"]["file"])}
    assert found == {*files, *told["files"], "manifest.json", *others}
    assert earlier[1] not in found and verify.main([str(output)]) == 0


@pytest.fixture
def job(tmp_path) -> Job:
    """A build between its writing and its commit, in which records are going to move."""
    begun = Job(str(tmp_path / "set"), make_units(tmp_path / "photos", 0))
    begun.begin()
    return begun


@pytest.mark.parametrize("changed", ["shard", "index", "no index"])
def test_a_shard_that_changes_after_it_was_written_is_not_committed(job, changed):
    """Where a record moves between shards, the one that gives it is read again."""
    tasks = job.begin_commit()
    giver = next(task for task in tasks if task.give)
    path_of = job.places.staged_path if changed == "shard" else job.places.index_path
    path = pathlib.Path(path_of(giver.shard.name))
    path.write_bytes(path.read_bytes()[:-10])
    if changed == "no index":
        path.unlink()
    with refused("output", kind=OutputError):
        for task in tasks:
            job.finalize(task)
    assert fingerprint_if_whole(job.output) is None
    job.run()
    assert spreads(job.output) <= {0, 1}


def test_a_shard_that_stays_as_it_is_and_was_replaced_is_not_committed(tmp_path):
    """By a worker of a job that has lost the output."""
    job = Job(str(tmp_path / "set"), make_units(tmp_path / "photos", 0)[2:])
    job.begin()
    (task,) = job.begin_commit()
    path = pathlib.Path(job.places.staged_path(task.shard.name))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert not task.changed
    with refused("output", "has other bytes", kind=OutputError):
        job.finalize(task)


def test_a_shard_without_an_index_is_not_committed(tmp_path):
    """As where `PlanShards` was given no features; the dataset that was there stays."""
    before = Job(str(tmp_path / "set"), make_units(tmp_path / "old", 100))
    before.run()
    units = [dataclasses.replace(u, features=None) for u in make_units(tmp_path / "new", 0)]
    job = Job(before.output, units, overwrite=True)
    job.begin()
    with pytest.raises(UserError, match=r"without an index; expected PlanShards\(options, featu"):
        job.begin_commit()
    assert fingerprint_if_whole(job.output)


def test_records_are_added_up_again_when_they_have_moved(job, monkeypatch):
    """Whatever lost one: here, a rewriting that leaves out the last of each shard."""
    rows_of = finalize._rows_of
    monkeypatch.setattr(finalize, "_rows_of", lambda *given: rows_of(*given)[:-1])
    with pytest.raises(RuntimeError, match="the shards to be committed hold"):
        job.commit()
    assert fingerprint_if_whole(job.output) is None


def test_the_example_runs(tmp_path, monkeypatch):
    class_folders(tmp_path / "photos", {"ant": 20, "bee": 20})
    run_example(commit.CommitShards, tmp_path, monkeypatch)
    assert manifest(tmp_path / "shards")["listed"] == 40
    assert verify.main([str(tmp_path / "shards")]) == 0
