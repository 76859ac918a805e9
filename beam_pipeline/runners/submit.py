"""A runner on other machines: jobs are checked, submitted, watched to their end, or cancelled."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
    TestOptions,
)

from beam_pipeline.progress import PLANNING
from beam_pipeline.runners import jobs, preflight, worker_check
from beam_pipeline.runners.jobs import RemoteJob, RemoteProgress
from beam_pipeline.runners.runner import Runner, lost_a_worker
from imageshards import storage
from imageshards.errors import UserError, last_line, user_error_in
from imageshards.progress import ProgressLine

FAILURE_NAME = "failure.txt"
CANCEL_TIMEOUT_SEC = 40.0
# A job is given up when its job service has not answered for this long.
SILENCE_SEC = 60.0
_POLL_SEC = 0.25
_ASK_SEC = 5.0
_LOG_LINES = 500
# Threads of Beam's client, and of workers inside this process, that hold a connection.
_CONNECTED = ("wait_until_finish_read", "read_grpc_client_inputs", "run_worker")


class RemoteRunner(Runner):
    """A job service that runs the pipeline; also the base of Flink's and Dataflow's."""

    local = False

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Checks job service and worker pool and, by a small job, a worker."""
        preflight.check_servers(self.options)
        worker_check.check_by_worker(self.build, self.new_pipeline(), self.run_small)
        yield

    def run(self, pipeline: beam.Pipeline) -> bool:
        """Runs a job to its end and shows its progress; see `Runner.run`."""
        # Where a worker was lost, its pool may be too: Prism ends when it asks one that is gone.
        preflight.check_servers(self.options)
        staging = self.build.staging
        with _log() as lines:
            try:
                running = self._submit(pipeline)
                if running is None:
                    return False
                progress = RemoteProgress(staging, running.counters)
                with ProgressLine(progress.line, PLANNING) as line:
                    running.wait(line.say, staging=staging)
            except Exception as e:
                if known := self.explain(e):
                    raise known from e
                if not isinstance(e, (RuntimeError, grpc.RpcError)):
                    raise
                if lost_a_worker(e) or user_error_in(e):
                    raise
                raise _failure(e, staging, lines) from e
        return True

    def run_small(self, pipeline: beam.Pipeline, timeout_sec: float) -> None:
        """Runs a small job to its end.

        Raises:
            UserError: What a worker said.
            RuntimeError: It failed otherwise.
            TimeoutError: It did not end in time; it was cancelled.
        """
        with _log():
            try:
                running = self._submit(pipeline)
                if running is not None:
                    running.wait(lambda sentence: None, timeout_sec)
            except grpc.RpcError as e:
                raise RuntimeError(jobs.error_text(e)) from e
            except RuntimeError as e:
                if known := user_error_in(e):
                    raise known from e
                raise

    def explain(self, e: Exception) -> UserError | None:
        """The sentence for an error of this runner's client; None for other errors."""
        return None

    def cancel_named(self, options: PipelineOptions) -> None:
        """Cancels a job whose submission was interrupted, so that its id is not known."""
        endpoint = options.view_as(PortableOptions).job_endpoint
        if endpoint and endpoint != "embed":
            with contextlib.suppress(grpc.RpcError):
                jobs.cancel_named(endpoint, options.view_as(GoogleCloudOptions).job_name)

    def _submit(self, pipeline: beam.Pipeline) -> Running | None:
        """Submits a job; None for a dry run."""
        options = pipeline.options  # a copy of the runner's: what is set there reaches no job
        wanted = options.view_as(StandardOptions).runner
        google = options.view_as(GoogleCloudOptions)
        given = google.job_name
        google.job_name = given or f"imageshards-{uuid.uuid4().hex[:12]}"
        try:
            result = pipeline.run()
            dry_run = options.view_as(TestOptions).dry_run
            if result is None or dry_run or not getattr(result, "has_job", True):  # a template
                return None
            job = _job_of(result, options, str(google.job_name))
            return Running(result, job, preflight.pool_here(options))
        except KeyboardInterrupt:
            self.cancel_named(options)
            raise
        finally:
            # Beam takes the runner out of the options it was given, so that Java sees none.
            options.view_as(StandardOptions).runner = wanted
            google.job_name = given


