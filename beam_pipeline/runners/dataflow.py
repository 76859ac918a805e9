"""`--runner DataflowRunner`: checks before a job is submitted, and its errors as sentences.

On Dataflow a mistake costs minutes: machines start, images are pulled, then a traceback is logged
elsewhere. What can be checked without the service is checked here, within seconds; a second job of
the same name, and so for the same output, is refused by the service. Beam's own client makes a
bucket if none is given.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    S3Options,
    SetupOptions,
    StandardOptions,
    TestOptions,
    WorkerOptions,
)
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.runners.dataflow import dataflow_runner

from beam_pipeline.runners.flags import checkout_setup
from beam_pipeline.runners.runner import RemoteRunner
from imageshards import storage
from imageshards.errors import UserError, last_line, user_error_in

# Beside the setup.py of a checkout.
_REQUIREMENTS = "deploy/dataflow/requirements.txt"


class DataflowRunner(RemoteRunner):
    """Google Cloud Dataflow, which takes minutes to start a worker."""

    def check(self) -> None:
        """Checks flags, paths and buckets that Beam does not; see `Runner.check`."""
        check_flags(self.options)
        check_package(self.options)
        inputs = [("--input", source.input) for source in self.build.sources]
        for flag, path in [*inputs, ("--output", self.build.output)]:
            if storage.is_local(path):
                raise UserError(
                    f"{flag} {path!r} is on this machine, where no worker of Dataflow sees it; "
                    "expected gs://BUCKET/FOLDER: copy the data there (gcloud storage cp -r)."
                )
        if self.options.view_as(TestOptions).dry_run:
            return
        cloud = self.options.view_as(GoogleCloudOptions)
        for flag in ("temp_location", "staging_location"):
            folder = getattr(cloud, flag)
            if folder and not storage.is_local(folder):
                storage.check_bucket(folder, f"--{flag}")

    def new_pipeline(self, with_columns: bool = False) -> beam.Pipeline:
        """See `Runner.new_pipeline`; what Beam's own image lacks for columns is asked for."""
        setup = self.options.view_as(SetupOptions)
        checkout = checkout_setup()
        has_image = self.options.view_as(WorkerOptions).sdk_container_image
        if with_columns and checkout and not has_image and not setup.requirements_file:
            setup.requirements_file = os.path.join(os.path.dirname(checkout), _REQUIREMENTS)
            # Else this machine would fetch the sources of all of it, and stage them.
            setup.requirements_cache = "skip"
            print(
                f"--requirements_file={setup.requirements_file}: for extra columns every machine "
                "downloads TensorFlow, 0.7 GB, before its first image; --sdk_container_image "
                "saves that (docs/howto/dataflow.md)",
                file=sys.stderr,
            )
        return super().new_pipeline(with_columns)

    def _failure(self, e: Exception) -> UserError:
        """See `RemoteRunner._failure`."""
        if isinstance(e, dataflow_runner.DataflowRuntimeException):
            return _failed(e)
        return super()._failure(e)


def check_flags(options: PipelineOptions) -> None:
    """Raises `UserError` for what Beam does not validate; sends no request."""
    # Without a sound --temp_location Beam would make a bucket.
    validator = PipelineOptionsValidator(options, None)
    cloud = options.view_as(GoogleCloudOptions)
    if problems := validator.validate_gcs_path(cloud, "temp_location"):
        raise UserError(
            f"Beam refuses the flags for Dataflow: {' '.join(problems)} "
            "See docs/howto/dataflow.md for a whole command."
        )
    if options.view_as(StandardOptions).streaming:
        raise UserError("--streaming was given, but a build ends with its input; leave it out.")
    if options.view_as(S3Options).s3_secret_access_key:
        raise UserError(
            "--s3_secret_access_key was given, and Dataflow shows every flag to whoever may see "
            "the job; copy the input to gs://, or see docs/howto/dataflow.md."
        )


def check_package(options: PipelineOptions) -> None:
    """Raises `UserError` if no flag brings this package to the workers."""
    setup = options.view_as(SetupOptions)
    has_image = options.view_as(WorkerOptions).sdk_container_image
    if setup.setup_file:
        # Beam goes to its folder first, and knows no folder of a bare name.
        setup.setup_file = os.path.abspath(setup.setup_file)
    elif not (has_image or setup.extra_packages or setup.prebuild_sdk_container_engine):
        raise UserError(
            "workers would have no imageshards, which is installed here but not run from a "
            "checkout; expected --sdk_container_image with it inside (deploy/dataflow), or "
            "--extra_package imageshards-….whl."
        )


def _failed(e: Any) -> UserError:
    """Returns the sentence of the worker that ended a job, or one with the job's page."""
    result = e.result
    told = str(e)
    if told.endswith("Error:\nNone"):  # the job had ended before Beam's client read its messages
        messages, _ = result._runner.dataflow_client.list_messages(
            result.job_id(), minimum_importance="JOB_MESSAGE_ERROR"
        )
        texts = [str(message.message_text) for message in messages]
        told = next(iter([text for text in texts if "Traceback" in text][-1:] or texts[-1:]), "")
    if known := user_error_in(RuntimeError(told)):
        return known
    cloud = result._options.view_as(GoogleCloudOptions)
    url = (
        f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{result.job_id()}"
        f"?project={cloud.project}"
    )
    return UserError(
        f"the Dataflow job {result.job_id()} ended as {result.state} ({last_line(told)}); its logs "
        f"are at {url}; finished shards are kept for the same command."
    )
