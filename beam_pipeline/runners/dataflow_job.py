"""What Dataflow says of a job, and of one that it does not take."""

from __future__ import annotations

import sys
from typing import Any

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, TestOptions

from beam_pipeline.runners.dataflow_service import first_line
from imageshards.errors import UserError, user_error_in


def nothing_submitted(options: PipelineOptions) -> str | None:
    """What to say where Beam is told not to submit: then there is no job, and no data set."""
    if options.view_as(TestOptions).dry_run:
        return "dry run: flags, package and graph are good for Dataflow; nothing was submitted"
    template = options.view_as(GoogleCloudOptions).template_location
    if template:
        return f"the job's description is in {template}; nothing was submitted"
    return None


def explained(error: BaseException) -> UserError | None:
    """What Dataflow's client raised, as one sentence; None if it is something else."""
    if "apache_beam.runners.dataflow.internal.apiclient" not in sys.modules:
        return None
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException
    from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError
    from google.api_core.exceptions import GoogleAPICallError

    if isinstance(error, DataflowRuntimeException):
        return _failed(error)
    if isinstance(error, DataflowJobAlreadyExistsError):
        return UserError(f"Dataflow refuses the job ({first_line(error)}); wait for the other.")
    if isinstance(error, GoogleAPICallError):
        return UserError(
            f"Dataflow refuses the job ({error.code}: {first_line(error.message)}); fix the flag "
            "it names, or the rights of these credentials; nothing was submitted."
        )
    if isinstance(error, OSError) and "Could not upload to GCS path" in str(error):
        return UserError(f"{first_line(error)}; give these credentials the right to write there.")
    if isinstance(error, RuntimeError) and "'sdist'" in str(error):
        return UserError(
            "the package for the workers could not be built from --setup_file "
            f"({_end(str(error))}); expected python -m build --sdist to work there."
        )
    return None


def _failed(error: Any) -> UserError:
    result = error.result
    told = str(error)
    if told.endswith("Error:\nNone"):  # it had ended before Beam's client looked for messages
        told = _messages(result)
    if known := user_error_in(RuntimeError(told)):
        return known
    return UserError(
        f"the Dataflow job {result.job_id()} ended as {result.state} ({_end(told)}); the whole "
        f"story is at {console_url(result, result._options)}; finished shards are kept for the "
        "same command."
    )


def _messages(result: Any) -> str:
    """What the error messages of a job say: the one with a traceback, else the last."""
    client = result._runner.dataflow_client
    messages, _ = client.list_messages(result.job_id(), minimum_importance="JOB_MESSAGE_ERROR")
    texts = [str(message.message_text) for message in messages]
    told = [text for text in texts if "Traceback" in text] or texts
    return told[-1] if told else ""


def _end(text: str) -> str:
    """The last line; of a traceback it says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300].rstrip(".") if lines else "no reason given"


def console_url(result: Any, options: PipelineOptions) -> str:
    """The page of a submitted job."""
    cloud = options.view_as(GoogleCloudOptions)
    return (
        f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{result.job_id()}"
        f"?project={cloud.project}"
    )
