"""A job service and a worker pool, real and killed for real: the same bytes in the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import psutil
import pytest

from beam_pipeline.runners import jobs
from tests.support import portable_servers
from tests.support.builds import build, manifest, shard_bytes
from tests.support.portable_builds import (
    IMAGES,
    SHARDS,
    TIMEOUT_S,
    finished_shards,
    flags,
    keep_few_shards,
    photos_in,
    run,
    start,
    wait_for,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return photos_in(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def local(photos, tmp_path_factory):
    """The same build by the processes of this machine."""
    portable_servers.prism_binary()
    output = tmp_path_factory.mktemp("local") / "set"
    assert build(*flags(photos, output)) == 0
    return output


@pytest.fixture(scope="module")
def servers(tmp_path_factory, local):
    with portable_servers.running(tmp_path_factory.mktemp("servers")) as both:
        yield both


def assert_resumes(photos, output, local, servers, before: int) -> None:
    """The same command finishes the data set and redoes none of the finished shards."""
    code, said = run(*flags(photos, output), *servers.flags)
    assert code == 0, said
    reused = re.search(r"([\d,]+) images were finished by an earlier run", said)
    assert reused, said
    assert before * (IMAGES // SHARDS) <= int(reused[1].replace(",", "")) <= IMAGES
    assert_same(output, local)


def assert_same(output, local) -> None:
    assert shard_bytes(output) == shard_bytes(local)
    assert manifest(output) == manifest(local)
    assert not (output / ".staging").exists()


def noted(output) -> jobs.RemoteJob:
    job = jobs.noted(str(output / ".staging"))
    assert job is not None
    return job


def cancel(output) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "beam_pipeline.cancel", str(output)],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_same_data_set_though_a_worker_is_killed(photos, local, servers, tmp_path):
    output = tmp_path / "set"
    process = start(*flags(photos, output), *servers.flags)
    wait_for(lambda: finished_shards(output) >= 2, "2 shards", process)
    (worker,) = servers.workers()
    worker.kill()
    said, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, said
    assert "a worker process was killed" in said
    assert re.search(rf"train +{SHARDS} +{IMAGES - 2} ", said), said
    assert_same(output, local)


def test_ctrl_c_then_a_killed_client_and_the_same_command_goes_on(photos, local, servers, tmp_path):
    output = tmp_path / "set"
    process = start(*flags(photos, output), *servers.flags)
    wait_for(lambda: finished_shards(output) >= 2, "2 shards", process)
    job = noted(output)
    os.killpg(process.pid, signal.SIGINT)  # a terminal signals the whole group
    said, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, said
    assert "cancelling the job" in said and "same command again to resume" in said
    assert "Traceback" not in said
    assert jobs.state_of(job) == "CANCELLED"
    wait_for(lambda: not servers.workers(), "the end of its workers")
    assert not (output / "manifest.json").exists()

    before = keep_few_shards(output)
    process = start(*flags(photos, output), *servers.flags)
    wait_for(lambda: finished_shards(output) > before, "another shard", process)
    (worker,) = servers.workers()
    worker.suspend()  # so that the job runs for as long as this test needs it to
    process.kill()
    process.wait()
    job = noted(output)
    code, said = run(*flags(photos, output), *servers.flags)
    assert code == 2, said
    assert f"job {job.job_id} at {servers.job_service.address}, which is RUNNING" in said
    assert finished_shards(output) > before  # nothing was taken away
    assert jobs.state_of(job) == "RUNNING"
    assert cancel(output) == (0, f"job {job.job_id} at {job.endpoint}: CANCELLED\n")
    wait_for(lambda: not servers.workers(), "the end of its workers")
    assert_resumes(photos, output, local, servers, finished_shards(output))


def test_a_killed_job_service_and_pool_are_one_sentence_each(photos, local, tmp_path):
    output = tmp_path / "set"
    with (
        portable_servers.worker_pool(tmp_path) as pool,
        portable_servers.job_service(tmp_path) as first,
    ):
        servers = portable_servers.Servers(first, pool)
        process = start(*flags(photos, output), *servers.flags)
        wait_for(lambda: finished_shards(output) >= 2, "2 shards", process)
        first.kill()
        said, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 2, said
        assert "the job service does not answer any more" in said and "Traceback" not in said
        wait_for(lambda: not servers.workers(), "the end of the workers of a lost job service")
        with portable_servers.job_service(tmp_path) as second:
            servers = portable_servers.Servers(second, pool)
            before = keep_few_shards(output)
            process = start(*flags(photos, output), *servers.flags)
            wait_for(lambda: finished_shards(output) > before, "another shard", process)
            family = pool.family()
            pool.kill()
            said, _ = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 2, said
            # A worker is missed first, or the pool.
            assert re.search(rf"pool at {pool.address} is gone|'{pool.address}', but no", said), (
                said
            )
            assert "Traceback" not in said
            _, alive = psutil.wait_procs(family, timeout=20)
            assert not alive
            with portable_servers.worker_pool(tmp_path) as another:
                servers = portable_servers.Servers(second, another)
                assert_resumes(photos, output, local, servers, finished_shards(output))
