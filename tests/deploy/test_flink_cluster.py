"""The parts of a Flink cluster on this host that need neither Flink nor Beam's jar."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import pathlib
import signal
import socket
import threading
import time
from collections.abc import Iterator

import grpc
import psutil
import pytest
from apache_beam.portability.api import (
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    endpoints_pb2,
)

from deploy.flink import cluster, flink_home
from imageshards.errors import UserError
from scripts import background
from scripts.background import Program
from tests.support import portable_servers

pytestmark = pytest.mark.process

TIMEOUT_SEC = 60


class _Control(beam_fn_api_pb2_grpc.BeamFnControlServicer):
    """A TaskManager's side of the control channel: knows who has called, and who hung up."""

    def __init__(self) -> None:
        self.here: dict[str, threading.Event] = {}
        self.gone: dict[str, threading.Event] = {}

    def expect(self, name: str) -> None:
        self.here[name], self.gone[name] = threading.Event(), threading.Event()

    def Control(self, replies, context):
        name = dict(context.invocation_metadata())["worker_id"]
        context.add_callback(self.gone[name].set)
        self.here[name].set()
        self.gone[name].wait(TIMEOUT_SEC)
        yield from ()


class _Logging(beam_fn_api_pb2_grpc.BeamFnLoggingServicer):
    def Logging(self, entries, context):
        for _ in entries:
            continue
        yield from ()


@dataclasses.dataclass
class TaskManager:
    """What a TaskManager does with its pool: it names its workers as every other does."""

    control: _Control
    address: str
    pool: beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub

    def start(self, name: str) -> None:
        """Asks for a worker and waits until it has called."""
        self.control.expect(name)
        here = endpoints_pb2.ApiServiceDescriptor(url=self.address)
        request = beam_fn_api_pb2.StartWorkerRequest(
            worker_id=name, control_endpoint=here, logging_endpoint=here
        )
        assert not self.pool.StartWorker(request, timeout=TIMEOUT_SEC).error
        assert self.control.here[name].wait(TIMEOUT_SEC), f"no call of {name}"

    def stop(self, name: str) -> None:
        """Ends a worker, and waits until it has hung up."""
        self.ask_to_stop(name)
        assert self.control.gone[name].wait(TIMEOUT_SEC)

    def ask_to_stop(self, name: str) -> None:
        """Says that a worker is not needed any more."""
        self.pool.StopWorker(beam_fn_api_pb2.StopWorkerRequest(worker_id=name), timeout=TIMEOUT_SEC)


@contextlib.contextmanager
def task_manager(pool_address: str) -> Iterator[TaskManager]:
    """A stand-in for a TaskManager, with its pool."""
    control = _Control()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
    beam_fn_api_pb2_grpc.add_BeamFnControlServicer_to_server(control, server)
    beam_fn_api_pb2_grpc.add_BeamFnLoggingServicer_to_server(_Logging(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(pool_address) as channel:
        grpc.channel_ready_future(channel).result(TIMEOUT_SEC)
        stub = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
        yield TaskManager(control, f"localhost:{port}", stub)
    server.stop(0)


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Program]]:
    """The pools of two TaskManagers, as a cluster starts them: host:port → program."""
    folder = tmp_path_factory.mktemp("pools")
    port = portable_servers.free_port()
    plan = cluster.Cluster(None, folder, pool_port=port)
    started: dict[str, Program] = {}
    try:
        for number, (name, command, extra) in enumerate(cluster.commands(plan, folder)[:2]):
            program = started[f"{plan.pool_host(number)}:{port}"] = Program(name, folder)
            program.start(command, extra)
        for address in started:
            _wait_for(address.rpartition(":")[0], port)
        yield started
    finally:
        assert background.stop(list(started.values())) == 2
    assert not any(each.process() for each in started.values())


@pytest.mark.slow
def test_task_managers_that_name_their_workers_alike_do_not_meet_in_a_pool(pools):
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(task_manager(address)) for address in pools)
        first.start("1-1")
        second.start("1-1")
        first.stop("1-1")
        assert not second.control.gone["1-1"].wait(1)
        second.stop("1-1")


