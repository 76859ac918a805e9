"""Runs a build on this machine, or submits the build to a cluster by one of Beam's own clients."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options import pipeline_options as beam_options
from apache_beam.runners.runner import PipelineRunner, PipelineState

from beam_pipeline.option_texts import beam_flag
from beam_pipeline.options import BuildOptions
from imageshards import storage
from imageshards.errors import UserError, last_line, user_error_in

# How long the client waits for a cancelled job to end.
CANCEL_TIMEOUT_SEC = 40.0
_POLL_SEC = 0.25


@dataclasses.dataclass
class Runner:
    """Runner of the pipelines of one build on this machine; subclasses run them elsewhere.

    Beam chooses its own runner by `options` if `beam_runner` is None.
    """

    options: beam_options.PipelineOptions
    build: BuildOptions
    beam_runner: PipelineRunner | None = None

    local = True

    def new_pipeline(self, with_columns: bool = False) -> beam.Pipeline:
        """Returns an empty pipeline; `with_columns` if its workers need tensorflow-transform.

        Raises:
            UserError: Beam refuses the options.
        """
        try:
            pipeline = beam.Pipeline(self.beam_runner, options=self.options)
        # Beam looks for the runner and validates the options here.
        except (AttributeError, ImportError, ValueError) as e:
            problems = " ".join(str(e).splitlines()[1:]) or str(e)
            raise UserError(
                f"Beam refuses its flags ({problems.rstrip('.')})", remedy="fix or add the flag"
            ) from e
        if self.local:
            # Beam's copy of the options omits this one, which workers of a cluster must not use.
            google, copied = (
                options.view_as(beam_options.GoogleCloudOptions)
                for options in (self.options, pipeline.options)
            )
            copied.impersonate_service_account = google.impersonate_service_account
        # Only transforms in other languages use this folder, and a killed process would leave it.
        os.rmdir(pipeline.local_tempdir)
        return pipeline

    def check(self) -> None:
        """Checks what can be checked before anything is written.

        Raises:
            UserError: A flag is missing or cannot be right.
        """

    def run(self, pipeline: beam.Pipeline) -> bool:
        """Runs a pipeline to its end.

        Returns:
            True if the pipeline ran, False if this was a dry run.

        Raises:
            UserError: The job failed; the sentence gives the reason, or the place of the logs.
            RuntimeError: A worker failed; `imageshards.errors.user_error_in` finds its sentence.
            KeyboardInterrupt: On Ctrl-C, when the job has been cancelled.
        """
        pipeline.run().wait_until_finish()
        return True


class RemoteRunner(Runner):
    """Runner that submits the job to a job service, Flink or Dataflow, and waits for its end.

    Progress and logs are on the runner's own pages. Two jobs may write to one output: the commit
    publishes nothing for the job that lost the output.
    """

    local = False

    def __init__(self, options: beam_options.PipelineOptions, build: BuildOptions):
        super().__init__(options, build)
        google = options.view_as(beam_options.GoogleCloudOptions)
        google.job_name = google.job_name or job_name(build.output)

    def run(self, pipeline: beam.Pipeline) -> bool:
        try:
            with _quiet_log():
                result = pipeline.run()
                dry_run = self.options.view_as(beam_options.TestOptions).dry_run
                # Writing a Dataflow template starts no job either.
                if result is None or dry_run or not getattr(result, "has_job", True):
                    return False
                self._wait(result)
        except Exception as e:
            if user_error_in(e):
                raise
            raise self._failure(e) from e
        return True

    def _wait(self, result: Any) -> None:
        name = self.options.view_as(beam_options.GoogleCloudOptions).job_name
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
            except Exception as e:  # noqa: BLE001  # the client ends anyway, and prints the reason
                print(
                    f"the job {name} may still run ({_error_text(e)}); it publishes nothing once "
                    "another build of this output has begun",
                    file=sys.stderr,
                )
            raise

    def _failure(self, e: Exception) -> UserError:
        said = last_line(_error_text(e))
        if isinstance(e, (grpc.RpcError, grpc.FutureTimeoutError)):
            endpoint = self.options.view_as(beam_options.PortableOptions).job_endpoint
            return UserError(
                argument=beam_flag("job_endpoint"),
                received=f"{endpoint!r}, but no job service answers there ({said})",
                remedy="start one (on this host: make job-service), then give the same command: "
                "finished shards are kept",
            )
        return UserError(
            f"the job failed ({said})",
            remedy="the logs of the runner and of its workers have more; finished shards are kept "
            "for the same command",
        )


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    # The client logs the tracebacks of workers, which would hide our own sentence.
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def _error_text(e: BaseException) -> str:
    # A failed call is printed with its internals; only its details are written for people.
    if isinstance(e, grpc.RpcError) and callable(getattr(e, "details", None)):
        return str(e.details() or e.code())
    return str(e) or type(e).__name__


def job_name(output: str) -> str:
    """Returns the name of a build's job: readable, and the same for the same output only.

    Dataflow refuses a second active job with the same name, and so a second one for an output.
    """
    place = os.path.realpath(output) if storage.is_local(output) else output.rstrip("/")
    words = re.sub(r"[^a-z0-9]+", "-", place.rpartition("/")[2].lower())
    digest = hashlib.sha256(place.encode()).hexdigest()[:8]
    return f"imageshards-{words[:30].strip('-') or 'build'}-{digest}"
