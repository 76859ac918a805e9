"""`make worker-pool` and `make job-service`: started once, stopped when asked."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from scripts import background, prism
from tests.support import portable_servers

pytestmark = pytest.mark.process

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVERS = {
    "worker-pool": "--environment_config localhost:{port}",
    "job-service": "--job_endpoint localhost:{port}",
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of this test; Prism itself is taken from the real one."""
    real = portable_servers.prism_binary()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("IMAGESHARDS_PRISM", str(real))
    return tmp_path / "imageshards"


def script(name: str, action: str, port: int) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "servers.py"), action, name, "--port", str(port)],
        capture_output=True, text=True, timeout=120, check=False, cwd="/",
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_is_started_once_and_stopped(cache, name):
    title, usage = name.replace("-", " "), SERVERS[name]
    port = portable_servers.free_port()
    assert script(name, "status", port) == (1, f"{title}: not running\n")
    code, said = script(name, "start", port)
    try:
        assert code == 0, said
        pid = int((cache / "run" / f"{name}-{port}.pid").read_text().split()[0])
        assert f"{title} runs as process {pid} at localhost:{port}" in said
        assert usage.format(port=port) in said
        assert script(name, "start", port)[1].startswith(f"{title} already runs as process {pid}")
        assert script(name, "status", port) == (0, f"{title}: process {pid}\n")
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    finally:
        code, said = script(name, "stop", port)
    assert (code, said) == (0, f"{title} at localhost:{port} stopped\n")
    assert not psutil.wait_procs(family, timeout=20)[1]
    assert script(name, "stop", port) == (0, f"no {title} of ours runs at localhost:{port}\n")


def test_a_port_that_another_program_has_is_refused(cache):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        code, said = script("worker-pool", "start", port)
        assert code == 2
        assert f"--port received {port}, where another program listens" in said
        # A number in the file that is another program's by now is left alone.
        (cache / "run").mkdir(parents=True)
        began = psutil.Process().create_time() - 60
        (cache / "run" / f"worker-pool-{port}.pid").write_text(f"{os.getpid()} {began}\n")
        assert script("worker-pool", "stop", port)[1].startswith("no worker pool of ours")


# Listens once the file is there; ends where the port is taken.
LISTENER = """
import pathlib, socket, sys, time
port, wanted = int(sys.argv[1]), pathlib.Path(sys.argv[2])
while not wanted.exists():
    time.sleep(0.01)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", port))
listener.listen()
time.sleep(600)
"""


def listener(cache: pathlib.Path) -> tuple[background.Server, list[str], pathlib.Path]:
    """A server that listens once a file is there."""
    server = background.Server("listener", portable_servers.free_port())
    wanted = cache / "listen"
    return server, [sys.executable, "-c", LISTENER, str(server.port), str(wanted)], wanted


def test_a_port_that_is_taken_while_a_server_begins_is_not_called_ours(cache):
    """As it once happened: the server was said to run, and had ended."""
    server, command, wanted = listener(cache)

    def take() -> None:
        deadline = time.monotonic() + 60
        while not server.program.pid_file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        with socket.socket() as other:
            other.bind(("127.0.0.1", server.port))
            other.listen()
            wanted.touch()
            done.wait(60)

    done = threading.Event()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        taking = threads.submit(take)
        try:
            with pytest.raises(background.ServerError, match="where another program listens"):
                server.start(command)
        finally:
            done.set()
        taking.result(60)
    assert not server.program.pid_file.exists()


def test_a_server_that_still_begins_is_waited_for(cache):
    server, command, wanted = listener(cache)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        first = threads.submit(server.start, command)
        while (running := server.program.process()) is None:
            assert not first.done(), first.result()
        pid = running.pid
        second = threads.submit(server.start, ["not", "begun"])
        with pytest.raises(concurrent.futures.TimeoutError):
            second.result(0.5)
        wanted.touch()
        assert first.result(60) == f"listener runs as process {pid} at localhost:{server.port}"
        assert second.result(60).startswith(f"listener already runs as process {pid}")
    assert server.stop() == f"listener at localhost:{server.port} stopped"


def test_prism_is_named_by_a_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("IMAGESHARDS_PRISM", str(tmp_path / "absent"))
    with pytest.raises(background.ServerError, match="IMAGESHARDS_PRISM received .*absent"):
        prism.binary()


def test_where_prism_cannot_be_had_one_line_says_what_is_missing(monkeypatch, tmp_path):
    """Without Go, and with a download that fails."""
    monkeypatch.delenv("IMAGESHARDS_PRISM", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(prism, "_DOWNLOAD", "raise OSError('no network here')")
    with pytest.raises(background.ServerError) as error:
        prism.binary()
    said = str(error.value)
    assert "Go is not on the PATH" in said and "no network here" in said
    assert "install Go" in said and "IMAGESHARDS_PRISM" in said and "\n" not in said


def test_a_built_server_is_kept(monkeypatch, tmp_path):
    """The second time nothing is built; a `go` that fails is named with its last line."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text('#!/bin/sh\necho "$2" >&2\necho made > "$GOBIN/prism"\n')
    go.chmod(0o755)
    monkeypatch.delenv("IMAGESHARDS_PRISM", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(go.parent), prepend=os.pathsep)
    found = prism.binary()
    assert found.read_text() == "made\n"
    go.write_text('#!/bin/sh\necho "no such version" >&2\nexit 1\n')
    assert prism.binary() == found
    found.unlink()
    monkeypatch.setattr(prism, "_DOWNLOAD", "raise OSError('no network here')")
    with pytest.raises(background.ServerError, match=r"go install failed \(no such version\)"):
        prism.binary()
