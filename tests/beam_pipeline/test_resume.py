"""Real processes, killed by real signals: nothing is lost, and nothing is done twice."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
from typing import Any

import psutil
import pytest

from beam_pipeline.images.process_pool import LocalPool
from imageshards.verification import command as verify
from tests.support.builds import build, class_folders, jpeg, manifest, shard_bytes
from tests.support.commands import ForkedBuild, build_killed_at, wait_until
from tests.support.portable_servers import children_of, finished_shards

pytestmark = pytest.mark.slow
LONG = pytest.mark.long

SHARDS = 12
SMALL = "--image_size 16 --no_report --num_shards 2".split()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return class_folders(tmp_path_factory.mktemp("in"), {"cat": 24, "dog": 24}, broken=2)


def flags(photos, output) -> list[str]:
    how = f"--image_size 64 --no_report --splits train=1 --num_shards {SHARDS}"
    how += " --direct_num_workers 2 --max_reject_fraction 0.05"
    return ["--input", str(photos), "--output", str(output), *how.split()]


@pytest.fixture(scope="module")
def undisturbed(photos, tmp_path_factory):
    output = tmp_path_factory.mktemp("undisturbed") / "set"
    assert build(*flags(photos, output)) == 0
    return output


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> pathlib.Path:
    """A folder with photos `in`, and their dataset `set`."""
    folder = tmp_path_factory.mktemp("finished")
    class_folders(folder / "in", {"m": 12, "z": 12})
    assert build("--input", folder / "in", "--output", folder / "set", *SMALL) == 0
    return folder


@pytest.fixture
def small(finished, tmp_path) -> tuple[pathlib.Path, list[str], dict[str, bytes]]:
    """A finished dataset: its folder, flags that make it again, and its shards."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    output = tmp_path / "set"
    again = ["--input", str(tmp_path / "in"), "--output", str(output), *SMALL]
    return output, again, shard_bytes(output)


def start_held(photos, output: pathlib.Path, shards: int) -> ForkedBuild:
    """A build that has finished so many shards, or one for each further process more."""
    given = (str(output / ".staging"), shards)
    process = ForkedBuild(*flags(photos, output), before=hold_at, given=given)
    wait_until(lambda: finished_shards(output) >= shards, process)
    return process


def hold_at(staging: str, limit: int) -> None:
    """No shard is begun when as many are finished: for `before`."""
    original = LocalPool._do

    def held(self: LocalPool, name: str, packed: bytes) -> Any:
        folder = pathlib.Path(staging)
        while not self.is_stopped and len(list(folder.glob("*-of-*.json"))) >= limit:
            time.sleep(0.01)
        return original(self, name, packed)

    LocalPool._do = held  # type: ignore[method-assign]


