"""Checks before a job is submitted: do job service and worker pool answer?"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import shutil
import socket
import uuid
from collections.abc import Iterator

import grpc
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from apache_beam.portability.api import (
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    beam_job_api_pb2,
    beam_job_api_pb2_grpc,
)

from beam_pipeline.runners.flags import runner_name
from imageshards.errors import UserError

CONNECT_TIMEOUT_SEC = 5.0
_JOB_NAME = "beam:option:job_name:v1"
_ENDED = ("DONE", "FAILED", "CANCELLED", "DRAINED", "UPDATED")
_START_SERVICE = "start the service (on this host: make job-service), or fix the address"
_START_POOL = "start the pool (make worker-pool), or fix the address"


def check_servers(options: PipelineOptions) -> None:
    """Whether job service and worker pool answer, as far as this machine can ask them.

    Raises:
        UserError: One does not.
    """
    check_endpoint(options)
    check_environment(options)


def check_endpoint(options: PipelineOptions) -> None:
    """Whether a job service answers at --job_endpoint.

    Raises:
        UserError: None does.
    """
    endpoint = options.view_as(PortableOptions).job_endpoint
    if not endpoint:
        if _is_portable(options):
            raise UserError(
                "--job_endpoint is missing; expected host:port of a job service for --runner "
                "PortableRunner: start one on this host with make job-service."
            )
        return
    if endpoint == "embed":
        return
    with _explain_call_errors("--job_endpoint", endpoint, "job service", _START_SERVICE):
        with grpc.insecure_channel(endpoint) as channel:
            service = beam_job_api_pb2_grpc.JobServiceStub(channel)
            request = beam_job_api_pb2.DescribePipelineOptionsRequest()
            service.DescribePipelineOptions(request, timeout=CONNECT_TIMEOUT_SEC)


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


def check_environment(options: PipelineOptions) -> None:
    """Whether the workers that --environment_type asks for can be had.

    Raises:
        UserError: They cannot.
    """
    portable = options.view_as(PortableOptions)
    kind = (portable.environment_type or "").upper()
    if kind == "EXTERNAL":
        _check_pool(options)
    elif kind in ("", "DOCKER") and _is_portable(options):
        if is_here(portable.job_endpoint or "") and shutil.which("docker") is None:
            raise UserError(
                f"--environment_type received {kind or 'nothing'}, so every worker is a Docker "
                "container, and there is no docker on this host; expected EXTERNAL: start a pool "
                "with make worker-pool, and give --environment_type EXTERNAL "
                "--environment_config localhost:50000."
            )


def _is_portable(options: PipelineOptions) -> bool:
    return runner_name(options.view_as(StandardOptions).runner) == "portable"


def _check_pool(options: PipelineOptions) -> None:
    """A pool on this host is asked whether it is one."""
    if ":" not in _pool_address(options):
        raise UserError(
            f"--environment_config received {options.view_as(PortableOptions).environment_config!r}"
            " with --environment_type EXTERNAL; expected host:port of a worker pool: start one "
            "with make worker-pool."
        )
    address = pool_here(options)
    if not address:
        return
    with _explain_call_errors("--environment_config", address, "worker pool", _START_POOL):
        with grpc.insecure_channel(address) as channel:
            # Stops nothing: no worker has this name.
            beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel).StopWorker(
                beam_fn_api_pb2.StopWorkerRequest(worker_id=f"nobody-{uuid.uuid4().hex}"),
                timeout=CONNECT_TIMEOUT_SEC,
            )


@contextlib.contextmanager
def _explain_call_errors(flag: str, address: str, server: str, remedy: str) -> Iterator[None]:
    """Makes a sentence of what goes wrong in a call to a server."""
    try:
        reason = connection_error(address)
    except ValueError:
        raise UserError(f"{flag} received {address!r}; expected host:port.") from None
    if reason:
        raise UserError(
            f"{flag} received {address!r}, but no {server} listens there ({reason}); {remedy}."
        )
    try:
        yield
    except grpc.RpcError as e:
        code = e.code().name.lower().replace("_", " ")
        raise UserError(
            f"{flag} received {address!r}, where something listens that is no Beam {server} "
            f"({code}); {remedy}."
        ) from None


def is_here(address: str) -> bool:
    """Whether host:port is an address of this machine itself."""
    host = address.rpartition(":")[0].strip("[]")
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def connection_error(address: str) -> str | None:
    """Why nothing can be reached at host:port; None if something can.

    Raises:
        ValueError: It is no host:port.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not 0 < int(port) < 65536:
        raise ValueError(address)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_SEC):
            return None
    except TimeoutError:
        return f"no answer within {CONNECT_TIMEOUT_SEC:.0f} s"
    except OSError as e:
        return e.strerror or str(e)


def _pool_address(options: PipelineOptions) -> str:
    """host:port of the worker pool; empty if the environment is another or says none."""
    portable = options.view_as(PortableOptions)
    if (portable.environment_type or "").upper() != "EXTERNAL":
        return ""
    config = str(portable.environment_config or "")
    if not config.startswith("{"):
        return config
    try:
        return str(json.loads(config).get("url", ""))
    except ValueError:
        return ""


def pool_here(options: PipelineOptions) -> str:
    """The worker pool's address if it can be asked from here.

    A pool is looked for by the runner's hosts: `localhost` means this one only if the runner
    is here too.
    """
    address = _pool_address(options)
    service = options.view_as(PortableOptions).job_endpoint or ""
    here = is_here(address) and (not service or is_here(service))
    return address if here else ""
