"""A real Prism and a real worker pool for tests, at free ports of this host.

with portable_servers.running(tmp_path) as servers:
    build(*flags, *servers.flags)
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from scripts import prism

START_TIMEOUT_S = 60
POOL = "apache_beam.runners.worker.worker_pool_main"
NAMED_PORTS = (10_000, 32_000)
# Beam runs `pip freeze` for each job that is submitted, which takes as long as a small job.
NO_FREEZE = "--experiments=disable_logging_submission_environment"
ROOT = pathlib.Path(__file__).resolve().parents[2]


def prism_binary() -> pathlib.Path:
    """Prism, which `make prism` has ready; the test is skipped where it is not."""
    try:
        return prism.find_prism()
    except prism.PrismError as e:
        pytest.skip(str(e))


@dataclasses.dataclass
class Server:
    """A process that listens at a port.

    Attributes:
        port: Its port of this host.
        process: The process.
        log: What it says.
    """

    port: int
    process: subprocess.Popen
    log: pathlib.Path

    @property
    def address(self) -> str:
        """host:port."""
        return f"localhost:{self.port}"

    def family(self) -> list[psutil.Process]:
        """The processes it started, and theirs."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """SIGKILL, as a machine that is lost."""
        self.process.kill()
        self.process.wait(20)

    def stop(self) -> None:
        """Ends it and all it started."""
        family = self.family()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)
        _, alive = psutil.wait_procs(family, timeout=10)
        for process in alive:
            process.kill()


@dataclasses.dataclass
class Servers:
    """A job service and a worker pool."""

    job_service: Server
    pool: Server

    @property
    def flags(self) -> list[str]:
        """What a build is given to run there."""
        return portable_flags(self.job_service.address, self.pool.address)

    def workers(self) -> list[psutil.Process]:
        """The pool's processes that work for a job."""
        return [process for process in self.pool.family() if _is_worker(process)]


def _is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any("SdkHarness" in word for word in process.cmdline())
    return False


def portable_flags(job_endpoint: str, pool_address: str) -> list[str]:
    """Flags of a build for a job service and a worker pool."""
    return [
        "--runner", "PortableRunner", "--job_endpoint", job_endpoint,
        "--environment_type", "EXTERNAL", "--environment_config", pool_address, NO_FREEZE,
    ]  # fmt: skip


def free_port() -> int:
    """A port that nobody listened at a moment ago.

    Not one that the system gives out by itself (32768 and above on Linux, 49152 on macOS): it
    would give it to a server of another test before its own listens there.
    """
    numbers = random.SystemRandom()  # a seed that a test sets is not for this
    while True:
        port = numbers.randrange(*NAMED_PORTS)
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def _serving(
    name: str, folder: pathlib.Path, command: Callable[[int], list[str]]
) -> Iterator[Server]:
    """A server at a free port, where somebody else may be quicker."""
    for _ in range(3):
        port = free_port()
        log = folder / f"{name}-{port}.log"
        server = Server(port, _start(command(port), log), log)
        if answers := _answers(server):
            break
    assert answers, log.read_text()
    try:
        yield server
    finally:
        server.stop()


def job_service(folder: pathlib.Path) -> contextlib.AbstractContextManager[Server]:
    """A running Prism."""
    flags = ["--serve_http=false", "--log_level=warn", "--log_kind=text"]
    prism_path = str(prism_binary())
    return _serving("prism", folder, lambda at: [prism_path, f"--job_port={at}", *flags])


def worker_pool(folder: pathlib.Path) -> contextlib.AbstractContextManager[Server]:
    """Beam's worker pool, whose workers have this checkout and this interpreter."""
    # It starts the `python` that is first on its PATH for each worker.
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    pool = ["env", f"PATH={path}", sys.executable, "-m", POOL]
    return _serving("pool", folder, lambda at: [*pool, "--service_port", str(at)])


@contextlib.contextmanager
def running(folder: pathlib.Path) -> Iterator[Servers]:
    """A Prism and a worker pool."""
    prism_binary()
    with worker_pool(folder) as pool, job_service(folder) as service:
        yield Servers(service, pool)


def _start(command: list[str], log: pathlib.Path) -> subprocess.Popen:
    with open(log, "ab") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip


def _answers(server: Server) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_S
    while server.process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("localhost", server.port), 1):
            return True
        time.sleep(0.02)
    return False
