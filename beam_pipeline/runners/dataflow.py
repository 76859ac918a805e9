"""`--runner DataflowRunner`: checks before a job is submitted, and its errors as sentences.

On Dataflow a mistake costs minutes: machines start, images are pulled, then a traceback is logged
elsewhere. What can be checked is checked here, within seconds. Beam's own client waits 20 s for
credentials that are not there, and makes a bucket if none is given.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
import google.auth.exceptions
import requests
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    S3Options,
    SetupOptions,
    StandardOptions,
    TestOptions,
    WorkerOptions,
)
from google.api_core.exceptions import GoogleAPICallError
from google.auth.credentials import AnonymousCredentials

from beam_pipeline.beam_files import store_settings
from beam_pipeline.runners.flags import checkout_setup
from beam_pipeline.runners.remote import RemoteRunner
from imageshards import storage
from imageshards.errors import StorageError, UserError, last_line, user_error_in

API_TIMEOUT_SEC = 15.0

# Flag → what it must match, and what was expected. Beam's own checks leave out the region, and
# everything where the service is on this machine.
_EXPECTED = {
    "project": (
        r"[a-z][-a-z0-9:.]+[a-z0-9]",
        "the id of a project, for example my-project-123: set it, or the environment variable "
        "GOOGLE_CLOUD_PROJECT",
    ),
    "region": (
        r"[a-z]+-[a-z]+\d+",
        "a region (no zone), for example europe-west4: take the one the buckets are in",
    ),
    "temp_location": (
        r"gs://[a-z0-9][-_.a-z0-9]+[a-z0-9]/.*",
        "gs://BUCKET/FOLDER: name a folder in the same region for packages and the graph",
    ),
    "job_name": (
        r"([a-z]([-a-z0-9]{0,61}[a-z0-9])?)?",
        "at most 63 of a-z, 0-9 and -: fix it, or leave it out: it is then made from --output",
    ),
}
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# Beside the setup.py of a checkout.
_REQUIREMENTS = "deploy/dataflow/requirements.txt"
_CLIENT = "apache_beam.runners.dataflow.internal.apiclient"


class DataflowRunner(RemoteRunner):
    """Google Cloud Dataflow, which takes minutes to start a worker."""

    def check(self) -> None:
        """Checks flags, paths, credentials, buckets and the project; see `Runner.check`."""
        preflight(self.options, self.build.inputs, self.build.output)

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

    def run(self, pipeline: beam.Pipeline) -> bool:
        """See `Runner.run`; a job that was sent when Ctrl-C came has an id nobody knows here."""
        try:
            return super().run(pipeline)
        except KeyboardInterrupt:
            cloud = self.options.view_as(GoogleCloudOptions)
            with contextlib.suppress(UserError), _api_client(self.options) as client:
                for job_id in _active_jobs(client, cloud):
                    asked = {"requested_state": "JOB_STATE_CANCELLED"}
                    where = {"project_id": cloud.project, "location": cloud.region}
                    client.update_job({**where, "job_id": job_id, "job": asked})
            raise

    def dry_run_message(self) -> str:
        """What to say where Beam is told not to submit: then there is no job, and no data set."""
        if self.options.view_as(TestOptions).dry_run:
            return "dry run: flags, package and graph are good for Dataflow; nothing was submitted"
        template = self.options.view_as(GoogleCloudOptions).template_location
        return f"the job's description is in {template}; nothing was submitted"

    def explain(self, e: Exception) -> UserError | None:
        """The sentence for an error of Dataflow's client; None for other errors."""
        return explain(e)


