"""`--runner FlinkRunner`: checks of its cluster, and the build's job there.

A master that does not answer, or has another version or no free slot, is one sentence here; on its
own Beam waits, or fails minutes later inside the cluster. And a job that is cancelled at Beam's job
server goes on at the cluster: the server only stops to wait for it. So jobs are known to Flink's
REST interface by a name that follows from the output.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    JobServerOptions,
    PortableOptions,
)
from apache_beam.runners.portability import flink_runner

from beam_pipeline.runners.remote import RemoteRunner
from imageshards.errors import UserError, last_line

# Masters that stand for a cluster inside the job server's own process.
EMBEDDED = (*flink_runner.MAGIC_HOST_NAMES, "[collection]")

REST_TIMEOUT_SEC = 5.0
CANCEL_TIMEOUT_SEC = 60.0

_ENDED = ("FINISHED", "FAILED", "CANCELED", "SUSPENDED")


class NoFlinkError(UserError):
    """No Flink answers at an address."""


class FlinkRunner(RemoteRunner):
    """A Flink cluster, reached through Beam's job server, which Beam starts if none is named."""

    def check(self) -> None:
        """Checks the cluster, Java and the jar; see `Runner.check`."""
        flags = self.options.view_as(FlinkRunnerOptions)
        only_by_service = bool(self.options.view_as(PortableOptions).job_endpoint)
        if not only_by_service:  # else that job server, not this host, talks to the master
            self._check_job_server(flags)
        try:
            self._refuse_second(flags.flink_master)
        except NoFlinkError:
            if not only_by_service:  # which has been asked, and may see what this host does not
                raise
        super().check()

    def _refuse_second(self, master: str) -> None:
        """Raises `UserError` if the cluster runs a job for this output."""
        if not is_address(master):
            return
        if found := running_jobs(master, self.options.view_as(GoogleCloudOptions).job_name):
            raise UserError(
                f"the Flink cluster at {master} still runs the job {found[0]} for --output "
                f"{self.build.output!r}; wait until it has ended, or cancel it there, then give "
                "the same command again: finished shards are kept."
            )

    def _check_job_server(self, flags: Any) -> None:
        master = flags.flink_master
        if is_address(master) and (found := overview(master).version) != flags.flink_version:
            raise UserError(
                f"--flink_version received {flags.flink_version}, but the cluster at {master} runs "
                f"Flink {found}; expected the same version: leave the flag out, or give one of "
                f"{', '.join(flags.PUBLISHED_FLINK_VERSIONS)} and a cluster of it."
            )
        java = self.options.view_as(JobServerOptions).job_server_java_launcher
        if not flags.flink_submit_uber_jar and shutil.which(java) is None:
            raise UserError(
                f"--runner FlinkRunner starts Beam's job server with {java!r}, which is not here; "
                "expected Java 11 or later (17 for Flink 2): install one, or name it by "
                "--job_server_java_launcher."
            )
        jar = flags.flink_job_server_jar
        if jar and "://" not in jar and not os.path.isfile(jar):
            raise UserError(
                f"--flink_job_server_jar received {jar!r}, which is no file; expected Beam's job "
                f"server for Flink {flags.flink_version}, or its URL."
            )

    def run(self, pipeline: beam.Pipeline) -> bool:
        """Runs a job to its end; where that is left early, the job at the cluster is cancelled."""
        try:
            return super().run(pipeline)
        except BaseException:
            flags = self.options.view_as(FlinkRunnerOptions)
            name = self.options.view_as(GoogleCloudOptions).job_name
            with contextlib.suppress(UserError):  # there is a better error to raise
                cancel_jobs(flags.flink_master, name)
            raise

    def explain(self, e: Exception) -> UserError | None:
        """The sentence where Beam cannot fetch or start its job server."""
        if isinstance(e, RuntimeError) and "job server jar" in str(e):
            return UserError(f"{last_line(str(e))}; or name it by --flink_job_server_jar.")
        return None


class Overview(NamedTuple):
    """Version and task slots of a cluster.

    Attributes:
        version: Major and minor version, "2.2".
        task_managers: Running TaskManagers.
        slots, free_slots: Their task slots, and those no job has taken.
    """

    version: str
    task_managers: int
    slots: int
    free_slots: int

    @property
    def slots_of_one(self) -> int:
        """Task slots of the largest TaskManager, if they are alike."""
        return -(-self.slots // max(1, self.task_managers))


def is_address(master: str) -> bool:
    """Whether a master is a cluster's, not one inside the job server."""
    return master.strip() not in EMBEDDED


def overview(master: str) -> Overview:
    """Reads a cluster's version and task slots.

    Raises:
        NoFlinkError: It does not answer in time, or what answers is no Flink.
    """
    told = _ask(master, "/overview")
    try:
        return Overview(
            ".".join(str(told["flink-version"]).split(".")[:2]),
            int(told["taskmanagers"]),
            int(told["slots-total"]),
            int(told["slots-available"]),
        )
    except (ValueError, KeyError, TypeError) as e:
        raise _no_flink(master, "the reply is not Flink's") from e


def running_jobs(master: str, name: str) -> list[str]:
    """Ids of a cluster's jobs of a name that have not ended.

    Raises:
        NoFlinkError: The cluster does not answer.
    """
    return [
        str(job["jid"])
        for job in _ask(master, "/jobs/overview").get("jobs", ())
        if job.get("name") == name and job.get("state") not in _ENDED
    ]


def cancel_jobs(master: str, name: str) -> list[str]:
    """Cancels a cluster's jobs of a name and waits until they have ended; returns their ids.

    Raises:
        UserError: The cluster does not answer, or a job does not end in time.
    """
    if not is_address(master):
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


def _ask(master: str, path: str, method: str = "GET") -> Any:
    """The reply of a cluster's REST interface."""
    url = flink_runner.FlinkRunner.add_http_scheme(master).rstrip("/") + path
    host = urllib.parse.urlsplit(url).hostname or ""
    # A proxy that the environment names cannot know this machine's own services.
    here = host in ("localhost", "::1") or host.startswith("127.")
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if here else []))
    try:
        request = urllib.request.Request(url, method=method)
        with opener.open(request, timeout=REST_TIMEOUT_SEC) as reply:
            return json.loads(reply.read() or b"{}")
    except (OSError, ValueError) as e:
        raise _no_flink(master, e) from e


def _no_flink(master: str, e: object) -> NoFlinkError:
    return NoFlinkError(
        f"--flink_master received {master!r}, where no Flink answers ({e}); expected the "
        "address of the JobManager's REST interface, for example localhost:8081: start the cluster "
        "(docs/howto/flink.md) or fix the address."
    )
