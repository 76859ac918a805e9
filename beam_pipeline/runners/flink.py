"""`--runner FlinkRunner`: checks of its cluster, and the build's job there.

A master that does not answer, or has another version or no free slot, is one sentence here; on its
own Beam waits, or fails minutes later inside the cluster. And a job that is cancelled at Beam's job
server goes on at the cluster: the server only stops to wait for it. So jobs are known to Flink's
REST interface by a name that follows from the output.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    JobServerOptions,
    PortableOptions,
)

from beam_pipeline.runners.flink_rest import (
    NoFlinkError,
    cancel_jobs,
    is_address,
    overview,
    running_jobs,
)
from beam_pipeline.runners.remote import RemoteRunner
from imageshards.errors import UserError


class FlinkRunner(RemoteRunner):
    """A Flink cluster, reached through Beam's job server, which Beam starts if none is named."""

    def check(self) -> None:
        """Checks the cluster and Java; see `Runner.check`."""
        flags = self.options.view_as(FlinkRunnerOptions)
        only_by_service = bool(self.options.view_as(PortableOptions).job_endpoint)
        if not only_by_service:  # else that job server, not this host, talks to the master
            self._check_job_server(flags)
        master, found = flags.flink_master, []
        try:
            found = running_jobs(master, self.options.view_as(GoogleCloudOptions).job_name)
        except NoFlinkError:
            if not only_by_service:  # which has been asked, and may see what this host does not
                raise
        if found:
            raise UserError(
                f"the Flink cluster at {master} still runs the job {found[0]} for --output "
                f"{self.build.output!r}; wait until it has ended, or cancel it there, then give "
                "the same command again: finished shards are kept."
            )
        super().check()

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