def preflight(options: PipelineOptions, inputs: Sequence[str] = (), output: str = "") -> None:
    """Checks, before anything is submitted, what `--runner DataflowRunner` needs.

    Args:
        options: Beam's.
        inputs: Every --input of the build.
        output: The --output of the build.

    Raises:
        UserError: A flag is missing or wrong, a path is on this machine only, there are no
            credentials, a bucket or the project cannot be used, or a job for this output runs.
    """
    check_flags(options)
    check_package(options)
    cloud = options.view_as(GoogleCloudOptions)
    if not is_stand_in(options):
        for flag, path in [*(("--input", path) for path in inputs), ("--output", output)]:
            if path and storage.is_local(path):
                raise UserError(
                    f"{flag} {path!r} is on this machine, where no worker of Dataflow sees it; "
                    "expected gs://BUCKET/FOLDER: copy the data there (gcloud storage cp -r) and "
                    "give that path."
                )
    if options.view_as(TestOptions).dry_run:
        return
    for flag in ("temp_location", "staging_location"):
        folder = getattr(cloud, flag)
        if folder and not storage.is_local(folder):
            storage.check_bucket(folder, f"--{flag}")
    # Asks for jobs of this name, and by that whether project, region and rights are good.
    with _api_client(options) as client:
        for job_id in _active_jobs(client, cloud):
            raise UserError(
                f"the Dataflow job {job_id} with the name {cloud.job_name!r} is running and would "
                "write to the same --output; wait for it, or end it with: gcloud dataflow jobs "
                f"cancel {job_id} --region {cloud.region} --project {cloud.project}"
            )


def is_stand_in(options: PipelineOptions) -> bool:
    """Whether --dataflow_endpoint is on this machine, for tests: Beam reads it likewise."""
    endpoint = options.view_as(GoogleCloudOptions).dataflow_endpoint or ""
    return urllib.parse.urlsplit(endpoint).hostname == "localhost"


def check_flags(options: PipelineOptions) -> None:
    """Raises `UserError` for a flag that is missing or cannot be right; sends no request."""
    cloud = options.view_as(GoogleCloudOptions)
    for flag, (pattern, expected) in _EXPECTED.items():
        value = getattr(cloud, flag)
        may_be_anything = flag == "temp_location" and value is not None and is_stand_in(options)
        if may_be_anything or re.fullmatch(pattern, value or ""):
            continue
        received = f"received {value!r}" if value else "is missing"
        raise UserError(f"--{flag} {received}; expected {expected}.")
    if options.view_as(StandardOptions).streaming:
        raise UserError(
            "--streaming was given, but a build ends when its input is used up; expected a batch "
            "job: leave the flag out."
        )
    if options.view_as(S3Options).s3_secret_access_key:
        raise UserError(
            "--s3_secret_access_key was given, and Dataflow shows every flag to whoever may see "
            "the job; expected credentials that the workers have by themselves: see "
            "docs/howto/dataflow.md, or copy the input to gs://."
        )


