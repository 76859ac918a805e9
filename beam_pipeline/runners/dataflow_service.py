"""The Dataflow service, asked with time-outs: which jobs of a name run, and to end them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any

import requests
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

from imageshards.errors import StorageError, UserError

API_TIMEOUT_SEC = (5.0, 15.0)  # to connect, to answer

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# How often, and how far apart, a job is looked for that may just be coming to be.
_LOOKS = 4
_BETWEEN_SEC = 1.0


def active_jobs(options: PipelineOptions) -> list[str]:
    """Ids of running jobs with the name of this one.

    Raises:
        UserError: The service does not answer, or refuses the project, the region or the
            credentials.
        StorageError: There are no credentials.
    """
    name = options.view_as(GoogleCloudOptions).job_name or ""
    asked = {"filter": "ACTIVE", "name": name, "pageSize": "100"}
    found = _ask(options, "GET", "", params=asked)
    return [str(job.get("id")) for job in found.get("jobs", ()) if job.get("name") == name]


def cancel_named(options: PipelineOptions) -> None:
    """Ends the job of this name, where its submission was interrupted and nobody has its id."""
    is_ours = "apache_beam.runners.dataflow.internal.apiclient" in sys.modules
    if not is_ours or not options.view_as(GoogleCloudOptions).job_name:
        return
    with contextlib.suppress(UserError):  # who interrupted it wants no other story
        for look in range(_LOOKS):
            for job_id in active_jobs(options):
                _ask(options, "PUT", f"/{job_id}", json={"requestedState": "JOB_STATE_CANCELLED"})
                return
            if look < _LOOKS - 1:
                time.sleep(_BETWEEN_SEC)


def first_line(text: object) -> str:
    """A message's first line, without its full stop."""
    return next(iter(str(text).strip().splitlines()), "").rstrip(". ")


def _ask(options: PipelineOptions, method: str, path: str, **given: Any) -> dict[str, Any]:
    import google.auth.exceptions

    cloud = options.view_as(GoogleCloudOptions)
    url = (
        f"{cloud.dataflow_endpoint.rstrip('/')}/v1b3/projects/{cloud.project}"
        f"/locations/{cloud.region}/jobs{path}"
    )
    try:
        reply = _session(options).request(method, url, timeout=API_TIMEOUT_SEC, **given)
    except google.auth.exceptions.GoogleAuthError as e:
        raise _no_credentials(f"those found are refused ({first_line(e)})") from e
    except (requests.RequestException, OSError) as e:
        raise UserError(
            f"the Dataflow service at {cloud.dataflow_endpoint} does not answer "
            f"({type(e).__name__}); expected it within {API_TIMEOUT_SEC[1]:.0f} s: fix the "
            "network, the proxy or --dataflow_endpoint."
        ) from e
    try:
        found = reply.json()
    except ValueError:  # a page of a proxy's, or nothing
        found = {}
    if not reply.ok:
        raise _refused(reply.status_code, found, cloud)
    return found if isinstance(found, dict) else {}


def _session(options: PipelineOptions) -> Any:
    """A session that signs its requests, without Beam's 20 s of looking for credentials."""
    if options.view_as(GoogleCloudOptions).no_auth:
        return requests.Session()
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        raise UserError(
            "the environment variable STORAGE_EMULATOR_HOST is set, so gs:// would be an emulator "
            "that no worker of Dataflow sees; unset it."
        )
    import google.auth.transport.requests
    from google.auth.credentials import AnonymousCredentials

    from imageshards.storage.gcs import find_credentials

    credentials = find_credentials(_SCOPES)
    if isinstance(credentials, AnonymousCredentials):
        raise _no_credentials("none were found")
    return google.auth.transport.requests.AuthorizedSession(credentials)


def _no_credentials(problem: str) -> StorageError:
    return StorageError(
        f"Dataflow needs credentials of Google Cloud on this machine, and {problem}; run `gcloud "
        "auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file."
    )


def _refused(status: int, found: Any, cloud: Any) -> UserError:
    said = found.get("error", {}) if isinstance(found, dict) else {}
    text = first_line(said.get("message", "")) or "no reason given"
    if status == 401:
        return _no_credentials(f"those found are refused ({text})")
    where = f"project {cloud.project!r}, region {cloud.region!r}"
    if "SERVICE_DISABLED" in str(said) or "has not been used" in text:
        remedy = f"gcloud services enable dataflow.googleapis.com --project {cloud.project}"
        return UserError(
            f"the Dataflow API is off in {where} ({text}); switch it on with: {remedy}"
        )
    remedy = {
        403: "give these credentials the role roles/dataflow.developer there, or use others",
        404: "fix --project or --region",
        400: "fix --project or --region",
    }.get(status, "try again later")
    return UserError(f"Dataflow refuses {where} ({status}: {text}); {remedy}.")
