"""Runs a build on this machine, or submits the build to a cluster by one of Beam's own clients."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import apache_beam as beam
import grpc
from apache_beam.options import pipeline_options as beam_options
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers
from apache_beam.runners.runner import PipelineRunner, PipelineState

from beam_pipeline.option_texts import beam_flag, invalid
from beam_pipeline.options import BuildOptions
from beam_pipeline.runners.flags import LOCAL_RUNNERS, missing_defaults, runner_name
from imageshards import storage
from imageshards.commands.command_line import Parser, did_you_mean, nearest_flags
from imageshards.errors import Arg, UserError, install_advice, last_line, user_error_in

# How long the client waits for a cancelled job to end.
CANCEL_TIMEOUT_SEC = 40.0
_POLL_SEC = 0.25


@dataclasses.dataclass
class Runner:
    """Runner of the pipelines of one build on this machine; subclasses run them elsewhere.

    Beam chooses its own runner by `options` if `beam_runner` is None.
    """

    options: beam_options.PipelineOptions
    build: BuildOptions
    beam_runner: PipelineRunner | None = None

    local = True

    def new_pipeline(self) -> beam.Pipeline:
        """Returns an empty pipeline."""
        try:
            pipeline = beam.Pipeline(self.beam_runner, options=self.options)
        # Beam looks for the runner and validates the options here.
        except (AttributeError, ImportError, ValueError) as e:
            problems = " ".join(str(e).splitlines()[1:]) or str(e)
            raise UserError(
                f"Beam refuses its flags ({problems.rstrip('.')})", remedy="fix or add the flag"
            ) from e
        if self.local:
            # Beam's copy of the options omits this one, which workers of a cluster must not use.
            google, copied = (
                options.view_as(beam_options.GoogleCloudOptions)
                for options in (self.options, pipeline.options)
            )
            copied.impersonate_service_account = google.impersonate_service_account
        # Only transforms in other languages use this folder, and a killed process would leave it.
        os.rmdir(pipeline.local_tempdir)
        return pipeline

    def check(self) -> None:
        """Raises `UserError`, before anything is written, for a flag that cannot be right."""

    def run(self, pipeline: beam.Pipeline) -> None:
        """Runs a pipeline to its end.

        Raises `UserError` with the reason or the place of the logs if the job failed, and
        `RuntimeError` if a worker failed: `imageshards.errors.user_error_in` finds its sentence. On
        Ctrl-C, `KeyboardInterrupt` comes when the job has been cancelled.
        """
        # Each side input is read once, and measuring its size for the cache takes longer than that.
        before = worker_handlers.STATE_CACHE_SIZE_MB
        worker_handlers.STATE_CACHE_SIZE_MB = 0
        try:
            pipeline.run().wait_until_finish()
        finally:
            worker_handlers.STATE_CACHE_SIZE_MB = before


class RemoteRunner(Runner):
    """Runner that submits the job to a job service, Flink or Dataflow, and waits for its end.

    Progress and logs are on the runner's own pages. Two jobs may write to one output: the commit
    publishes nothing for the job that lost the output.
    """

    local = False

    def __init__(self, options: beam_options.PipelineOptions, build: BuildOptions):
        super().__init__(options, build)
        google = options.view_as(beam_options.GoogleCloudOptions)
        google.job_name = google.job_name or job_name(build.output)

    def run(self, pipeline: beam.Pipeline) -> None:
        try:
            self._wait(pipeline.run())
        except Exception as e:
            if user_error_in(e):
                raise
            raise self._failure(e) from e

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
            except Exception as e:  # noqa: BLE001  # the client ends anyway, and prints the reason
                print(
                    f"the job {name} may still run ({_error_text(e)}); it publishes nothing once "
                    "another build of this output has begun",
                    file=sys.stderr,
                )
            raise

    def _failure(self, e: Exception) -> UserError:
        said = last_line(_error_text(e))
        if isinstance(e, (grpc.RpcError, grpc.FutureTimeoutError)):
            endpoint = self.options.view_as(beam_options.PortableOptions).job_endpoint
            return invalid(
                beam_flag("job_endpoint"),
                f"{endpoint!r}, but no job service answers there ({said})",
                remedy="start one (on this host: make job-service), then give the same command: "
                "finished shards are kept",
            )
        return UserError(
            f"the job failed ({said})",
            remedy="the logs of the runner and of its workers have more; finished shards are kept "
            "for the same command",
        )


def _error_text(e: BaseException) -> str:
    # A failed call is printed with its internals; only its details are written for people.
    if isinstance(e, grpc.RpcError) and callable(getattr(e, "details", None)):
        return str(e.details() or e.code())
    return str(e) or type(e).__name__


def job_name(output: str) -> str:
    """Returns the name of a build's job: readable, and the same for the same output only."""
    # Dataflow refuses a second active job with the same name, and so a second one for an output.
    place = os.path.realpath(output) if storage.is_local(output) else output.rstrip("/")
    words = re.sub(r"[^a-z0-9]+", "-", place.rpartition("/")[2].lower())
    digest = hashlib.sha256(place.encode()).hexdigest()[:8]
    return f"imageshards-{words[:30].strip('-') or 'build'}-{digest}"


