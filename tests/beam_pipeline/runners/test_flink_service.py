"""The job server for Flink while a build needs it, and the build's job at the cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
)

from beam_pipeline.runners import flink, job_server
from beam_pipeline.runners.runner import job_name
from imageshards.errors import UserError
from tests.support import portable_servers
from tests.support.flink_stand_in import Jobs, flags, overview, serving

pytestmark = pytest.mark.process

NAME = job_name("gs://bucket/shards")

# Java that is asked for its version, and else listens at --job-port as a job server would.
SERVER = """
import socket, sys, time
port = int(sys.argv[sys.argv.index("--job-port") + 1])
listening = socket.create_server(("127.0.0.1", port))
print("listening", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("output", "stem"),
    [
        ("gs://bucket/My Shards/", "my-shards"),
        ("s3://bucket", "bucket"),
        ("/data/ims.2026", "ims-2026"),
        ("/data/写真", "build"),
    ],
)
def test_a_job_is_named_after_its_output(output, stem):
    name = job_name(output)
    assert name.startswith(f"imageshards-{stem}-")
    assert name == job_name(output)
    assert name != job_name(output.rstrip("/") + "2")


def test_one_folder_has_one_name_however_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert job_name("out") == job_name(f"{tmp_path}/x/../out/")


def test_a_second_job_for_one_output_is_refused_and_another_output_is_not(tmp_path):
    jobs = Jobs(abc=NAME, other="another job")
    with serving(jobs.replies) as master:
        options = PipelineOptions([*flags(tmp_path, master), "--job_endpoint=localhost:1"])
        with pytest.raises(UserError, match=r"still runs the job abc for --output 'gs://bucket"):
            with flink.job_service(options, "gs://bucket/shards"):
                raise AssertionError
        jobs.states["abc"] = "FAILED"
        with flink.job_service(options, "gs://bucket/shards"):
            assert options.view_as(GoogleCloudOptions).job_name == NAME
    assert jobs.cancelled == []


def test_a_cluster_that_does_not_list_its_jobs_keeps_a_second_one_from_starting(tmp_path):
    with serving({"/overview": overview()}) as master:
        options = PipelineOptions(flags(tmp_path, master))
        with pytest.raises(UserError, match="no Flink answers .status 404."):
            with flink.job_service(options, "gs://bucket/shards"):
                raise AssertionError


def test_a_job_that_is_left_is_cancelled_and_no_other(tmp_path):
    jobs = Jobs(abc=NAME, other="another job")
    jobs.states["abc"] = "FINISHED"
    with serving(jobs.replies) as master:
        options = PipelineOptions([*flags(tmp_path, master), "--job_endpoint=localhost:1"])
        with pytest.raises(KeyboardInterrupt):
            with flink.job_service(options, "gs://bucket/shards"):
                jobs.states["abc"] = "RUNNING"
                raise KeyboardInterrupt
    assert jobs.cancelled == ["abc"]


def test_a_job_that_does_not_end_is_one_sentence(monkeypatch):
    monkeypatch.setattr(flink, "CANCEL_TIMEOUT_SEC", 0.3)
    jobs = Jobs(abc=NAME)
    replies = jobs.replies | {"PATCH /jobs/abc?mode=cancel": b"{}"}
    with serving(replies) as master, pytest.raises(UserError, match=r"abc at .* still runs after"):
        flink.cancel_jobs(master, NAME)


def test_a_server_is_there_for_as_long_as_it_is_needed(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    with serving(Jobs().replies) as master:
        options = PipelineOptions(flags(tmp_path, master, f'{sys.executable} {script} "$@"'))
        portable = options.view_as(PortableOptions)
        with flink.job_service(options, "out"):
            host, _, port = portable.job_endpoint.rpartition(":")
            assert host == "localhost"
            (server,) = _listening(int(port))
        assert portable.job_endpoint is None
    assert psutil.wait_procs([server], timeout=20)[1] == []


def _listening(port: int) -> list[psutil.Process]:
    wanted = str(port)
    return [
        each
        for each in psutil.Process().children(recursive=True)
        if wanted in each.cmdline() and "server.py" in " ".join(each.cmdline()[:2])
    ]


def test_a_server_that_does_not_start_is_one_sentence_with_what_it_said(tmp_path):
    then = "echo no room; echo 'Address already in use' >&2; exit 3"
    with serving(Jobs().replies) as master:
        options = PipelineOptions(flags(tmp_path, master, then))
        with pytest.raises(UserError, match=r"did not start \(ended with 3: Address already in"):
            with flink.job_service(options, "out"):
                raise AssertionError


def test_a_server_that_never_listens_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(job_server, "START_TIMEOUT_SEC", 0.5)
    with serving(Jobs().replies) as master:
        options = PipelineOptions(flags(tmp_path, master, "exec sleep 600"))
        begun = time.monotonic()
        with pytest.raises(UserError, match=r"did not start \(0.5 s passed: it said nothing\)"):
            with flink.job_service(options, "out"):
                raise AssertionError
    assert time.monotonic() - begun < 20
    assert not [each for each in psutil.Process().children(True) if "600" in each.cmdline()]


@pytest.mark.slow
def test_a_server_ends_with_a_client_that_is_killed(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    client = tmp_path / "client.py"
    client.write_text(
        "import sys, time\n"
        "from apache_beam.options.pipeline_options import PipelineOptions\n"
        "from beam_pipeline.runners import flink\n"
        "with flink.job_service(PipelineOptions(sys.argv[1:]), 'out'):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(600)\n"
    )
    with serving(Jobs().replies) as master:
        given = flags(tmp_path, master, f'exec {sys.executable} {script} "$@"')
        process = subprocess.Popen(
            [sys.executable, str(client), *given], stdout=subprocess.PIPE, text=True,
            cwd=portable_servers.ROOT, env={"PYTHONPATH": str(portable_servers.ROOT)},
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []
