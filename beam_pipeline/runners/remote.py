"""A runner on other machines: a job is checked, submitted by Beam, waited for, or cancelled.

Progress, logs and jobs whose client is gone are on the runner's own pages: Flink's dashboard,
Dataflow's console, the log of a job service.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import re
import socket
import sys
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
    TestOptions,
)
from apache_beam.portability.api import (
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    beam_job_api_pb2,
    beam_job_api_pb2_grpc,
)
from apache_beam.runners.runner import PipelineState

from beam_pipeline.options import BuildOptions
from beam_pipeline.runners.flags import runner_name
from beam_pipeline.runners.runner import Runner, job_name
from imageshards import storage
from imageshards.errors import UserError, last_line, user_error_in
from imageshards.manifest import STAGING_NAME

FAILURE_NAME = "failure.txt"
CONNECT_TIMEOUT_SEC = 5.0
CANCEL_TIMEOUT_SEC = 40.0
_POLL_SEC = 0.25
_LOG_LINES = 500
# Threads of Beam's client, and of workers inside this process, that hold a connection.
_CONNECTED = ("wait_until_finish_read", "read_grpc_client_inputs", "run_worker")

_JOB_NAME = "beam:option:job_name:v1"
_ENDED = ("DONE", "FAILED", "CANCELLED", "DRAINED", "UPDATED")


class RemoteRunner(Runner):
    """A job service that runs the pipeline; also the base of Flink's and Dataflow's.

    The job is named after the output, so that a second one for the same output is noticed.
    """

    local = False

    def __init__(self, options: PipelineOptions, build: BuildOptions):
        super().__init__(options, build)
        google = options.view_as(GoogleCloudOptions)
        if not google.job_name:
            google.job_name = job_name(build.output)

    def check(self) -> None:
        """Checks that job service and worker pool answer, and that no other job writes here."""
        check_servers(self.options)
        refuse_second(self.options, self.build.output)

    def run(self, pipeline: beam.Pipeline) -> bool:
        """Runs a job to its end; see `Runner.run`."""
        with _log() as lines:
            try:
                result = pipeline.run()
                dry_run = self.options.view_as(TestOptions).dry_run
                if result is None or dry_run or not getattr(result, "has_job", True):  # a template
                    return False
                self._wait(result)
            except Exception as e:
                if known := self.explain(e):
                    raise known from e
                if user_error_in(e):
                    raise
                raise _failure(e, self.build.output, lines) from e
        return True

    def explain(self, e: Exception) -> UserError | None:
        """The sentence for an error of this runner's client; None for other errors."""
        return None

    def _wait(self, result: Any) -> None:
        name = self.options.view_as(GoogleCloudOptions).job_name
        print(f"the job {name} was submitted; Ctrl-C cancels it", file=sys.stderr)
        try:
            result.wait_until_finish()
        except KeyboardInterrupt:
            print("cancelling the job ...", file=sys.stderr)
            try:
                result.cancel()
                deadline = time.monotonic() + CANCEL_TIMEOUT_SEC
                while not PipelineState.is_terminal(result.state):
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"it did not end within {CANCEL_TIMEOUT_SEC:.0f} s")
                    time.sleep(_POLL_SEC)
            except Exception as e:  # noqa: BLE001  # whatever it is, the job may still write
                said = error_text(e)
                print(f"the job {name} may still write to the output: {said}", file=sys.stderr)
            raise


def error_text(e: BaseException) -> str:
    """What an error says, a call's included."""
    if isinstance(e, grpc.RpcError) and callable(getattr(e, "details", None)):
        return str(e.details() or e.code())
    return str(e) or type(e).__name__


@contextlib.contextmanager
def _log() -> Iterator[deque[str]]:
    """Keeps what Beam logs, instead of showing tracebacks beside the one sentence."""
    lines: deque[str] = deque(maxlen=_LOG_LINES)

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.levelname} {record.name}: {record.getMessage()}")

    threading.excepthook = _hook
    root = logging.getLogger()
    before, root.handlers = root.handlers, [Keep(logging.INFO)]
    try:
        yield lines
    finally:
        root.handlers = before


def _hook(args: Any, show: Any = threading.excepthook) -> None:
    """Shows what ended a thread, but not that a thread of Beam's lost its job service.

    That is reported elsewhere, and at the end of a job it is no error; such a thread may notice
    late, so this is never undone.
    """
    name = "" if args.thread is None else args.thread.name
    if not (isinstance(args.exc_value, grpc.RpcError) and name.startswith(_CONNECTED)):
        show(args)


