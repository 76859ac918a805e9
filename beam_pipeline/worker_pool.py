"""`python -m beam_pipeline.worker_pool`: Beam workers on this host, without Docker.

For `--environment_type EXTERNAL --environment_config HOST:PORT`. In place of Beam's own
`worker_pool_main`, which listens on every network, starts a new interpreter for each worker,
confuses workers of one name, and leaves it to the runner to notice that a worker was killed:
Prism does not always.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import importlib.util
import logging
import multiprocessing
import os
import pathlib
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from typing import Any

import grpc
from apache_beam.portability.api import (
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    endpoints_pb2,
)
from google.protobuf import json_format, text_format

from imageshards import __version__

DEFAULT_PORT = 50000
# Imported once by the server that workers are forked from, so that they start in milliseconds.
_PRELOADED = ["apache_beam.runners.worker.sdk_worker_main", "beam_pipeline.shards.sink"]
_STOP_TIMEOUT_SEC = 5.0
_PROVISION_TIMEOUT_SEC = 10.0
_HANG_UPS = 40
_HANG_UP_SEC = 0.25


class WorkerPool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """Starts and stops worker processes when a runner asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[str, list[Any]] = collections.defaultdict(list)
        self._installed = installed()
        self._forks = multiprocessing.get_context("forkserver")
        self._forks.set_forkserver_preload(_PRELOADED)

    def _context(self) -> Any:
        # The fork server holds what was installed when it began.
        is_same = installed() == self._installed
        return self._forks if is_same else multiprocessing.get_context("spawn")

    def start_fork_server(self) -> None:
        """Imports the packages before the first worker is started."""
        process = self._forks.Process(target=time.time)
        process.start()
        process.join()

    def StartWorker(self, request: Any, context: Any) -> Any:
        """Starts one worker process."""
        worker = self._context().Process(target=_run_worker, args=(request.SerializeToString(),))
        with self._lock:
            self._workers[request.worker_id].append(worker)
            worker.start()
        _say(f"worker {request.worker_id} started as process {worker.pid}")
        threading.Thread(target=self._watch, args=(request, worker), daemon=True).start()
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request: Any, context: Any) -> Any:
        """Ends a worker process, however busy, if it is known which one is meant.

        Two Flink jobs on one TaskManager name their workers alike. Then nothing is ended: the
        runner hangs up next, and the worker that it is meant for ends by itself.
        """
        with self._lock:
            alike = self._workers.get(request.worker_id, ())
            meant = self._workers.pop(request.worker_id) if len(alike) == 1 else []
        if meant:
            _end(meant)
            _say(f"worker {request.worker_id} stopped")
        return beam_fn_api_pb2.StopWorkerResponse()

    def stop_all(self) -> None:
        """Ends every worker process."""
        with self._lock:
            workers = [worker for alike in self._workers.values() for worker in alike]
            self._workers.clear()
        _end(workers)

    def _watch(self, request: Any, worker: Any) -> None:
        worker.join()
        with self._lock:
            if worker not in self._workers.get(request.worker_id, ()):
                return  # it was stopped
            self._workers[request.worker_id].remove(worker)
        if worker.exitcode:
            _say(f"worker {request.worker_id} (process {worker.pid}) ended with {worker.exitcode}")
            _hang_up(request)


def _hang_up(request: Any) -> None:
    """Makes the runner notice that a worker is gone.

    Prism 2.77 waits for ever when it sees the end of the stream before the end of the
    connection (either may win, in the `select` of its `Control`); another stream under the
    worker's name that ends gives it another chance.
    """
    metadata = (("worker_id", request.worker_id),)
    with grpc.insecure_channel(request.control_endpoint.url) as channel:
        control = beam_fn_api_pb2_grpc.BeamFnControlStub(channel)
        for _ in range(_HANG_UPS):
            ended = threading.Event()
            try:
                _provision_info(channel, request.worker_id)
            except grpc.RpcError:
                return  # the worker is no longer known: the job has ended
            with contextlib.suppress(grpc.RpcError):
                call = control.Control(_until(ended), metadata=metadata)
                time.sleep(_HANG_UP_SEC)
                call.cancel()
            ended.set()


def _until(ended: threading.Event) -> Iterator[Any]:
    ended.wait(60)
    yield from ()


