"""The worker pool: what Beam's own one gets wrong on a host without Docker."""

from __future__ import annotations

import json
import socket
import sys

import apache_beam as beam
import pytest

from beam_pipeline import runners, worker_pool
from beam_pipeline.runners.submit import RemoteRunner
from tests.support import pool_tasks, portable_servers

SECRET = "open-sesame"  # noqa: S105


@pytest.mark.slow
def test_a_worker_knows_the_options_tells_no_secrets_and_may_print(tmp_path):
    portable_servers.prism_binary()
    with (
        portable_servers.worker_pool(tmp_path) as pool,
        portable_servers.job_service(tmp_path, log_level="info") as service,
    ):
        flags = [
            *portable_servers.portable_flags(service.address, pool.address),
            "--s3_endpoint_url=http://localhost:1", f"--s3_secret_access_key={SECRET}",
        ]  # fmt: skip
        runner = runners.choose(flags)
        assert isinstance(runner, RemoteRunner)
        pipeline = runner.new_pipeline()
        pipeline | beam.Create([str(tmp_path / "told.json")]) | beam.Map(pool_tasks.tell)
        runner.run_small(pipeline, timeout_sec=120)
        logs = pool.log.read_text() + service.log.read_text()
    assert json.loads((tmp_path / "told.json").read_text()) == {
        "executable": sys.executable,
        "endpoint": "http://localhost:1",
        "secret": SECRET,
        "forked": True,
    }
    assert "[SDK] " in logs  # so the worker's own log is among them
    assert SECRET not in logs


def test_a_port_that_is_taken_is_one_sentence(capsys):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert worker_pool.main(["--service_port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"--service_port received {port}, which is in use" in said
    assert said.count("\n") == 1


def test_packages_that_were_replaced_are_not_taken_from_the_fork_server(monkeypatch):
    pool = worker_pool.WorkerPool()
    assert pool._context().get_start_method() == "forkserver"
    monkeypatch.setattr(worker_pool, "installed", lambda: (("PIL", 1.0),))
    assert pool._context().get_start_method() == "spawn"
