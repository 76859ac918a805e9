"""A job service and a worker pool, real and killed for real: the same bytes in the end."""

import os
import re
import signal

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

import beam_pipeline as bp
from imageshards.errors import user_error_in
from tests.support import portable_servers
from tests.support.builds import build, manifest, shard_bytes
from tests.support.commands import ForkedBuild, wait_until
from tests.support.portable_servers import (
    IMAGES,
    SHARDS,
    finished_shards,
    flags,
    keep_few_shards,
    photos_in,
    run_here,
)

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def servers(tmp_path):
    with portable_servers.running(tmp_path) as both:
        yield both


def test_a_build_resumes_after_ctrl_c_a_killed_client_and_a_killed_worker(servers, tmp_path):
    photos, output = photos_in(tmp_path / "photos"), tmp_path / "set"
    local = tmp_path / "local" / "set"  # of the same name, which croissant.json holds
    assert build(*flags(photos, local)) == 0
    command = [*flags(photos, output), *servers.flags]
    process = ForkedBuild(*command)
    wait_until(lambda: finished_shards(output) >= 2, process)
    os.killpg(process.pid, signal.SIGINT)  # a terminal signals the whole group
    said, _ = process.communicate()
    assert process.returncode == 130, said
    assert "cancelling the job" in said and "same command again to resume" in said
    assert "Traceback" not in said and "may still run" not in said
    wait_until(lambda: not servers.workers())
    assert not (output / "manifest.json").exists()

    before = keep_few_shards(output)
    process = ForkedBuild(*command)
    wait_until(servers.workers, process)
    (worker,) = servers.workers()
    worker.suspend()  # so that the job runs for as long as this test needs it to
    process.kill()
    worker.kill()  # Prism waits for it for ever: it is started anew, as its users do
    servers.job_service.kill()

    with portable_servers.job_service(tmp_path) as second:
        # Flink's client, with Prism in the place of its job server.
        before = keep_few_shards(output)
        given = ["--runner=FlinkRunner", "--flink_master=flink:8081", portable_servers.NO_FREEZE]
        given += [f"--job_endpoint={second.address}", "--parallelism=2"]
        given += [f"--environment_config={servers.pool.address}"]
        code, said = run_here(*flags(photos, output), *given)
        assert code == 0, said
        for flag in ("--environment_type=EXTERNAL", "--max_bundle_size=1000"):
            assert f"{flag}: " in said
        assert re.search(rf"train +{SHARDS} +{IMAGES - 2} ", said), said
        reused = re.search(r"([\d,]+) images were finished by an earlier run", said)
        assert reused and before * (IMAGES // SHARDS) <= int(reused[1].replace(",", "")) <= IMAGES
    assert shard_bytes(output) == shard_bytes(local)
    assert manifest(output) == manifest(local)
    assert not (output / ".staging").exists()


def test_errors_of_workers_name_flags_for_a_command_and_arguments_for_a_pipeline(servers, tmp_path):
    missing = str(tmp_path / "missing")
    code, said = run_here(*flags(missing, tmp_path / "set"), *servers.flags)
    assert code == 2 and f"--input received {missing!r}" in said, said
    pipeline = beam.Pipeline(options=PipelineOptions(servers.flags))
    _ = pipeline | bp.ListImages(bp.InputOptions(missing))
    with pytest.raises(RuntimeError) as error:
        pipeline.run().wait_until_finish()
    assert str(user_error_in(error.value)).startswith(f"input received {missing!r}")