@pytest.mark.slow
def test_jobs_that_name_their_workers_alike_share_a_pool(pools):
    """Two jobs on one TaskManager: the end of one is not the end of the other."""
    address, program = next(iter(pools.items()))
    pool = program.process()
    assert pool is not None
    with task_manager(address) as second:
        before = set(pool.children(recursive=True))
        with task_manager(address) as first:
            first.start("1-1")
            workers = set(pool.children(recursive=True)) - before
            second.start("1-1")
            first.ask_to_stop("1-1")
            assert not first.control.gone["1-1"].is_set()
            assert not second.control.gone["1-1"].is_set()
        _, left = psutil.wait_procs(workers, TIMEOUT_SEC)
        assert workers and not left
        assert not second.control.gone["1-1"].is_set()
        second.stop("1-1")


def _wait_for(host: str, port: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SEC
    while True:
        try:
            socket.create_connection((host, port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_each_task_manager_is_told_where_its_own_pool_is(tmp_path):
    plan = cluster.Cluster(None, tmp_path, task_managers=3, slots=5, pool_port=50123)
    found = {name: (command, extra) for name, command, extra in cluster.commands(plan, tmp_path)}
    assert list(found) == [
        "pool-0", "pool-1", "pool-2", "jobmanager",
        "taskmanager-0", "taskmanager-1", "taskmanager-2",
    ]  # fmt: skip
    for i in range(3):
        pool = found[f"pool-{i}"][0]
        host = pool[pool.index("--host") + 1]
        command, extra = found[f"taskmanager-{i}"]
        hosts = pathlib.Path(extra["JVM_ARGS"].removeprefix("-Djdk.net.hosts.file="))
        assert hosts.read_text().splitlines()[0] == f"{host} localhost"
        assert "taskmanager.numberOfTaskSlots=5" in command
        # A name would be looked up in that file, too.
        assert "jobmanager.rpc.address=127.0.0.1" in command


@pytest.mark.parametrize("full_name", ["localhost", "worker.example"])
def test_the_name_of_this_host_leads_back_to_it(tmp_path, monkeypatch, full_name):
    """Java looks a name up for 127.0.0.1, and that name's address; both in this file only."""
    monkeypatch.setattr(socket, "getfqdn", lambda: full_name)
    plan = cluster.Cluster(None, tmp_path)
    for i in range(2):
        lines = cluster._hosts_file(plan, i).read_text().splitlines()
        pairs = [tuple(line.split()) for line in lines]
        assert [ip for ip, name in pairs if name == "localhost"] == [plan.pool_host(i)]
        name = next(name for ip, name in pairs if ip == "127.0.0.1")
        assert next(ip for ip, other in pairs if other == name) == "127.0.0.1"
        assert full_name == "localhost" or ("127.0.0.1", full_name) in pairs


def test_a_port_in_use_is_one_sentence_and_nothing_is_started(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        folder = tmp_path / "cluster"
        given = ["start", "--folder", str(folder), "--rest_port", str(port)]
        assert cluster.main(given) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: port {port} of 127.0.0.1 is in use")
    assert said.count("\n") == 1
    assert not folder.exists()


def test_a_folder_that_is_no_flink_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"FLINK_HOME received .*bin/jobmanager.sh"):
        flink_home.flink_home(str(tmp_path))


def test_wheels_that_cannot_be_had_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match="wheels apache-flink-libraries==9.9 .*FLINK_HOME"):
        flink_home.flink_home(None, "9.9")
    assert list((tmp_path / "imageshards").iterdir()) == []


def test_nothing_to_stop_and_nothing_to_show(tmp_path, capsys):
    given = ["--folder", str(tmp_path), "--rest_port", "1", "--pool_port", "1"]
    assert cluster.main(["stop", *given]) == 0
    assert cluster.main(["status", *given]) == 0
    assert capsys.readouterr().out == "nothing was running\nnot ready: it was not started\n"


def test_a_program_is_remembered_ended_with_its_children_and_never_taken_for_another(tmp_path):
    sleeper = Program("sleeper", tmp_path)
    begun = sleeper.start(["sh", "-c", "sleep 60 & wait"])
    (found,) = background.programs(tmp_path)
    assert found == sleeper
    assert found.process() == begun
    text = found.pid_file.read_text()
    found.pid_file.write_text(f"{begun.pid} {begun.create_time() - 60}")
    assert found.process() is None
    found.signal(signal.SIGKILL)  # its number is another's: nothing happens
    found.pid_file.write_text(text)
    children: list[psutil.Process] = []
    while not children:
        children = begun.children()
    assert background.stop([found]) == 1
    assert found.process() is None
    _, left = psutil.wait_procs(children, timeout=5)
    assert left == []
    assert background.programs(tmp_path) == []
