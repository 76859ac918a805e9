"""A job service and a worker pool, real and killed for real: the same bytes in the end."""

from __future__ import annotations

import json
import os
import re
import signal
import sys

import apache_beam as beam
import psutil
import pytest
from apache_beam.io.filesystems import FileSystems

from beam_pipeline import cancel, runners
from beam_pipeline.runners import jobs
from beam_pipeline.runners.submit import RemoteRunner
from tests.support import flink_stand_in, pool_tasks, portable_servers
from tests.support.builds import build, manifest, shard_bytes
from tests.support.forked_builds import ForkedBuild
from tests.support.portable_builds import (
    IMAGES,
    SHARDS,
    TIMEOUT_S,
    finished_shards,
    flags,
    keep_few_shards,
    photos_in,
    run_here,
    wait_for,
)

pytestmark = pytest.mark.slow

SECRET = "open-sesame"  # noqa: S105


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
    """The last test kills them."""
    with portable_servers.running(tmp_path_factory.mktemp("servers"), "info") as both:
        yield both


def assert_resumed(said: str, output, local, before: int) -> None:
    """The same command finished the data set and redid none of the finished shards."""
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


def test_a_worker_knows_the_options_tells_no_secrets_and_may_print(servers, tmp_path, monkeypatch):
    # A pipeline leaves its options with Beam's file systems; other tests have other stores.
    monkeypatch.setattr(FileSystems, "_pipeline_options", None)
    given = ["--s3_endpoint_url=http://localhost:1", f"--s3_secret_access_key={SECRET}"]
    runner = runners.choose([*servers.flags, *given])
    assert isinstance(runner, RemoteRunner)
    pipeline = runner.new_pipeline()
    pipeline | beam.Create([str(tmp_path / "told.json")]) | beam.Map(pool_tasks.tell)
    runner.run_small(pipeline, timeout_sec=120)
    logs = servers.pool.log.read_text() + servers.job_service.log.read_text()
    assert json.loads((tmp_path / "told.json").read_text()) == {
        "executable": sys.executable,
        "endpoint": "http://localhost:1",
        "secret": SECRET,
        "forked": True,
    }
    assert "[SDK] " in logs  # so the worker's own log is among them
    assert SECRET not in logs


def test_a_build_through_a_flink_job_server_that_it_starts(photos, local, servers, tmp_path):
    """Beam's own jar cannot be had everywhere: Prism stands in for what `java -jar` would start."""
    then = (
        'while [ "$1" != --job-port ]; do shift; done; '
        f"exec {portable_servers.prism_binary()} --job_port=$2 --serve_http=false"
    )
    with flink_stand_in.serving(flink_stand_in.Jobs().replies) as master:
        given = flink_stand_in.flags(tmp_path, master, then)
        given += ["--environment_config", servers.pool.address]
        code, said = run_here(*flags(photos, tmp_path / "set"), *given)
    assert code == 0, said
    assert_same(tmp_path / "set", local)
    for name in ("features.json", "dataset_info.json"):
        assert (tmp_path / "set" / name).read_bytes() == (local / name).read_bytes()
    for flag in ("--environment_type=EXTERNAL", "--parallelism=8", "--max_bundle_size=1000"):
        assert f"{flag}: " in said


def test_ctrl_c_then_a_killed_client_then_a_killed_worker(photos, local, servers, tmp_path, capsys):
    output = tmp_path / "set"
    command = [*flags(photos, output), *servers.flags]
    process = ForkedBuild(*command)
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
    process = ForkedBuild(*command)
    wait_for(lambda: finished_shards(output) > before, "another shard", process)
    (worker,) = servers.workers()
    worker.suspend()  # so that the job runs for as long as this test needs it to
    process.kill()
    process.wait()
    job = noted(output)
    code, said = run_here(*command)
    assert code == 2, said
    assert f"job {job.job_id} at {servers.job_service.address}, which is RUNNING" in said
    assert finished_shards(output) > before  # nothing was taken away
    assert jobs.state_of(job) == "RUNNING"
    assert cancel.main([str(output)]) == 0
    assert capsys.readouterr().out == f"job {job.job_id} at {job.endpoint}: CANCELLED\n"
    wait_for(lambda: not servers.workers(), "the end of its workers")

    before = keep_few_shards(output)
    process = ForkedBuild(*command)
    wait_for(lambda: finished_shards(output) > before, "another shard", process)
    (worker,) = servers.workers()
    worker.kill()
    said, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, said
    assert "a worker process was killed" in said
    assert re.search(rf"train +{SHARDS} +{IMAGES - 2} ", said), said
    assert_resumed(said, output, local, before)


def test_a_killed_job_service_and_pool_are_one_sentence_each(photos, local, servers, tmp_path):
    output = tmp_path / "set"
    pool = servers.pool
    process = ForkedBuild(*flags(photos, output), *servers.flags)
    wait_for(lambda: finished_shards(output) >= 2, "2 shards", process)
    servers.job_service.kill()
    said, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 2, said
    assert "the job service does not answer any more" in said and "Traceback" not in said
    wait_for(lambda: not servers.workers(), "the end of the workers of a lost job service")
    with portable_servers.job_service(tmp_path) as second:
        before = keep_few_shards(output)
        again = portable_servers.Servers(second, pool)
        process = ForkedBuild(*flags(photos, output), *again.flags)
        wait_for(lambda: finished_shards(output) > before, "another shard", process)
        family = pool.family()
        pool.kill()
        said, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 2, said
        # A worker is missed first, or the pool.
        assert re.search(rf"pool at {pool.address} is gone|'{pool.address}', but no", said), said
        assert "Traceback" not in said
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive
        with portable_servers.worker_pool(tmp_path) as another:
            again = portable_servers.Servers(second, another)
            before = finished_shards(output)
            code, said = run_here(*flags(photos, output), *again.flags)
            assert code == 0, said
            assert_resumed(said, output, local, before)