# Flags of Beam's Flink runner that only its Java side declares. Beam's client asks a running job
# server for them, which is too late to find a misspelled flag.
_FLINK_JAVA_FLAGS = (
    "max_bundle_size max_bundle_time_mills number_of_execution_retries execution_retry_delay "
    "auto_watermark_interval job_check_interval_in_secs state_backend state_backend_storage_path "
    "flink_conf_dir object_reuse faster_copy disable_metrics"
).split()


# Flags of Beam by which a client submits no job.
_WITHOUT_JOB = ("dry_run", "template_location")


_View = TypeVar("_View", bound=beam_options.PipelineOptions)


class _Options(beam_options.PipelineOptions):
    """Options that keep their views: Beam asks for 700, and parses the flags anew for each."""

    def view_as(self, cls: type[_View]) -> _View:
        views: dict[type[_View], _View] = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]

    def __getstate__(self) -> dict[str, Any]:
        # Beam leaves an option out of a copy, so the copy must make views of its own values.
        return {name: kept for name, kept in super().__getstate__().items() if name != "_views"}


class _BeamFlags(Parser, beam_options._BeamArgumentParser):
    """Parser of Beam's flags."""


def choose(
    beam_args: Sequence[str], build: BuildOptions, own_flags: Iterable[str] = (), here: bool = False
) -> Runner:
    """Returns the runner that Beam's flags ask for, or, with `here`, the runner in this process.

    Raises `UserError` if a flag is unknown, or asks for a mode in which records may get lost.
    """
    check_flags(beam_args, own_flags)
    options = _Options(list(beam_args), save_main_session=False)
    for flag in options.get_all_options(drop_default=True).keys() & {*_WITHOUT_JOB}:
        remedy = Arg("plan_only", True) + " shows what a build would write"
        raise invalid(beam_flag(flag), "a value, but a build runs its job", remedy=remedy)
    given = options.view_as(beam_options.StandardOptions).runner
    name = runner_name(given)
    if here or name in LOCAL_RUNNERS:
        direct = options.view_as(beam_options.DirectOptions)
        if direct.direct_running_mode != "in_memory":
            raise invalid(
                beam_flag("direct_running_mode"),
                repr(direct.direct_running_mode),
                "in_memory, the default, as processes of our own write the shards",
            )
        direct.direct_num_workers = 1  # the pool's processes do the work
        # Beam's DirectRunner would try to download Prism.
        return Runner(options, build, fn_runner.FnApiRunner())
    added = missing_defaults(options.get_all_options(True, retain_unknown_options=True))
    for argument, reason in added.items():
        print(f"{argument}: {reason}", file=sys.stderr)
    options = _Options([*beam_args, *added], save_main_session=False)
    if name != "dataflow":
        return RemoteRunner(options, build)
    try:
        from beam_pipeline.runners.dataflow import DataflowRunner
    except ImportError as e:
        raise invalid(
            beam_flag("runner"),
            f"{given}, but Google's clients are not installed ({e})",
            remedy=install_advice("dataflow"),
        ) from e
    return DataflowRunner(options, build)


def check_flags(beam_args: Sequence[str], own_flags: Iterable[str] = ()) -> None:
    """Raises `UserError` for a flag that Beam does not know either, with similar flags."""
    if not beam_args:
        return
    parser = _BeamFlags(prog="imageshards build", add_help=False)
    for cls in beam_options.PipelineOptions.__subclasses__():
        cls._add_argparse_args(parser)
    for name in _FLINK_JAVA_FLAGS:
        parser.add_argument(f"--{name}", nargs="?")
    _, unknown = parser.parse_known_args(list(beam_args))
    if not unknown:
        return
    flags = [text.partition("=")[0] for text in unknown if text.startswith("-")]
    name = (flags or unknown)[0]
    # Beam has hundreds of flags, so a similar flag of our own is more likely to be meant.
    near = nearest_flags(name, [*own_flags])
    near = near or nearest_flags(name, [*parser._option_string_actions])
    hint = did_you_mean(near) or "see imageshards build --help, and put quotes around a glob"
    raise UserError(f"{name!r} is no flag of this program or of Beam", remedy=hint.rstrip())
