"""What a job service says of a job: asked with a time-out, always.

Beam's own client asks without one, and would wait for ever for a host that is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.portability import portable_metrics

from beam_pipeline.commit import staging as staging_folder
from imageshards.errors import UserError

# What the notes of a job in the staging folder call the one that runs elsewhere.
NOTE = "remote_job"
CALL_TIMEOUT_SEC = 5.0
ENDED = ("DONE", "FAILED", "CANCELLED", "DRAINED", "UPDATED")
_OPTION = "beam:option:job_name:v1"


@dataclasses.dataclass(frozen=True)
class RemoteJob:
    """A job that was given to a job service.

    Attributes:
        endpoint: host:port of the job service.
        job_id: What the service calls it; another job's after the service was restarted.
        job_name: What we call it; no other job's.
    """

    endpoint: str
    job_id: str
    job_name: str


@contextlib.contextmanager
def job_service(endpoint: str) -> Iterator[Any]:
    """A client of the job service at host:port."""
    with grpc.insecure_channel(endpoint) as channel:
        yield beam_job_api_pb2_grpc.JobServiceStub(channel)


def state_of(job: RemoteJob) -> str | None:
    """Beam's name of the job's state; None if the service does not know it.

    Raises:
        grpc.RpcError: The service does not answer.
    """
    with job_service(job.endpoint) as service:
        found = service.GetJobs(beam_job_api_pb2.GetJobsRequest(), timeout=CALL_TIMEOUT_SEC)
    for info in found.job_info:
        named = info.pipeline_options.fields[_OPTION].string_value
        if info.job_id == job.job_id and named in ("", job.job_name):
            return str(beam_job_api_pb2.JobState.Enum.Name(info.state))
    return None


def cancel(job: RemoteJob) -> None:
    """Asks the service to end the job; it does so a moment later.

    Raises:
        grpc.RpcError: The service does not answer.
    """
    with job_service(job.endpoint) as service:
        request = beam_job_api_pb2.CancelJobRequest(job_id=job.job_id)
        service.Cancel(request, timeout=CALL_TIMEOUT_SEC)


def cancel_named(endpoint: str, job_name: str) -> None:
    """Asks a service to end every job of ours by that name that has not ended.

    Raises:
        grpc.RpcError: The service does not answer.
    """
    with job_service(endpoint) as service:
        found = service.GetJobs(beam_job_api_pb2.GetJobsRequest(), timeout=CALL_TIMEOUT_SEC)
    for info in found.job_info:
        state = beam_job_api_pb2.JobState.Enum.Name(info.state)
        if info.pipeline_options.fields[_OPTION].string_value == job_name and state not in ENDED:
            cancel(RemoteJob(endpoint, info.job_id, job_name))


def counters(job: RemoteJob) -> dict[tuple[str, str], int]:
    """(namespace, name) → value, over all steps; empty if the service keeps none.

    Raises:
        grpc.RpcError: The service does not answer.
    """
    request = beam_job_api_pb2.GetJobMetricsRequest(job_id=job.job_id)
    with job_service(job.endpoint) as service:
        metrics = service.GetJobMetrics(request, timeout=CALL_TIMEOUT_SEC).metrics
    total: dict[tuple[str, str], int] = {}
    attempted = portable_metrics.from_monitoring_infos(metrics.attempted)[0]
    committed = portable_metrics.from_monitoring_infos(metrics.committed)[0]
    for key in attempted.keys() | committed.keys():
        name = (key.metric.namespace, key.metric.name)
        value = max(attempted.get(key) or 0, committed.get(key) or 0)
        total[name] = total.get(name, 0) + value
    return total


def note(staging: str, job: RemoteJob) -> None:
    """Keeps in the staging folder which job writes there."""
    staging_folder.add_job_notes(staging, **{NOTE: dataclasses.asdict(job)})


def noted(staging: str) -> RemoteJob | None:
    """The job that was given to a job service last, by an earlier run."""
    found = staging_folder.job_notes(staging).get(NOTE)
    try:
        return RemoteJob(**found) if found else None
    except TypeError:
        return None


def refuse_running(
    output: str, staging: str, ask: Callable[[RemoteJob], str | None] = state_of
) -> None:
    """Refuses to begin while an earlier run's job still writes to the same output.

    A client that was killed leaves its job behind, at the job service.

    Raises:
        UserError: There is such a job.
    """
    job = noted(staging)
    if job is None:
        return
    try:
        state = ask(job)
    except grpc.RpcError:
        return  # the service is gone, and its jobs with it
    if state is not None and state not in ENDED:
        raise UserError(
            f"--output {output!r} is being written by job {job.job_id} at {job.endpoint}, which is "
            f"{state}; wait for it to end, or end it with: python -m beam_pipeline.cancel {output}"
        )
