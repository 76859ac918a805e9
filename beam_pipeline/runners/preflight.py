"""Checks before a job is submitted: do job service and worker pool answer?"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
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


def check_servers(options: PipelineOptions) -> None:
    """Whether job service and worker pool answer, as far as this machine can ask them.

    Raises:
        UserError: One does not, or there is no Docker for workers that are containers.
    """
    portable = options.view_as(PortableOptions)
    service = portable.job_endpoint or ""
    is_portable = runner_name(options.view_as(StandardOptions).runner) == "portable"
    if service and service != "embed":
        with _asked("--job_endpoint", service, "job service", "make job-service") as channel:
            beam_job_api_pb2_grpc.JobServiceStub(channel).DescribePipelineOptions(
                beam_job_api_pb2.DescribePipelineOptionsRequest(), timeout=CONNECT_TIMEOUT_SEC
            )
    elif not service and is_portable:
        raise UserError(
            "--job_endpoint is missing; expected host:port of a job service for --runner "
            "PortableRunner: start one on this host with make job-service."
        )
    kind = (portable.environment_type or "").upper()
    if kind == "EXTERNAL":
        _check_pool(str(portable.environment_config or ""), service)
    elif kind in ("", "DOCKER") and is_portable and _is_here(service):
        if shutil.which("docker") is None:
            raise UserError(
                f"--environment_type received {kind or 'nothing'}, so every worker is a Docker "
                "container, and there is no docker on this host; expected EXTERNAL: start a pool "
                "with make worker-pool, and give --environment_type EXTERNAL "
                "--environment_config localhost:50000."
            )


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


def _check_pool(config: str, service: str) -> None:
    """Asks a pool on this host whether it is one.

    It is looked for by the runner's hosts: `localhost` means this one only if the runner is here.
    """
    address = config
    if config.startswith("{"):
        with contextlib.suppress(ValueError):
            address = str(json.loads(config).get("url", ""))
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