def _failure(e: BaseException, output: str, lines: deque[str]) -> UserError:
    """The sentence for an unexpected failure; its log and its traceback go to a file."""
    path = storage.join(output, STAGING_NAME, FAILURE_NAME)
    text = error_text(e)
    with contextlib.suppress(OSError):
        storage.write(path, "\n".join([*lines, *traceback.format_exception(e)]))
    if isinstance(e, grpc.RpcError):
        return UserError(
            f"the job service does not answer any more ({last_line(text)}); start it "
            "again, then give the same command: finished shards are kept."
        )
    return UserError(
        f"the job failed ({last_line(text)}); its log is in {path}, more in the "
        "logs of the job service and its workers; finished shards are kept for the same "
        "command."
    )


def check_servers(options: PipelineOptions) -> None:
    """Whether job service and worker pool answer, as far as this machine can ask them.

    Raises:
        UserError: One does not.
    """
    portable = options.view_as(PortableOptions)
    service = portable.job_endpoint or ""
    if service and service != "embed":
        with _asked("--job_endpoint", service, "job service", "make job-service") as channel:
            beam_job_api_pb2_grpc.JobServiceStub(channel).DescribePipelineOptions(
                beam_job_api_pb2.DescribePipelineOptionsRequest(), timeout=CONNECT_TIMEOUT_SEC
            )
    elif not service and runner_name(options.view_as(StandardOptions).runner) == "portable":
        raise UserError(
            "--job_endpoint is missing; expected host:port of a job service for --runner "
            "PortableRunner: start one on this host with make job-service."
        )
    if (portable.environment_type or "").upper() == "EXTERNAL":
        _check_pool(str(portable.environment_config or ""), service)


def refuse_second(options: PipelineOptions, output: str) -> None:
    """Refuses to begin while a job of the same name runs at --job_endpoint.

    A client that was killed leaves its job behind, which may still write to the same output.

    Raises:
        UserError: There is such a job.
    """
    endpoint = options.view_as(PortableOptions).job_endpoint
    if not endpoint or endpoint == "embed":
        return
    name = options.view_as(GoogleCloudOptions).job_name
    with grpc.insecure_channel(endpoint) as channel:
        service = beam_job_api_pb2_grpc.JobServiceStub(channel)
        try:
            found = service.GetJobs(beam_job_api_pb2.GetJobsRequest(), timeout=CONNECT_TIMEOUT_SEC)
        except grpc.RpcError:
            return  # a job service need not tell of its jobs
    for info in found.job_info:
        state = str(beam_job_api_pb2.JobState.Enum.Name(info.state))
        if info.pipeline_options.fields[_JOB_NAME].string_value == name and state not in _ENDED:
            raise UserError(
                f"the job service at {endpoint} still runs the job {info.job_id} ({state}) for "
                f"--output {output!r}; wait until it has ended, or stop the job service, then give "
                "the same command again: finished shards are kept."
            )


def _check_pool(address: str, service: str) -> None:
    """Asks a pool on this host whether it is one.

    It is looked for by the runner's hosts: `localhost` means this one only if the runner is here.
    """
    if ":" in address and not (_is_here(address) and (not service or _is_here(service))):
        return
    with _asked("--environment_config", address, "worker pool", "make worker-pool") as channel:
        # Stops nothing: no worker has this name.
        beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel).StopWorker(
            beam_fn_api_pb2.StopWorkerRequest(worker_id=f"nobody-{uuid.uuid4().hex}"),
            timeout=CONNECT_TIMEOUT_SEC,
        )


@contextlib.contextmanager
def _asked(flag: str, address: str, server: str, command: str) -> Iterator[grpc.Channel]:
    """A connection to a server; makes a sentence of what goes wrong in a call."""
    if not re.fullmatch(r".+:[1-9]\d{0,4}", address):
        raise UserError(
            f"{flag} received {address!r}; expected host:port of a {server}: start one on this "
            f"host with {command}."
        )
    try:
        with grpc.insecure_channel(address) as channel:
            yield channel
    except grpc.RpcError as e:
        code = e.code().name.lower().replace("_", " ")
        raise UserError(
            f"{flag} received {address!r}, where no {server} of Beam's answers ({code}); start "
            f"it (on this host: {command}), or fix the address."
        ) from None


def _is_here(address: str) -> bool:
    """Whether host:port is an address of this machine itself."""
    host = address.rpartition(":")[0].strip("[]")
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
