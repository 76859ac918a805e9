"""Runs a build on Google Cloud Dataflow (`--runner DataflowRunner`).

On Dataflow a mistake costs minutes: machines start, images are pulled, then a traceback is logged
elsewhere. So this module checks flags and paths before a job is submitted, within seconds.
"""

from __future__ import annotations

import os

from apache_beam.options import pipeline_options as beam_options
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException

from beam_pipeline.option_texts import beam_flag, invalid
from beam_pipeline.options import BuildOptions
from beam_pipeline.runners.runner import RemoteRunner
from imageshards import storage
from imageshards.errors import UserError, last_line


class DataflowRunner(RemoteRunner):
    """Runner that submits the job to Google Cloud Dataflow."""

    def __init__(self, options: beam_options.PipelineOptions, build: BuildOptions):
        super().__init__(options, build)
        self._cloud = options.view_as(beam_options.GoogleCloudOptions)
        self._setup = options.view_as(beam_options.SetupOptions)
        self._image = options.view_as(beam_options.WorkerOptions).sdk_container_image

    def check(self) -> None:
        """Checks the flags, paths and buckets that Beam does not check; see `Runner.check`."""
        self._check_flags()
        inputs = [("input", source.input) for source in self.build.sources]
        for name, path in [*inputs, ("output", self.build.output)]:
            if storage.is_local(path):
                raise invalid(
                    name,
                    f"{path!r}, a path of this machine, which no worker of Dataflow sees",
                    "gs://BUCKET/FOLDER",
                    "copy the data there (gcloud storage cp -r)",
                )
        for flag in ("temp_location", "staging_location"):
            folder = getattr(self._cloud, flag)
            if folder and not storage.is_local(folder):
                storage.check_bucket(folder, flag)

    def _check_flags(self) -> None:
        # Without a valid --temp_location Beam would make a bucket.
        validator = PipelineOptionsValidator(self.options, None)
        if problems := validator.validate_gcs_path(self._cloud, "temp_location"):
            raise UserError(
                f"Beam refuses the flags for Dataflow ({' '.join(problems).rstrip('.')})",
                remedy="see docs/guides/clusters.md for a whole command",
            )
        if self.options.view_as(beam_options.StandardOptions).streaming:
            raise invalid(
                beam_flag("streaming"),
                "True, but a build ends with its input",
                remedy="leave it out",
            )
        if self.options.view_as(beam_options.S3Options).s3_secret_access_key:
            raise invalid(
                beam_flag("s3_secret_access_key"),
                "a secret, and Dataflow shows every flag to whoever may see the job",
                remedy="copy the input to gs://, or see docs/guides/clusters.md",
            )
        setup = self._setup
        if setup.setup_file:
            # Beam changes to the folder of this file, and a bare name has no folder.
            setup.setup_file = os.path.abspath(setup.setup_file)
        elif not (self._image or setup.extra_packages or setup.prebuild_sdk_container_engine):
            raise UserError(
                "workers would have no imageshards, which is installed here but not run from a "
                "checkout",
                expected=beam_flag("sdk_container_image")
                + " with imageshards inside (deploy/dataflow), or "
                + beam_flag("extra_package")
                + " imageshards-….whl",
            )

    def _failure(self, e: Exception) -> UserError:
        if not isinstance(e, DataflowRuntimeException):
            return super()._failure(e)
        job, cloud = e.result, self._cloud
        return UserError(
            f"the Dataflow job {job.job_id()} ended as {job.state} ({last_line(str(e))})",
            remedy="its logs are at https://console.cloud.google.com/dataflow/jobs/"
            f"{cloud.region}/{job.job_id()}?project={cloud.project}; finished shards are kept for "
            "the same command",
        )
