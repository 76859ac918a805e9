"""The worker pool: what Beam's own one gets wrong on a host without Docker."""

from __future__ import annotations

import socket

import pytest

from beam_pipeline import worker_pool

pytestmark = pytest.mark.process


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
