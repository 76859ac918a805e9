"""What is wrong with a remote runner is said before anything is submitted."""

from __future__ import annotations

import shutil

import apache_beam as beam
import pytest

from beam_pipeline.runners import preflight
from beam_pipeline.runners.runner import Build, choose
from imageshards.errors import UserError
from tests.support import pool_tasks, portable_servers

pytestmark = pytest.mark.process

HERE = ["--runner", "PortableRunner", "--job_endpoint"]
EXTERNAL = ["--environment_type", "EXTERNAL", "--environment_config"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with portable_servers.running(tmp_path_factory.mktemp("servers")) as both:
        yield both


@pytest.fixture
def nobody() -> str:
    """host:port where nothing listens."""
    return f"localhost:{portable_servers.free_port()}"


def options(*args: str):
    return choose(args).options


def sentence_of(check, *args: str) -> str:
    with pytest.raises(UserError) as error:
        check(options(*args))
    text = str(error.value)
    assert "\n" not in text and text.endswith(".")
    return text


def test_no_job_endpoint():
    said = sentence_of(preflight.check_endpoint, "--runner", "PortableRunner")
    assert "--job_endpoint is missing" in said and "make job-service" in said


@pytest.mark.parametrize("address", ["8073", "localhost:", "localhost:x", "localhost:99999"])
def test_an_address_that_is_none(address):
    assert "expected host:port" in sentence_of(preflight.check_endpoint, *HERE, address)
    flags = [*HERE, "localhost:1", *EXTERNAL, address]
    assert "expected host:port" in sentence_of(preflight.check_environment, *flags)


def test_nothing_listens(nobody):
    said = sentence_of(preflight.check_endpoint, *HERE, nobody)
    assert f"--job_endpoint received '{nobody}', but no job service listens there" in said
    assert "refused" in said and "make job-service" in said
    said = sentence_of(preflight.check_environment, *HERE, nobody, *EXTERNAL, nobody)
    assert f"--environment_config received '{nobody}', but no worker pool listens there" in said
    assert "make worker-pool" in said


def test_something_else_listens(silent, monkeypatch):
    monkeypatch.setattr(preflight, "CONNECT_TIMEOUT_SEC", 0.5)
    said = sentence_of(preflight.check_endpoint, *HERE, silent)
    assert "no Beam job service" in said and "make job-service" in said
    said = sentence_of(preflight.check_environment, *HERE, silent, *EXTERNAL, silent)
    assert "no Beam worker pool" in said and "make worker-pool" in said


def test_the_addresses_are_swapped(servers):
    service, pool = servers.job_service.address, servers.pool.address
    assert "no Beam job service" in sentence_of(preflight.check_endpoint, *HERE, pool)
    said = sentence_of(preflight.check_environment, *HERE, service, *EXTERNAL, service)
    assert "no Beam worker pool" in said


def test_the_right_addresses(servers):
    preflight.check_endpoint(options(*servers.flags))
    preflight.check_environment(options(*servers.flags))
    url = f'{{"url": "{servers.pool.address}"}}'
    preflight.check_environment(options(*HERE, servers.job_service.address, *EXTERNAL, url))


def test_a_pool_of_another_host_is_left_to_its_runner(nobody):
    preflight.check_environment(options(*HERE, "cluster.invalid:8073", *EXTERNAL, nobody))
    preflight.check_environment(options(*HERE, nobody, *EXTERNAL, "worker.invalid:50000"))


def test_docker_is_asked_for_where_there_is_none(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    flags = [*HERE, "localhost:1", "--environment_type", "DOCKER"]
    said = sentence_of(preflight.check_environment, *flags)
    assert "DOCKER" in said and "no docker on this host" in said and "make worker-pool" in said


def test_a_job_of_the_same_name_keeps_a_second_one_from_starting(servers, tmp_path):
    build = Build((), str(tmp_path / "set"))
    chosen = choose(servers.flags, build)
    chosen.check()
    pipeline = chosen.new_pipeline()
    gate = tmp_path / "gate"
    pipeline | beam.Create([str(gate)]) | beam.Map(pool_tasks.wait_for_file)
    result = pipeline.run()
    try:
        with pytest.raises(UserError, match=r"still runs the job \S+ \(\w+\) for --output '.*set'"):
            chosen.check()
        choose(servers.flags, Build((), str(tmp_path / "other"))).check()
    finally:
        gate.touch()
        result.wait_until_finish()
    chosen.check()
