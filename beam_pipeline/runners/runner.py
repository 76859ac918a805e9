"""Runners of a build: the local one, and one that submits the job through Beam's own client."""

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
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.runner import PipelineRunner, PipelineState

from beam_pipeline.option_texts import beam_flag
from beam_pipeline.options import BuildOptions
from imageshards import storage
from imageshards.errors import UserError, last_line, names_flags, naming_flags, user_error_in

CANCEL_TIMEOUT_SEC = 40.0
_POLL_SEC = 0.25


@dataclasses.dataclass
class Runner:
    """Runs the pipelines of one build on this machine; subclasses run them elsewhere.

    Where no runner of Beam's is given, Beam finds one by its options.
    """

    options: beam_options.PipelineOptions
    build: BuildOptions
    beam_runner: PipelineRunner | None = None

    local = True

    def new_pipeline(self, with_columns: bool = False) -> beam.Pipeline:
        """Returns an empty pipeline; its workers may need tensorflow-transform for columns.

        Raises:
            UserError: Beam refuses the options.
        """
        try:
            pipeline = beam.Pipeline(self.beam_runner, options=self.options)
        # Beam finds the runner and validates the options here, and lists what is wrong.
        except (AttributeError, ImportError, ValueError) as e:
            problems = " ".join(str(e).splitlines()[1:]) or str(e)
            raise UserError(
                f"Beam refuses its flags ({problems.rstrip('.')})", remedy="fix or add the flag"
            ) from e
        if self.local:
            # Beam's copy of the options lacks it, as the workers of a cluster must.
            google, copied = (
                options.view_as(beam_options.GoogleCloudOptions)
                for options in (self.options, pipeline.options)
            )
            copied.impersonate_service_account = google.impersonate_service_account
        # Only transforms of other languages need it, and a killed process would leave it behind.
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
            Whether the pipeline ran; a dry run does not.

        Raises:
            UserError: The job failed; the sentence says why, or where to read more.
            RuntimeError: A worker failed; `imageshards.errors.user_error_in` finds its sentence.
            KeyboardInterrupt: On Ctrl-C, when the job has been cancelled.
        """
        pipeline.run().wait_until_finish()
        return True


class RemoteRunner(Runner):
    """Submits the job by Beam's own client for a job service, Flink or Dataflow, and waits.

    Progress and logs are on the runner's own pages. Two jobs that write one output are told
    apart by the commit, which publishes nothing for a job that lost the output.
    """

    local = False

    def __init__(self, options: beam_options.PipelineOptions, build: BuildOptions):
        super().__init__(options, build)
        google = options.view_as(beam_options.GoogleCloudOptions)
        google.job_name = google.job_name or job_name(build.output)

    def run(self, pipeline: beam.Pipeline) -> bool:
        """Runs a job to its end; see `Runner.run`."""
        if names_flags():
            pipeline.visit(_NamesFlags())
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
            except Exception as e:  # noqa: BLE001  # the client is ending anyway, and says why
                print(
                    f"the job {name} may still run ({_error_text(e)}); it publishes nothing once "
                    "another build of this output has begun",
                    file=sys.stderr,
                )
            raise

    def _failure(self, e: Exception) -> UserError:
        """Returns the sentence for a job that failed or could not be submitted."""
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


class _NamesFlags(PipelineVisitor):
    """Lets each worker name flags in its errors, which reach the client as text.

    The steps of the pipeline carry this to the workers: Beam's worker pool passes no flag on.
    """

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        step = getattr(transform_node.transform, "fn", None)
        if isinstance(step, beam.DoFn | beam.CombineFn):
            vars(step)["names_flags"] = self

    enter_composite_transform = visit_transform

    def __reduce__(self) -> Any:
        return _name_flags, ()


_naming = contextlib.ExitStack()


def _name_flags() -> None:
    """Runs when a worker unpickles a step; the worker names flags until it ends."""
    if not names_flags():
        _naming.enter_context(naming_flags())


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """Keeps the client's log, which repeats the tracebacks of workers, off the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def _error_text(e: BaseException) -> str:
    """Returns what an error says; for a failed call, the words of the server."""
    if isinstance(e, grpc.RpcError) and callable(getattr(e, "details", None)):
        return str(e.details() or e.code())
    return str(e) or type(e).__name__


def job_name(output: str) -> str:
    """Returns the name of a build's job: readable, and the same for the same output only.

    Dataflow refuses a second active job of one name, and so of one output.
    """
    place = os.path.realpath(output) if storage.is_local(output) else output.rstrip("/")
    words = re.sub(r"[^a-z0-9]+", "-", place.rpartition("/")[2].lower())
    digest = hashlib.sha256(place.encode()).hexdigest()[:8]
    return f"imageshards-{words[:30].strip('-') or 'build'}-{digest}"
