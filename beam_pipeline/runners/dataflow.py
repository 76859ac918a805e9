"""What is checked before a job is given to Dataflow.

There a mistake costs minutes: machines start, images are pulled, then a traceback is logged
somewhere else. Whatever can be known before is one sentence here, within seconds. Beam's own
client would wait 20 s for credentials that are not there, and make a bucket if none is given.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import urllib.parse

from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    S3Options,
    SetupOptions,
    StandardOptions,
    TestOptions,
    WorkerOptions,
)

from beam_pipeline.runners import dataflow_service
from imageshards import storage
from imageshards.errors import UserError

_PROJECT = re.compile(r"[a-z][-a-z0-9:.]+[a-z0-9]")
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
_JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_FOLDER = re.compile(r"gs://[a-z0-9][-_.a-z0-9]+[a-z0-9]/.*")


def preflight(options: PipelineOptions, source_input: str = "", output: str = "") -> None:
    """Checks, before anything is submitted, what `--runner DataflowRunner` needs.

    Names the job after the output, so that Dataflow keeps a second one from writing there.

    Args:
        options: Beam's; `job_name` is filled in.
        source_input: The --input of the build.
        output: The --output of the build.

    Raises:
        UserError: A flag is missing or wrong, a path is on this machine only, there are no
            credentials, a bucket or the project cannot be used, or a job for this output runs.
    """
    check_flags(options)
    check_package(options)
    cloud = options.view_as(GoogleCloudOptions)
    if not is_stand_in(options):
        for flag, path in (("--input", source_input), ("--output", output)):
            _check_path(flag, path)
    if output and not cloud.job_name:
        cloud.job_name = job_name(output)
    if options.view_as(TestOptions).dry_run:
        return
    for flag in ("temp_location", "staging_location"):
        folder = getattr(cloud, flag)
        if folder and not storage.is_local(folder):
            storage.check_bucket(folder, f"--{flag}")
    _refuse_second(options)


def is_stand_in(options: PipelineOptions) -> bool:
    """Whether --dataflow_endpoint is on this machine, for tests: Beam reads it likewise."""
    endpoint = options.view_as(GoogleCloudOptions).dataflow_endpoint or ""
    return urllib.parse.urlsplit(endpoint).hostname == "localhost"


def job_name(output: str) -> str:
    """A name for the job that writes to `output`: the same for the same output."""
    words = re.sub(r"[^a-z0-9]+", "-", storage.name_of(output).lower()).strip("-")
    digest = hashlib.sha256(output.rstrip("/").encode()).hexdigest()[:8]
    return "-".join(filter(None, ("imageshards", words[:30].strip("-"), digest)))


def check_flags(options: PipelineOptions) -> None:
    """Raises `UserError` for a flag that is missing or cannot be right; asks nobody."""
    cloud = options.view_as(GoogleCloudOptions)
    endpoint = cloud.dataflow_endpoint or ""
    if (urllib.parse.urlsplit(endpoint).hostname or "") in ("127.0.0.1", "::1"):
        raise UserError(
            f"--dataflow_endpoint received {endpoint!r}, which Beam takes for a service of "
            "Google's; expected http://localhost:PORT for a stand-in on this machine."
        )
    _check_name(
        "project", cloud.project, _PROJECT, "the id of a project, for example my-project-123",
        "set it, or the environment variable GOOGLE_CLOUD_PROJECT",
    )  # fmt: skip
    _check_name(
        "region", cloud.region, _REGION, "a region (no zone), for example europe-west4",
        "take the one the buckets are in",
    )  # fmt: skip
    if not is_stand_in(options) or cloud.temp_location is None:
        _check_name(
            "temp_location", cloud.temp_location, _FOLDER, "gs://BUCKET/FOLDER",
            "name a folder in the same region; packages and the graph are put there",
        )  # fmt: skip
    if cloud.job_name:
        _check_name(
            "job_name", cloud.job_name, _JOB_NAME, "at most 63 of a-z, 0-9 and -",
            "fix it, or leave it out: it is then made from --output",
        )  # fmt: skip
    if options.view_as(StandardOptions).streaming:
        raise UserError(
            "--streaming was given, but a build ends when its input is used up; expected a batch "
            "job: leave the flag out."
        )
    if options.view_as(S3Options).s3_secret_access_key:
        raise UserError(
            "--s3_secret_access_key was given, and Dataflow shows every flag to whoever may see "
            "the job; expected credentials that the workers have by themselves: see "
            "deploy/dataflow/README.md, or copy the input to gs://."
        )


def _check_name(
    flag: str, value: str | None, pattern: re.Pattern[str], expected: str, remedy: str
) -> None:
    if value and pattern.fullmatch(value):
        return
    received = f"received {value!r}" if value else "is missing"
    raise UserError(f"--{flag} {received}; expected {expected}: {remedy}.")


def check_package(options: PipelineOptions) -> None:
    """Raises `UserError` unless workers get this package from somewhere."""
    setup = options.view_as(SetupOptions)
    path = setup.setup_file
    if path:
        if os.path.basename(path) not in ("setup.py", "pyproject.toml") or not os.path.isfile(path):
            raise UserError(
                f"--setup_file received {path!r}; expected the path of a file setup.py in a "
                "checkout of this project: fix it, or run from the checkout without the flag."
            )
        if importlib.util.find_spec("setuptools") is None:
            raise UserError(
                "setuptools is not installed here, and the package for the workers is built with "
                "it; expected setuptools and build: pip install setuptools build."
            )
        # Beam goes to its folder first, and knows no folder of a bare name.
        setup.setup_file = os.path.abspath(path)
        return
    has_image = options.view_as(WorkerOptions).sdk_container_image
    if not (has_image or setup.extra_packages or setup.prebuild_sdk_container_engine):
        raise UserError(
            "workers would have no imageshards, which is installed here but not run from a "
            "checkout; expected --sdk_container_image with it inside (deploy/dataflow), or "
            "--extra_package imageshards-….whl."
        )


def _check_path(flag: str, path: str) -> None:
    if path and storage.is_local(path):
        raise UserError(
            f"{flag} {path!r} is on this machine, where no worker of Dataflow sees it; expected "
            "gs://BUCKET/FOLDER: copy the data there (gcloud storage cp -r) and give that path."
        )


def _refuse_second(options: PipelineOptions) -> None:
    """Asks for jobs of this name, and by that whether project, region and rights are good."""
    cloud = options.view_as(GoogleCloudOptions)
    for job_id in dataflow_service.active_jobs(options):
        raise UserError(
            f"the Dataflow job {job_id} with the name {cloud.job_name!r} is running and would "
            "write to the same --output; wait for it, or end it with: gcloud dataflow jobs cancel "
            f"{job_id} --region {cloud.region} --project {cloud.project}"
        )