def check_package(options: PipelineOptions) -> None:
    """Raises `UserError` if no flag brings this package to the workers."""
    setup = options.view_as(SetupOptions)
    path = setup.setup_file
    if path:
        if os.path.basename(path) not in ("setup.py", "pyproject.toml") or not os.path.isfile(path):
            raise UserError(
                f"--setup_file received {path!r}; expected the path of a file setup.py in a "
                "checkout of this project: fix it, or run from the checkout without the flag."
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


@contextlib.contextmanager
def _api_client(options: PipelineOptions) -> Iterator[Any]:
    """A client of the service whose errors are sentences.

    Beam's own looks for credentials for 20 s, and for a job's name through all jobs there ever
    were, the first page again and again if none has it.
    """
    from google.cloud import dataflow

    cloud = options.view_as(GoogleCloudOptions)
    try:
        yield dataflow.JobsV1Beta3Client(
            credentials=AnonymousCredentials() if cloud.no_auth else _credentials(),
            client_options={"api_endpoint": cloud.dataflow_endpoint.rstrip("/")},
            transport="rest",
        )
    except google.auth.exceptions.GoogleAuthError as e:
        raise _no_credentials(f"those found are refused ({_first_line(e)})") from e
    except GoogleAPICallError as e:
        raise _refused(e, cloud) from e
    except (requests.RequestException, OSError) as e:
        raise UserError(
            f"the Dataflow service at {cloud.dataflow_endpoint} does not answer "
            f"({type(e).__name__}); expected it within {API_TIMEOUT_SEC:.0f} s: fix the "
            "network, the proxy or --dataflow_endpoint."
        ) from e


def _active_jobs(client: Any, cloud: Any) -> list[str]:
    """Ids of running jobs with the name of this one."""
    request = {
        "project_id": cloud.project, "location": cloud.region, "name": cloud.job_name or "",
        "filter": "ACTIVE",
    }  # fmt: skip
    found = client.list_jobs(request, timeout=API_TIMEOUT_SEC)
    return [str(job.id) for job in found if job.name == cloud.job_name]


def _credentials() -> Any:
    from imageshards.storage.gcs import find_credentials

    if os.environ.get("STORAGE_EMULATOR_HOST"):
        raise UserError(
            "the environment variable STORAGE_EMULATOR_HOST is set, so gs:// would be an emulator "
            "that no worker of Dataflow sees; unset it."
        )
    credentials = find_credentials(store_settings("gs"), _SCOPES)
    if isinstance(credentials, AnonymousCredentials):
        raise _no_credentials("none were found")
    return credentials


def _no_credentials(problem: str) -> StorageError:
    return StorageError(
        f"Dataflow needs credentials of Google Cloud on this machine, and {problem}; run `gcloud "
        "auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file."
    )


def _refused(e: GoogleAPICallError, cloud: Any) -> UserError:
    text = _message_of(e)
    if e.code == 401:
        return _no_credentials(f"those found are refused ({text})")
    remedy = {
        403: "give these credentials the role roles/dataflow.developer there, or use others",
        404: "fix --project or --region",
        400: "fix --project or --region",
    }.get(int(e.code or 0), "try again later")
    if e.reason == "SERVICE_DISABLED" or "has not been used" in text:
        enable = "gcloud services enable dataflow.googleapis.com"
        remedy = f"switch the API on with: {enable} --project {cloud.project}"
    return UserError(
        f"Dataflow refuses project {cloud.project!r}, region {cloud.region!r} ({e.code:d}: "
        f"{text}); {remedy}."
    )


def explain(e: Exception) -> UserError | None:
    """The sentence for an error of Dataflow's client; None for other errors."""
    if _CLIENT not in sys.modules:
        return None
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException
    from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError

    if isinstance(e, DataflowRuntimeException):
        return _failed(e)
    if isinstance(e, DataflowJobAlreadyExistsError):
        return UserError(f"Dataflow refuses the job ({_first_line(e)}); wait for the other.")
    if isinstance(e, GoogleAPICallError):
        return UserError(
            f"Dataflow refuses the job ({e.code:d}: {_message_of(e)}); fix the flag it names, or "
            "the rights of these credentials; nothing was submitted."
        )
    if isinstance(e, OSError) and "Could not upload to GCS path" in str(e):
        return UserError(f"{_first_line(e)}; give these credentials the right to write there.")
    if isinstance(e, RuntimeError) and "'sdist'" in str(e):
        return UserError(
            "the package for the workers could not be built from --setup_file "
            f"({last_line(str(e))}); expected python -m build --sdist to work there: pip install "
            "setuptools build."
        )
    return None


def _failed(e: Any) -> UserError:
    result = e.result
    told = str(e)
    if told.endswith("Error:\nNone"):  # it had ended before Beam's client looked for messages
        client = result._runner.dataflow_client
        messages, _ = client.list_messages(result.job_id(), minimum_importance="JOB_MESSAGE_ERROR")
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


def _message_of(e: GoogleAPICallError) -> str:
    """The service's message, without the request that its client puts before it."""
    return _first_line(re.sub(r"^[A-Z]+ \S+: ", "", str(e.message))) or "no reason given"


def _first_line(text: object) -> str:
    return next(iter(str(text).strip().splitlines()), "").rstrip(". ")