def assert_resumes(photos, output, undisturbed, before, capfd):
    """The same command finishes the dataset, doing only what was not finished."""
    capfd.readouterr()
    assert build(*flags(photos, output)) == 0
    reused = re.search(r"(\d+) images were finished by an earlier run", capfd.readouterr().out)
    images = int(reused[1]) if reused else 0
    assert images >= before * (manifest(undisturbed)["listed"] // SHARDS)
    assert shard_bytes(output) == shard_bytes(undisturbed)
    assert manifest(output) == manifest(undisturbed)
    assert not (output / ".staging").exists()


def test_killed_while_shards_are_written(photos, undisturbed, tmp_path, capfd):
    output = tmp_path / "set"
    for shards in (1, 6):
        process = start_held(photos, output, shards)
        family = children_of(process.pid)
        assert len(children_of(process.pid, "pool_worker")) == 2
        process.kill()
        assert not psutil.wait_procs(family, timeout=20)[1]
        before = finished_shards(output)
        assert before < SHARDS
        assert not (output / "manifest.json").exists()
    assert_resumes(photos, output, undisturbed, before, capfd)


@pytest.mark.long
def test_classes_keep_their_ids_when_a_replacement_is_killed(small, tmp_path):
    output, again, _ = small
    class_folders(tmp_path / "in", {"a": 12})
    replacing = [*again, "--overwrite"]
    build_killed_at("beam_pipeline.commit.transforms", "finalize_shard", 2, *replacing)
    assert not (output / "manifest.json").exists()
    assert build(*replacing) == 0
    assert manifest(output)["classes"] == ["m", "z", "a"]
    assert verify.main([str(output)]) == 0


def test_a_dataset_that_cannot_be_read_is_refused(small, capfd):
    """One of a newer version whatever the flags are, and a damaged one unless it is replaced."""
    output, again, before = small
    newer = json.dumps(manifest(output) | {"format_version": 99})
    (output / "manifest.json").write_text(newer)
    assert build(*again, "--overwrite") == 2
    assert "upgrade imageshards" in capfd.readouterr().err
    assert shard_bytes(output) == before
    assert (output / "manifest.json").read_text() == newer
    (output / "manifest.json").write_text('{"format_version": 1, "spl')
    assert build(*again) == 2
    said = capfd.readouterr().err
    assert "could not be read" in said and "--overwrite" in said
    assert build(*again, "--overwrite") == 0
    assert "may get other ids" in capfd.readouterr().err
    assert shard_bytes(output) == before


def test_an_unfinished_replacement_does_not_pass_for_a_finished_dataset(small, capfd):
    output, again, before = small
    replacing = [*again, "--overwrite", "--quality", "50"]
    build_killed_at("beam_pipeline.commit.transforms", "begin_commit", 1, *replacing)
    assert build(*again, "--quality", "50") == 2
    assert "--overwrite" in capfd.readouterr().err
    assert shard_bytes(output) == before


@pytest.mark.parametrize(
    ("module", "function", "calls"),
    [
        ("beam_pipeline.commit.transforms", "finalize_shard", 7),
        pytest.param("beam_pipeline.commit.dataset", "publish_manifest", 1, marks=LONG),
        pytest.param("beam_pipeline.run", "load_manifest", 1, marks=LONG),
    ],
)
def test_killed_while_it_commits(photos, undisturbed, tmp_path, module, function, calls, capfd):
    output = tmp_path / "set"
    build_killed_at(module, function, calls, *flags(photos, output))
    assert (output / "manifest.json").exists() == (function == "load_manifest")
    assert_resumes(photos, output, undisturbed, SHARDS, capfd)


def test_a_changed_image_is_noticed_by_the_job_that_resumes(photos, tmp_path):
    """Only what changed is done again, and nothing stale is mixed in."""
    inputs = shutil.copytree(photos, tmp_path / "in")
    output, fresh = tmp_path / "set", tmp_path / "fresh"
    start_held(inputs, output, 8).kill()
    (inputs / "dog" / "dog 7.jpg").write_bytes(jpeg(4711))
    assert build(*flags(inputs, output)) == 0
    assert build(*flags(inputs, fresh)) == 0
    assert shard_bytes(output) == shard_bytes(fresh)


@pytest.mark.long
def test_a_job_waits_for_the_workers_of_one_that_was_killed(photos, tmp_path):
    """So one that is slow to end cannot put its shard over one of the next job."""
    output, fresh = tmp_path / "set", tmp_path / "fresh"
    process = start_held(photos, output, 3)
    worker = children_of(process.pid, "pool_worker")[0]
    worker.suspend()
    process.kill()
    following = ForkedBuild(*flags(photos, output), "--quality", "60")
    lock = str(output / ".staging" / "lock")
    opened = psutil.Process(following.pid)
    wait_until(lambda: lock in {f.path for f in opened.open_files()}, following)
    before = {path: path.stat().st_mtime_ns for path in (output / ".staging").iterdir()}
    with pytest.raises(subprocess.TimeoutExpired):
        following.wait(1)
    assert {path: path.stat().st_mtime_ns for path in (output / ".staging").iterdir()} == before
    worker.resume()
    said, _ = following.communicate()
    assert following.returncode == 0, said
    assert build(*flags(photos, fresh), "--quality", "60") == 0
    assert shard_bytes(output) == shard_bytes(fresh)


def test_ctrl_c_stops_cleanly_and_the_job_can_go_on(photos, undisturbed, tmp_path, capfd):
    output = tmp_path / "set"
    process = start_held(photos, output, 3)
    family = children_of(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # a terminal signals the whole group
    said, _ = process.communicate()
    assert process.returncode == 130, said
    assert "run the same command again to resume" in said.lower()
    assert "Traceback" not in said
    assert not psutil.wait_procs(family, timeout=20)[1]
    assert not (output / "manifest.json").exists()
    assert_resumes(photos, output, undisturbed, 3, capfd)
