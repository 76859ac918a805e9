"""Beam's job server for Flink, for as long as a build needs it, and the build's job at the cluster.

Beam's client would start a job server for every pipeline, take the signal handler for Ctrl-C, and
end the server before a job can be cancelled through it. And a cancelled job goes on at the
cluster: Beam's server only stops to wait for it. So the server is started here, and jobs are
known to Flink's REST interface by a name that follows from the output.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
)
from apache_beam.runners.portability.flink_runner import FlinkJarJobServer

from beam_pipeline import flink
from beam_pipeline.runners import select as runners
from imageshards.errors import UserError

START_TIMEOUT_SEC = 90.0
STOP_TIMEOUT_SEC = 10.0
CANCEL_TIMEOUT_SEC = 60.0

_LOG_BYTES = 4000
_ENDED = ("FINISHED", "FAILED", "CANCELED", "SUSPENDED")

# The server ends with this process, however that ends: then the shell's input ends.
_GUARD = (
    'exec 3<&0; "$@" </dev/null & child=$!; '
    "{ cat <&3 >/dev/null; kill $child 2>/dev/null; } & "
    "wait $child"
)


@contextlib.contextmanager
def job_service(options: PipelineOptions, output: str) -> Iterator[None]:
    """A job service for `--runner FlinkRunner`; nothing for another runner.

    Checks what the cluster needs, sets `--job_name` and, unless a job service is named,
    `--job_endpoint`. When it is left by an exception, the job at the cluster is cancelled.

    Args:
        options: Beam's; they are changed.
        output: Folder or URI of the data set: two jobs for one output exclude each other.

    Raises:
        UserError: The cluster, Java or the jar is not there, the server does not start, or a
            job for the same output still runs.
    """
    if runners.kind(options) != "flink":
        yield
        return
    flink.preflight(options)
    master = options.view_as(FlinkRunnerOptions).flink_master
    named = options.view_as(GoogleCloudOptions)
    named.job_name = named.job_name or job_name(output)
    _refuse_second(master, named.job_name, output)
    with contextlib.ExitStack() as stack:
        if _needs_server(options):
            stack.enter_context(_server(options))
        try:
            yield
        except BaseException:
            with contextlib.suppress(UserError):  # there is a better error to raise
                cancel_jobs(master, named.job_name)
            raise


def job_name(output: str) -> str:
    """What a build's job is called at a cluster: readable, and the same for the same output."""
    place = output if "://" in output else os.path.realpath(output)
    stem = re.sub(r"[^a-z0-9]+", "-", place.rstrip("/").rpartition("/")[2].lower()).strip("-")
    return f"imageshards-{stem or 'build'}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def running_jobs(master: str, name: str) -> list[str]:
    """Ids of a cluster's jobs of a name that have not ended.

    Raises:
        UserError: The cluster does not answer.
    """
    told = _ask(master, "/jobs/overview", "GET")
    return [
        str(job["jid"])
        for job in told.get("jobs", ())
        if job.get("name") == name and job.get("state") not in _ENDED
    ]


def cancel_jobs(master: str, name: str) -> list[str]:
    """Cancels a cluster's jobs of a name and waits until they have ended; returns their ids.

    Raises:
        UserError: The cluster does not answer, or a job does not end in time.
    """
    if not flink.is_address(master):
        return []
    found = running_jobs(master, name)
    for job in found:
        _ask(master, f"/jobs/{job}?mode=cancel", "PATCH")
    deadline = time.monotonic() + CANCEL_TIMEOUT_SEC
    while found and running_jobs(master, name):
        if time.monotonic() > deadline:
            raise UserError(
                f"the job {found[0]} at {master} was told to end but still runs after "
                f"{CANCEL_TIMEOUT_SEC:g} s; see the cluster's own pages there."
            )
        time.sleep(0.2)
    return found


def _refuse_second(master: str, name: str, output: str) -> None:
    if not flink.is_address(master):
        return
    try:
        found = running_jobs(master, name)
    except UserError:
        return  # only the job service sees that cluster
    if found:
        raise UserError(
            f"the Flink cluster at {master} still runs the job {found[0]} for --output "
            f"{output!r}; wait until it has ended, or cancel it there, then give the same command "
            "again: finished shards are kept."
        )


def _ask(master: str, path: str, method: str) -> Any:
    url = flink.url_of(master) + path
    request = urllib.request.Request(url, method=method)
    try:
        with flink.open_url(request, flink.REST_TIMEOUT_SEC) as reply:
            return json.loads(reply.read() or b"{}")
    except (OSError, ValueError) as e:
        raise flink.no_flink(master, e) from e


def _needs_server(options: PipelineOptions) -> bool:
    given = options.view_as(PortableOptions).job_endpoint
    return not given and not options.view_as(FlinkRunnerOptions).flink_submit_uber_jar


@contextlib.contextmanager
def _server(options: PipelineOptions) -> Iterator[None]:
    """A running job server, named by `--job_endpoint` meanwhile."""
    portable, own = options.view_as(PortableOptions), options.view_as(JobServerOptions)
    flags = options.view_as(FlinkRunnerOptions)
    with tempfile.TemporaryDirectory(prefix="imageshards-flink-") as folder:
        own.artifacts_dir = own.artifacts_dir or os.path.join(folder, "artifacts")
        # The server takes the master as Beam's client gives it: with a scheme.
        if flink.is_address(flags.flink_master):
            flags.flink_master = flink.url_of(flags.flink_master)
        command, endpoint = FlinkJarJobServer(options).subprocess_cmd_and_endpoint()
        log = os.path.join(folder, "job-server.log")
        with open(log, "wb") as file:
            process = subprocess.Popen(
                ["sh", "-c", _GUARD, "sh", *map(str, command)],
                stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        try:
            _wait(process, endpoint, log)
            portable.job_endpoint = endpoint
            yield
        finally:
            portable.job_endpoint = None
            _end(process)


def _wait(process: subprocess.Popen[bytes], endpoint: str, log: str) -> None:
    host, _, port = endpoint.rpartition(":")
    deadline = time.monotonic() + START_TIMEOUT_SEC
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), 1).close()
            return
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            why = f"ended with {process.returncode}" if ended else f"{START_TIMEOUT_SEC:g} s passed"
            raise UserError(
                f"Beam's job server for Flink did not start ({why}: {_last_line(log)}); fix "
                "that, or start one yourself and name it by --job_endpoint."
            )
        time.sleep(0.1)


def _last_line(log: str) -> str:
    with open(log, "rb") as file:
        text = file.read()[-_LOG_BYTES:].decode("utf-8", "replace")
    return (text.strip().splitlines() or ["it said nothing"])[-1].strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_SEC)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_TIMEOUT_SEC)