def _provision_info(channel: grpc.Channel, worker_id: str) -> Any:
    stub = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
    request = beam_provision_api_pb2.GetProvisionInfoRequest()
    metadata = (("worker_id", worker_id),)
    return stub.GetProvisionInfo(request, timeout=_PROVISION_TIMEOUT_SEC, metadata=metadata).info


def _end(workers: Sequence[Any]) -> None:
    for worker in workers:
        worker.terminate()
    deadline = time.monotonic() + _STOP_TIMEOUT_SEC
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
        if worker.is_alive():
            worker.kill()
            worker.join(_STOP_TIMEOUT_SEC)


def installed() -> tuple[tuple[str, float], ...]:
    """When the packages that decide the bytes of a shard were last changed on disk."""
    found = []
    for package in ("beam_pipeline", "PIL", "apache_beam", "numpy"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            folder = pathlib.Path(spec.origin).parent
            found.append((package, max(path.stat().st_mtime for path in folder.glob("*.py"))))
    return tuple(found)


def _run_worker(started: bytes) -> None:
    """Runs Beam's worker until the runner hangs up; in a process of its own."""
    from apache_beam.runners.worker import sdk_worker_main, worker_id_interceptor

    from beam_pipeline.startup import cache_inspections

    cache_inspections()
    request = beam_fn_api_pb2.StartWorkerRequest.FromString(started)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # It logs every pipeline option, keys of an object store among them.
    logging.getLogger(sdk_worker_main.__name__).setLevel(logging.WARNING)
    # Beam reads it from the environment when this class is made, before the fork.
    worker_id_interceptor.WorkerIdInterceptor._worker_id = request.worker_id
    os.environ.update(
        WORKER_ID=request.worker_id,
        CONTROL_API_SERVICE_DESCRIPTOR=_descriptor(request.control_endpoint.url),
        LOGGING_API_SERVICE_DESCRIPTOR=_descriptor(request.logging_endpoint.url),
    )
    if request.provision_endpoint.url:
        with grpc.insecure_channel(request.provision_endpoint.url) as channel:
            info = _provision_info(channel, request.worker_id)
        os.environ["PIPELINE_OPTIONS"] = json_format.MessageToJson(info.pipeline_options)
        os.environ["RUNNER_CAPABILITIES"] = " ".join(info.runner_capabilities)
        if info.HasField("status_endpoint"):
            status = _descriptor(info.status_endpoint.url)
            os.environ["STATUS_API_SERVICE_DESCRIPTOR"] = status
    sdk_worker_main.main([])
    logging.shutdown()
    os._exit(0)  # threads of a runner that is gone would keep the process


def _descriptor(url: str) -> str:
    return text_format.MessageToString(endpoints_pb2.ApiServiceDescriptor(url=url))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _say(sentence: str) -> None:
    """A line for the pool's log."""
    print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)


def serve(host: str, port: int) -> int:
    """Runs a pool until SIGTERM or Ctrl-C.

    Returns:
        0, or 2 when the port cannot be had.
    """
    host_ip = "127.0.0.1" if host == "localhost" else host
    pool = WorkerPool()
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)]
    )
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind((host_ip, port))
            # Before the port listens: who can connect is answered. Nobody else is given it.
            pool.start_fork_server()
        shown = f"[{host_ip}]" if ":" in host_ip else host_ip
        bound = server.add_insecure_port(f"{shown}:{port}")
    except (OSError, RuntimeError, OverflowError):
        print(
            f"error: --service_port received {port}, which is in use on {host} or not ours; "
            "expected a free port: stop what listens there, or choose another one.",
            file=sys.stderr,
        )
        return 2
    server.start()
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    print(f"worker pool of imageshards {__version__} listens at {host}:{bound}", flush=True)
    while not stopped.wait(3600):
        continue
    server.stop(0)
    pool.stop_all()
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m beam_pipeline.worker_pool", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "--service_port", type=int, default=DEFAULT_PORT, help="port; 0 for any free one"
    )
    parser.add_argument(
        "--host",
        default="localhost",
        help="address to listen at; anyone who can reach it can run programs as this user, so "
        "name another than localhost in a closed network only (default: localhost)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a pool in the foreground."""
    args = make_parser().parse_args(argv)
    return serve(args.host, args.service_port)


if __name__ == "__main__":
    sys.exit(main())
