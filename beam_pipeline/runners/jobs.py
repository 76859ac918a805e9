"""Jobs of a job service: their state, metrics and progress, and cancelling them.

Every call has a time-out. Beam's own client has none, and would wait for ever for a lost host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.portability import portable_metrics

from beam_pipeline.commit import staging as staging_folder
from beam_pipeline.progress import progress_line
from imageshards import storage
from imageshards.errors import UserError

# Its key in the notes of the staging folder.
NOTE = "remote_job"
CALL_TIMEOUT_SEC = 5.0
ENDED = ("DONE", "FAILED", "CANCELLED", "DRAINED", "UPDATED")
_OPTION = "beam:option:job_name:v1"
_RESULT = re.compile(r"(\w+)-\d{5}-of-(\d{5})\.json")
# A listing of a store is a request, and metrics are a call to the job service.
_PROGRESS_SEC = 2.0


@dataclasses.dataclass(frozen=True)
class RemoteJob:
    """A job that was submitted to a job service.

    Attributes:
        endpoint: host:port of the job service.
        job_id: The service's id; after a restart of the service it may be another job's.
        job_name: Our name for it; no other job has it.
    """

    endpoint: str
    job_id: str
    job_name: str


@contextlib.contextmanager
def job_service(endpoint: str) -> Iterator[Any]:
    """A client of the job service at host:port."""
    with grpc.insecure_channel(endpoint) as channel:
        yield beam_job_api_pb2_grpc.JobServiceStub(channel)


def _jobs(endpoint: str) -> Iterator[tuple[RemoteJob, str]]:
    """Every job of a service with Beam's name of its state.

    Raises:
        grpc.RpcError: The service does not answer.
    """
    with job_service(endpoint) as service:
        found = service.GetJobs(beam_job_api_pb2.GetJobsRequest(), timeout=CALL_TIMEOUT_SEC)
    for info in found.job_info:
        name = info.pipeline_options.fields[_OPTION].string_value
        state = str(beam_job_api_pb2.JobState.Enum.Name(info.state))
        yield RemoteJob(endpoint, info.job_id, name), state


def state_of(job: RemoteJob) -> str | None:
    """Beam's name of the job's state; None if the service does not know it.

    Raises:
        grpc.RpcError: The service does not answer.
    """
    for known, state in _jobs(job.endpoint):
        if known.job_id == job.job_id and known.job_name in ("", job.job_name):
            return state
    return None


def cancel(job: RemoteJob) -> None:
    """Cancels a job; the service ends it a moment later.

    Raises:
        grpc.RpcError: The service does not answer.
    """
    with job_service(job.endpoint) as service:
        request = beam_job_api_pb2.CancelJobRequest(job_id=job.job_id)
        service.Cancel(request, timeout=CALL_TIMEOUT_SEC)


def cancel_named(endpoint: str, job_name: str) -> None:
    """Cancels every running job of this name.

    Raises:
        grpc.RpcError: The service does not answer.
    """
    for job, state in _jobs(endpoint):
        if job.job_name == job_name and state not in ENDED:
            cancel(job)


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


def note(staging: str, job: RemoteJob | None) -> None:
    """Keeps in the staging folder which job writes there; None forgets it."""
    staging_folder.add_job_notes(staging, **{NOTE: dataclasses.asdict(job) if job else None})


def noted(staging: str) -> RemoteJob | None:
    """The job that an earlier run submitted last.

    Raises:
        UserError: There is one, and its note cannot be read.
    """
    found = staging_folder.job_notes(staging).get(NOTE)
    try:
        return RemoteJob(**found) if found else None
    except TypeError as e:
        output = storage.parent_of(staging)
        raise UserError(
            f"--output {output!r} was being written by a job elsewhere, whose note {found!r} is "
            f"another release's; {unknown_job_remedy(output)}"
        ) from e


def refuse_running(
    output: str, staging: str, ask: Callable[[RemoteJob], str | None] = state_of
) -> None:
    """Refuses to begin while an earlier run's job may still write to the same output.

    A client that was killed leaves its job behind, at the job service.

    Raises:
        UserError: There is such a job, or it cannot be found out.
    """
    job = noted(staging)
    if job is None:
        return
    try:
        state = ask(job)
    except grpc.RpcError as e:
        if _is_closed(job.endpoint):
            return  # the service has ended, and its jobs with it
        raise UserError(
            f"--output {output!r} was being written by job {job.job_id} at {job.endpoint}, and "
            f"whether it still is could not be found out ({error_text(e)}); "
            + unknown_job_remedy(output)
        ) from e
    if state is not None and state not in ENDED:
        raise UserError(
            f"--output {output!r} is being written by job {job.job_id} at {job.endpoint}, which is "
            f"{state}; wait for it to end, or end it with: imageshards cancel {output}"
        )


def unknown_job_remedy(output: str) -> str:
    """What to do about a job of which nothing is known."""
    return (
        "expected its job service to answer: start or reconnect it and run the same command "
        "again, or, if that job has surely ended, forget it with: imageshards cancel "
        f"--forget {output}"
    )


def _is_closed(endpoint: str) -> bool:
    """Whether the host answers that nobody listens at host:port."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CALL_TIMEOUT_SEC).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    return False


def error_text(e: BaseException) -> str:
    """What an error says, a call's included."""
    if isinstance(e, grpc.RpcError) and callable(getattr(e, "details", None)):
        return str(e.details() or e.code())
    return str(e) or type(e).__name__


class RemoteProgress:
    """The progress line of a job: by its counters, else by the shards it has finished.

    Args:
        staging: Where finished shards are noted.
        counters: Gives the runner's counters so far, (namespace, name) → value.
    """

    def __init__(self, staging: str, counters: Callable[[], dict[tuple[str, str], int]]):
        self._staging = staging
        self._counters = counters
        self._asked_at = 0.0
        self._begun: tuple[float, int] | None = None
        self._line = ""

    def line(self) -> str:
        """The line; asked for again within two seconds, the same one."""
        now = time.monotonic()
        if now - self._asked_at >= _PROGRESS_SEC:
            self._asked_at = now
            self._line = self._by_counters(now) or self._by_shards()
        return self._line

    def _by_counters(self, now: float) -> str:
        found = self._counters()
        total = found.get(("plan", "images"), 0)
        images, reused, size_bytes, rejects = (
            found.get(("write", name), 0) for name in ("images", "reused", "bytes_read", "rejects")
        )
        if not images + reused or not total:
            return ""
        if self._begun is None:
            self._begun = (now, images)
        seconds, first = now - self._begun[0], self._begun[1]
        size_bytes = size_bytes * (images - first) // max(1, images)
        return progress_line(
            min(images + reused, total), total, size_bytes, rejects, reused + first, seconds
        )

    def _by_shards(self) -> str:
        try:
            names = [entry.name for entry in storage.list_folder(self._staging)]
        except (OSError, UserError):
            return ""
        found = [match for name in names if (match := _RESULT.fullmatch(name))]
        totals = {match[1]: int(match[2]) for match in found}
        return f"{len(found):,}/{sum(totals.values()):,} shards" if found else ""
