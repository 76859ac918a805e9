"""A real Prism and a real worker pool at free ports of this host, and builds for them."""

import contextlib
import dataclasses
import io
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from beam_pipeline.__main__ import main
from scripts import prism
from tests.support.builds import jpeg
from tests.support.cluster import free_addresses
from tests.support.commands import ROOT, wait_until

POOL = "apache_beam.runners.worker.worker_pool_main"
# Beam runs `pip freeze` for each job that is submitted, which takes as long as a small job.
NO_FREEZE = "--experiments=disable_logging_submission_environment"
SHARDS = 24
IMAGES = 144


def prism_binary() -> pathlib.Path:
    """Prism, which `make prism` has ready; the test is skipped where it is not."""
    try:
        return prism.find_prism()
    except prism.PrismError as e:
        pytest.skip(str(e))


def children_of(pid: int, word: str = "") -> list[psutil.Process]:
    """The processes that a process started, and theirs, with a word in their commands."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it may end just now
                if word in " ".join(process.cmdline()):
                    found.append(process)
    return found


@dataclasses.dataclass
class Server:
    """A process that listens at host:port."""

    address: str
    process: subprocess.Popen

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def stop(self) -> None:
        family = children_of(self.process.pid)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        _, alive = psutil.wait_procs(family, timeout=10)
        for process in alive:
            process.kill()


@dataclasses.dataclass
class Servers:
    job_service: Server
    pool: Server

    @property
    def flags(self) -> list[str]:
        return [
            "--runner", "PortableRunner", "--job_endpoint", self.job_service.address,
            "--environment_type", "EXTERNAL", "--environment_config", self.pool.address, NO_FREEZE,
        ]  # fmt: skip

    def workers(self) -> list[psutil.Process]:
        """The pool's processes that work for a job."""
        return children_of(self.pool.process.pid, "SdkHarness")


@contextlib.contextmanager
def _serving(name, folder, command):
    (address,) = free_addresses(1)
    port = int(address.rpartition(":")[2])
    log = folder / f"{name}-{port}.log"
    with open(log, "ab") as file:
        process = subprocess.Popen(
            command(port), stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
    server = Server(address, process)
    try:
        wait_until(lambda: process.poll() is not None or _listens(port))
        assert process.poll() is None, log.read_text()
        yield server
    finally:
        server.stop()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("localhost", port)) == 0


def job_service(folder: pathlib.Path) -> contextlib.AbstractContextManager[Server]:
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
    prism_binary()
    with worker_pool(folder) as pool, job_service(folder) as service:
        yield Servers(service, pool)


def photos_in(root: pathlib.Path) -> pathlib.Path:
    """Two classes, large enough that a shard takes some 0.1 s; two are broken."""
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for i in range(IMAGES // 2):
            picture = jpeg(i, 900, 700) if i else b"\xff\xd8 no picture"
            (root / name / f"{i}.jpg").write_bytes(picture)
    return root


def flags(photos: object, output: object) -> list[str]:
    return [
        "--input", str(photos), "--output", str(output), "--image_size", "64", "--no_report",
        "--splits", "train=1", "--num_shards", str(SHARDS), "--max_reject_fraction", "0.02",
    ]  # fmt: skip


def run_here(*arguments: str) -> tuple[int, str]:
    """A whole build in this process: exit code and what it said."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = main(arguments)
    return code, said.getvalue()


def finished_shards(output: pathlib.Path) -> int:
    return len(list((output / ".staging").glob("train-*.json")))


def keep_few_shards(output: pathlib.Path) -> int:
    """Forgets the other finished shards of a job that was stopped; how many there are now.

    On a busy machine it may have finished all of them before it noticed.
    """
    for path in sorted((output / ".staging").glob("train-*.json"))[4:]:
        path.unlink()
    return finished_shards(output)
