"""Chooses the runner that Beam's flags ask for, and refuses flags that nobody knows."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable, Sequence

from apache_beam.options import pipeline_options as beam_options
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers

from beam_pipeline.option_texts import beam_flag, invalid
from beam_pipeline.options import BuildOptions
from beam_pipeline.runners.flags import LOCAL_RUNNERS, missing_defaults, runner_name
from beam_pipeline.runners.runner import RemoteRunner, Runner
from imageshards.commands.command_line import did_you_mean, nearest_flags
from imageshards.errors import UserError, install_advice

# Flags of Beam's Flink runner that only its Java side declares. Beam's client asks a running job
# server for them, which is too late to find a misspelled flag.
_FLINK_JAVA_FLAGS = (
    "max_bundle_size max_bundle_time_mills number_of_execution_retries execution_retry_delay "
    "auto_watermark_interval job_check_interval_in_secs state_backend state_backend_storage_path "
    "flink_conf_dir object_reuse faster_copy disable_metrics"
).split()


def choose(beam_args: Sequence[str], build: BuildOptions, own_flags: Iterable[str] = ()) -> Runner:
    """Returns the runner that Beam's flags ask for; without flags, the runner in this process.

    Raises:
        UserError: A flag is unknown, or asks for a mode in which records may get lost.
    """
    check_flags(beam_args, own_flags)
    options = beam_options.PipelineOptions(list(beam_args), save_main_session=False)
    given = options.view_as(beam_options.StandardOptions).runner
    name = runner_name(given)
    if name in LOCAL_RUNNERS:
        direct = options.view_as(beam_options.DirectOptions)
        if direct.direct_running_mode != "in_memory":
            raise invalid(
                beam_flag("direct_running_mode"),
                repr(direct.direct_running_mode),
                "in_memory, the default, as processes of our own write the shards",
            )
        direct.direct_num_workers = 1  # the pool's processes do the work
        # Each side input is read once, and measuring its size for the cache takes longer than that.
        worker_handlers.STATE_CACHE_SIZE_MB = 0
        # Clients of clusters and our tests check the types of the same graph; it takes 0.1 s.
        options.view_as(beam_options.TypeOptions).pipeline_type_check = False
        # Beam's DirectRunner would try to download Prism.
        return Runner(options, build, fn_runner.FnApiRunner())
    added = missing_defaults(options.get_all_options(True, retain_unknown_options=True))
    for argument, reason in added.items():
        print(f"{argument}: {reason}", file=sys.stderr)
    options = beam_options.PipelineOptions([*beam_args, *added], save_main_session=False)
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
    parser = beam_options._BeamArgumentParser(allow_abbrev=False, add_help=False)
    for cls in beam_options.PipelineOptions.__subclasses__():
        cls._add_argparse_args(parser)
    for name in _FLINK_JAVA_FLAGS:
        parser.add_argument(f"--{name}", nargs="?")
    printed = io.StringIO()
    try:
        # argparse prints a usage text with all of Beam's flags before it exits.
        with contextlib.redirect_stderr(printed):
            _, unknown = parser.parse_known_args(list(beam_args))
    except SystemExit:
        reason = printed.getvalue().strip().rpartition("error: ")[2]
        raise UserError(
            f"Beam refuses its flags ({reason})", remedy="fix or leave out the flag"
        ) from None
    if not unknown:
        return
    names = [text.partition("=")[0] for text in unknown if text.startswith("-")]
    if not names:
        raise UserError(
            f"{unknown[0]!r} belongs to no flag",
            expected=beam_flag("name") + " value",
            remedy="put quotes around a glob or a path with spaces",
        )
    # Beam has hundreds of flags, so a similar flag of our own is more likely to be meant.
    near = nearest_flags(names[0], [*own_flags])
    near = near or nearest_flags(names[0], [*parser._option_string_actions])
    hint = did_you_mean(near) or "see imageshards build --help"
    raise UserError(
        f"{names[0]!r} is a flag neither of this program nor of Beam", remedy=hint.rstrip()
    )
