"""What is wrong with a remote runner is said before anything is submitted."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from beam_pipeline import runners
from beam_pipeline.runners import preflight, worker_check
from beam_pipeline.shards.sink import check_versions
from beam_pipeline.shards.versions import versions
from imageshards.errors import UserError
from tests.support import portable_servers
from tests.support.builds import class_folders
from tests.support.forked_builds import ForkedBuild
from tests.support.portable_builds import ROOT, run_here, wait_for

pytestmark = pytest.mark.process

HERE = ["--runner", "PortableRunner", "--job_endpoint"]
EXTERNAL = ["--environment_type", "EXTERNAL", "--environment_config"]

BEAMS_POOL = "apache_beam.runners.worker.worker_pool_main"

# A package of our name that cannot be imported, as where it is not installed.
ABSENT = "raise ModuleNotFoundError(\"No module named 'beam_pipeline'\", name='beam_pipeline')\n"


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with portable_servers.running(tmp_path_factory.mktemp("servers")) as both:
        yield both


@pytest.fixture
def nobody() -> str:
    """host:port where nothing listens."""
    return f"localhost:{portable_servers.free_port()}"


def options(*args: str):
    return runners.choose(args).options


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


def test_every_worker_refuses_to_write_with_other_versions():
    check_versions(tuple(versions().items()))
    with pytest.raises(UserError, match=r"pillow 1.1.7 here and .* there.*constraints.txt"):
        check_versions((("pillow", "1.1.7"),))


def test_a_worker_that_sees_everything_passes_the_check(tmp_path):
    photos = class_folders(tmp_path / "in", {"cat": 1})
    build = runners.Build((str(photos / "*" / "*.jpg"),), str(tmp_path), str(tmp_path / "st"))
    probe = worker_check.make_probe(build)
    probe.write_question()
    assert worker_check.check_worker(probe) == "checked"
    assert worker_check.read_answer(probe)["unseen_inputs"] == []


def refused(flags: list[str], images: object, output: object) -> str:
    """The sentence of a check with a real small job; nothing of it is left."""
    staging = pathlib.Path(f"{output}/.staging")
    staging.mkdir(parents=True, exist_ok=True)
    runner = runners.choose(flags, runners.Build((str(images),), str(output), str(staging)))
    with pytest.raises(UserError) as error, runner.ready():
        raise AssertionError
    assert not list(staging.iterdir())
    text = str(error.value)
    assert "\n" not in text and text.endswith(".")
    return text


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/cwd").exists(), reason="needs Linux's /proc")
def test_a_folder_that_only_the_client_sees(servers, tmp_path, monkeypatch):
    """Under /proc/self/cwd every process sees another folder by one name."""
    class_folders(tmp_path / "in", {"cat": 1})
    monkeypatch.chdir(tmp_path)
    said = refused(servers.flags, tmp_path / "in", "/proc/self/cwd/out")
    assert "does not see --output '/proc/self/cwd/out'" in said and "gs:// or s3://" in said
    said = refused(servers.flags, "/proc/self/cwd/in", tmp_path / "out")
    assert "does not see --input '/proc/self/cwd/in'" in said and "gs:// or s3://" in said


@contextlib.contextmanager
def beams_pool(tmp_path, environment):
    """Beam's own pool, which starts the `python` of its PATH: host:port."""
    log = tmp_path / "other.log"
    port = portable_servers.free_port()
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", BEAMS_POOL, "--service_port", str(port)],
            stdout=file, stderr=file, cwd=environment.get("CWD", ROOT),
            env=os.environ | environment, start_new_session=True,
        )  # fmt: skip
    server = portable_servers.Server(port, process, log)
    try:
        assert portable_servers._answers(server), log.read_text()
        yield server.address
    finally:
        server.stop()


@pytest.mark.slow
def test_a_pool_without_the_package(servers, tmp_path):
    """As a whole build, which ends with the sentence and leaves nothing behind."""
    class_folders(tmp_path / "in", {"cat": 4, "dog": 4})
    (tmp_path / "absent" / "beam_pipeline").mkdir(parents=True)
    (tmp_path / "absent" / "beam_pipeline" / "__init__.py").write_text(ABSENT)
    environment = {
        "PYTHONPATH": str(tmp_path / "absent"),
        "CWD": "/",
        "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with beams_pool(tmp_path, environment) as address:
        flags = portable_servers.portable_flags(servers.job_service.address, address)
        output = str(tmp_path / "out")
        code, said = run_here("--input", str(tmp_path / "in"), "--output", output, *flags)
    assert code == 2, said
    assert "Traceback" not in said
    assert "no imageshards of this release" in said.strip().splitlines()[-1]
    assert "make worker-pool" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_pool_with_another_pillow(servers, tmp_path, monkeypatch):
    """The worker tells its own; here the client's is another."""
    monkeypatch.setattr(worker_check, "versions", lambda: versions() | {"pillow": "1.1.7"})
    said = refused(servers.flags, tmp_path, tmp_path / "out")
    assert f"pillow 1.1.7 here and {versions()['pillow']} there" in said
    assert "constraints.txt" in said


@pytest.fixture(scope="module")
def lazy_pool(tmp_path_factory):
    """A pool whose workers never begin to work."""
    tmp_path = tmp_path_factory.mktemp("lazy")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    with beams_pool(tmp_path, {"PATH": path}) as address:
        yield address


@pytest.mark.slow
def test_no_worker_answers(servers, lazy_pool, tmp_path, monkeypatch):
    """The small job is cancelled, so nothing goes on behind the sentence."""
    monkeypatch.setattr(worker_check, "ANSWER_TIMEOUT_SEC", {"": 1.0})
    flags = portable_servers.portable_flags(servers.job_service.address, lazy_pool)
    said = refused(flags, tmp_path, tmp_path / "out")
    assert "no worker answered within 1 s" in said and "was cancelled" in said


@pytest.mark.slow
def test_ctrl_c_while_it_looks(servers, lazy_pool, tmp_path):
    """The small job is cancelled as well, and nothing is left of it."""
    class_folders(tmp_path / "in", {"cat": 4, "dog": 4})
    flags = portable_servers.portable_flags(servers.job_service.address, lazy_pool)
    output = tmp_path / "out"
    process = ForkedBuild("--input", str(tmp_path / "in"), "--output", str(output), *flags)
    wait_for(lambda: list(output.glob(".staging/preflight-*")), "a question", process)
    process.terminate()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert not list(output.glob(".staging/preflight-*"))
