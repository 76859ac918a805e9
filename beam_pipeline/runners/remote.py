"""A runner on other machines: a job is checked, submitted by Beam, waited for, or cancelled.

Progress, logs and jobs whose client is gone are on the runner's own pages: Flink's dashboard,
Dataflow's console, the log of a job service.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
    TestOptions,
)
from apache_beam.runners.runner import PipelineState

from beam_pipeline.runners import preflight
from beam_pipeline.runners.runner import Build, Runner, job_name
from imageshards import storage
from imageshards.errors import UserError, last_line, user_error_in

FAILURE_NAME = "failure.txt"
CANCEL_TIMEOUT_SEC = 40.0
_POLL_SEC = 0.25
_LOG_LINES = 500
# Threads of Beam's client, and of workers inside this process, that hold a connection.
_CONNECTED = ("wait_until_finish_read", "read_grpc_client_inputs", "run_worker")


class RemoteRunner(Runner):
    """A job service that runs the pipeline; also the base of Flink's and Dataflow's.

    The job is named after the output, so that a second one for the same output is noticed.
    """

    local = False

    def __init__(self, options: PipelineOptions, build: Build):
        # By its name: Beam takes the runner out of the options when it submits a job.
        super().__init__(options, build, options.view_as(StandardOptions).runner)
        google = options.view_as(GoogleCloudOptions)
        if build.output and not google.job_name:
            google.job_name = job_name(build.output)

    def check(self) -> None:
        """Checks that job service and worker pool answer, and that no other job writes here."""
        preflight.check_servers(self.options)
        preflight.refuse_second(self.options, self.build.output)

    def run(self, pipeline: beam.Pipeline) -> bool:
        """Runs a job to its end; see `Runner.run`."""
        with _log() as lines:
            try:
                result = pipeline.run()
                dry_run = self.options.view_as(TestOptions).dry_run
                if result is None or dry_run or not getattr(result, "has_job", True):  # a template
                    return False
                self._wait(result)
            except Exception as e:
                if known := self.explain(e):
                    raise known from e
                if not isinstance(e, (RuntimeError, grpc.RpcError)) or user_error_in(e):
                    raise
                raise _failure(e, self.build.staging, lines) from e
        return True

    def explain(self, e: Exception) -> UserError | None:
        """The sentence for an error of this runner's client; None for other errors."""
        return None

    def cancel(self, result: Any) -> None:
        """Cancels a job and waits until it has ended, or for `CANCEL_TIMEOUT_SEC`.

        Raises:
            Exception: What Beam's client raises where its service is gone.
        """
        result.cancel()
        deadline = time.monotonic() + CANCEL_TIMEOUT_SEC
        while not PipelineState.is_terminal(result.state):
            if time.monotonic() > deadline:
                raise TimeoutError(f"it did not end within {CANCEL_TIMEOUT_SEC:.0f} s")
            time.sleep(_POLL_SEC)

    def _wait(self, result: Any) -> None:
        name = self.options.view_as(GoogleCloudOptions).job_name
        print(f"the job {name} was submitted; Ctrl-C cancels it", file=sys.stderr)
        try:
            result.wait_until_finish()
        except KeyboardInterrupt:
            print("cancelling the job ...", file=sys.stderr)
            try:
                self.cancel(result)
            except Exception as e:  # noqa: BLE001  # whatever it is, the job may still write
                said = error_text(e)
                print(f"the job {name} may still write to the output: {said}", file=sys.stderr)
            raise


def error_text(e: BaseException) -> str:
    """What an error says, a call's included."""
    if isinstance(e, grpc.RpcError) and callable(getattr(e, "details", None)):
        return str(e.details() or e.code())
    return str(e) or type(e).__name__


@contextlib.contextmanager
def _log() -> Iterator[deque[str]]:
    """Keeps what Beam logs, instead of showing tracebacks beside the one sentence."""
    lines: deque[str] = deque(maxlen=_LOG_LINES)

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.levelname} {record.name}: {record.getMessage()}")

    threading.excepthook = _hook
    root = logging.getLogger()
    before, root.handlers = root.handlers, [Keep(logging.INFO)]
    try:
        yield lines
    finally:
        root.handlers = before


def _hook(args: Any, show: Any = threading.excepthook) -> None:
    """Shows what ended a thread, but not that a thread of Beam's lost its job service.

    That is reported elsewhere, and at the end of a job it is no error; such a thread may notice
    late, so this is never undone.
    """
    name = "" if args.thread is None else args.thread.name
    if not (isinstance(args.exc_value, grpc.RpcError) and name.startswith(_CONNECTED)):
        show(args)


def _failure(e: BaseException, staging: str, lines: deque[str]) -> UserError:
    """The sentence for an unexpected failure; its log goes to a file."""
    path = storage.join(staging, FAILURE_NAME)
    text = error_text(e)
    with contextlib.suppress(OSError):
        storage.write(path, "\n".join([*lines, text]) + "\n")
    if isinstance(e, grpc.RpcError):
        return UserError(
            f"the job service does not answer any more ({last_line(text)}); start it "
            "again, then give the same command: finished shards are kept."
        )
    return UserError(
        f"the job failed ({last_line(text)}); its log is in {path}, more in the "
        "logs of the job service and its workers; finished shards are kept for the same "
        "command."
    )
