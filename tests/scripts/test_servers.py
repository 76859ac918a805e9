"""`make worker-pool` and `make job-service`: started once, stopped when asked."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import socket
import subprocess
import sys

import psutil
import pytest

from scripts import servers
from tests.support import portable_servers

pytestmark = pytest.mark.process

BEAM = importlib.metadata.version("apache-beam")
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
    usage = SERVERS[name]
    port = portable_servers.free_port()
    code, said = script(name, "start", port)
    try:
        assert code == 0, said
        pid = int((cache / "run" / f"{name}-{port}.pid").read_text().split()[0])
        assert f"{name} runs as process {pid} at localhost:{port}" in said
        assert usage.format(port=port) in said
        assert script(name, "start", port)[1].startswith(f"{name} already runs as process {pid}")
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    finally:
        code, said = script(name, "stop", port)
    assert (code, said) == (0, f"{name} at localhost:{port} stopped\n")
    assert not psutil.wait_procs(family, timeout=20)[1]
    assert script(name, "stop", port) == (0, f"no {name} of ours runs at localhost:{port}\n")


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
        assert script("worker-pool", "stop", port)[1].startswith("no worker-pool of ours")


def test_a_program_that_ends_at_once_is_not_called_ours(cache):
    server = servers.Server("listener", portable_servers.free_port())
    with pytest.raises(servers.ServerError, match=r"does not answer .*listener-\d+.log"):
        server.start([sys.executable, "-c", ""])
    assert not server.pid_file.exists()


# What `go` answers: its folder, the version of a program there, and what it installs.
GO = """#!/bin/sh
case "$1" in
env) echo {folder} ;;
version) printf '\\tmod\\tgithub.com/apache/beam/sdks/v2\\t{version}\\th1:x\\n' ;;
install) echo "$2" >&2; {install} ;;
esac
"""


@pytest.mark.parametrize(
    ("version", "install", "expected"),
    [
        (f"v{BEAM}", "exit 1", "ready\n"),
        ("v2.1.0", 'echo built > "$GOBIN/prism"; chmod +x "$GOBIN/prism"', "built\n"),
        ("v2.1.0", "exit 1", r"go install failed \(.*@v"),
    ],
    ids=["copied", "built", "failed"],
)
def test_prism_is_made_ready_once(monkeypatch, tmp_path, version, install, expected):
    monkeypatch.delenv("IMAGESHARDS_PRISM", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    (tmp_path / "bin").mkdir()
    for name, text in {
        "go": GO.format(folder=tmp_path, version=version, install=install),
        "prism": "ready\n",
    }.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    with pytest.raises(servers.ServerError, match="make prism"):
        servers.prism()
    if "failed" in expected:
        with pytest.raises(servers.ServerError, match=expected):
            servers.prepare_prism()
        return
    found = servers.prepare_prism()
    assert found.read_text() == expected and found.name == f"prism-v{BEAM}"
    (tmp_path / "bin" / "go").unlink()
    assert servers.prepare_prism() == servers.prism() == found


def test_where_prism_cannot_be_had_one_line_says_what_is_missing(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("IMAGESHARDS_PRISM", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert servers.main(["prism"]) == 2
    said = capsys.readouterr().err
    assert "Go is not on the PATH; install Go" in said and said.count("\n") == 1
    monkeypatch.setenv("IMAGESHARDS_PRISM", str(tmp_path / "absent"))
    with pytest.raises(servers.ServerError, match="IMAGESHARDS_PRISM received .*absent"):
        servers.prepare_prism()
