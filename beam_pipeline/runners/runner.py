"""What a runner does for a build, and the local one."""

from __future__ import annotations

import hashlib
import os
import re

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineRunner

from beam_pipeline.options import BuildOptions
from imageshards import storage


class Runner:
    """Runs the pipelines of one build on this machine; subclasses run them elsewhere.

    Where there is no runner of Beam's given, Beam finds it by its options.
    """

    local = True

    def __init__(
        self,
        options: PipelineOptions,
        build: BuildOptions,
        beam_runner: PipelineRunner | None = None,
    ):
        self.options = options
        self.build = build
        self._beam_runner = beam_runner

    def new_pipeline(self, with_columns: bool = False) -> beam.Pipeline:
        """An empty pipeline for `run`; its workers may need tensorflow-transform for columns."""
        pipeline = beam.Pipeline(self._beam_runner, options=self.options)
        # Only transforms of other languages need it, and a killed process would leave it behind.
        os.rmdir(pipeline.local_tempdir)
        return pipeline

    def check(self) -> None:
        """Checks what a job needs before it is submitted.

        Raises:
            UserError: Something is missing, or a job for the same output still runs.
        """

    def run(self, pipeline: beam.Pipeline) -> bool:
        """Runs a pipeline to its end.

        Returns:
            Whether it ran; a dry run does not.

        Raises:
            UserError: The job failed; says why, or where to read more.
            RuntimeError: A worker failed; `imageshards.errors.user_error_in` finds its sentence.
            KeyboardInterrupt: On Ctrl-C, when the job has been cancelled.
        """
        pipeline.run().wait_until_finish()
        return True


def job_name(output: str) -> str:
    """The name of a build's job: readable, and the same for the same output only."""
    place = os.path.realpath(output) if storage.is_local(output) else output.rstrip("/")
    words = re.sub(r"[^a-z0-9]+", "-", place.rpartition("/")[2].lower())
    digest = hashlib.sha256(place.encode()).hexdigest()[:8]
    return f"imageshards-{words[:30].strip('-') or 'build'}-{digest}"