def _job_of(result: Any, options: PipelineOptions, name: str) -> RemoteJob | None:
    endpoint = options.view_as(PortableOptions).job_endpoint
    job_id = getattr(result, "_job_id", None)
    if not endpoint or endpoint == "embed" or not isinstance(job_id, str):
        return None
    return RemoteJob(endpoint, job_id, name)


class Running:
    """A submitted job.

    Args:
        result: Beam's.
        job: The job at its job service, if that can be asked.
        pool: host:port of the worker pool, if that can be asked.
    """

    def __init__(self, result: Any, job: RemoteJob | None, pool: str):
        self.job = job
        self._pool = pool
        self._result = result
        self._error: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def wait(
        self,
        say: Callable[[str], None],
        timeout_sec: float | None = None,
        staging: str = "",
    ) -> None:
        """Returns when the job is done; a job that is not waited for any more is cancelled.

        Args:
            say: Told what happens when it is cancelled.
            timeout_sec: Not waited for longer than this.
            staging: Folder where the job is noted for later runs.

        Raises:
            Exception: What the runner raised for a job that failed.
        """
        started = asked = self._heard = time.monotonic()
        try:
            if staging and self.job is not None:
                jobs.note(staging, self.job)
            while not self._ended.wait(_POLL_SEC):
                now = time.monotonic()
                if timeout_sec is not None and now - started > timeout_sec:
                    raise TimeoutError
                if now - asked > _ASK_SEC:
                    asked = now
                    self._check_servers(now)
        except BaseException:
            if not self._cancel(say):
                raise
        if self._error is not None:
            raise self._error

    def counters(self) -> dict[tuple[str, str], int]:
        """(namespace, name) → value so far; empty where the runner gives none."""
        try:
            return jobs.counters(self.job) if self.job is not None else {}
        except grpc.RpcError:
            return {}

    def _follow(self) -> None:
        try:
            self._result.wait_until_finish()
        except BaseException as e:  # noqa: BLE001  # raised again by `wait`
            self._error = e
        finally:
            self._ended.set()

    def _check_servers(self, now: float) -> None:
        """Raises `UserError` when what the job needs is gone, which Beam's client may not see."""
        if self._pool and all(preflight.connection_error(self._pool) for _ in range(2)):
            raise UserError(
                f"the worker pool at {self._pool} is gone; start it again (make worker-pool), then "
                "give the same command: finished shards are kept."
            )
        if self.job is None:
            return
        with contextlib.suppress(grpc.RpcError):
            if jobs.state_of(self.job) is not None:
                self._heard = now
        if now - self._heard > SILENCE_SEC:
            raise UserError(
                f"the job service at {self.job.endpoint} has not answered for {SILENCE_SEC:.0f} s; "
                "start it again, then give the same command: finished shards are kept."
            )

    def _cancel(self, say: Callable[[str], None]) -> bool:
        """Cancels the job and waits; returns whether it had succeeded before."""
        say("cancelling the job ...")
        thread = threading.Thread(target=self._ask_to_cancel, daemon=True)
        thread.start()
        if not self._ended.wait(CANCEL_TIMEOUT_SEC):
            where = f" {self.job.job_id} at {self.job.endpoint}" if self.job else ""
            say(f"the job{where} did not end within {CANCEL_TIMEOUT_SEC:.0f} s; it may still write")
        return self._ended.is_set() and self._error is None

    def _ask_to_cancel(self) -> None:
        with contextlib.suppress(Exception):  # the caller looks at what became of the job
            self._result.cancel()


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


def _hook(args: Any, show: Callable[[Any], Any] = threading.excepthook) -> None:
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
    text = jobs.error_text(e)
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
