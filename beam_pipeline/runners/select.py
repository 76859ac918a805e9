"""Which Beam runner, with which options: names the local one so that nothing is downloaded."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import logging
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import apache_beam
from apache_beam.options import pipeline_options
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers
from apache_beam.runners.runner import PipelineRunner

from beam_pipeline import cli
from beam_pipeline.flag_values import runner_name
from beam_pipeline.runners import defaults
from imageshards.errors import UserError

_View = TypeVar("_View")

_LOCAL = ("direct", "fnapi")  # as Beam reads --runner: in any case, without "Runner"


@dataclasses.dataclass(frozen=True)
class Runner:
    """A runner and the options it is run with.

    Attributes:
        runner: None lets Beam find it by the options.
        options: Beam's.
        local: Whether this machine does the work.
    """

    runner: PipelineRunner | None
    options: PipelineOptions
    local: bool


def kind(options: PipelineOptions) -> str:
    """What --runner asks for: direct, portable, flink, dataflow, …"""
    return runner_name(options.view_as(StandardOptions).runner)


class _Options(PipelineOptions):
    """Options whose views are made once.

    Beam asks for a view at every transform, and each parses all flags again: half a second
    of a job's start.
    """

    def view_as(self, cls: type[_View]) -> _View:
        views: dict[type[Any], Any] = self.__dict__.setdefault("_views_made", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]


def local() -> Runner:
    """The runner in this process."""
    return choose([])


def choose(beam_args: Sequence[str], num_shards: int | None = None) -> Runner:
    """The runner that Beam's flags ask for.

    Args:
        beam_args: Flags for Beam.
        num_shards: Shards of all splits together, if that is known.

    Raises:
        UserError: A flag is unknown, or asks for a mode that loses records.
    """
    check_flags(beam_args)
    beam_args = defaults.fill(beam_args, num_shards)
    # It logs the traceback of what a worker raised, which is raised to us as well.
    logging.getLogger("apache_beam.runners.common").setLevel(logging.CRITICAL)
    options = _Options(list(beam_args), save_main_session=False)
    if kind(options) not in _LOCAL:
        _check_runner(str(options.view_as(StandardOptions).runner))
        return Runner(None, options, local=False)
    direct = options.view_as(DirectOptions)
    if direct.direct_running_mode == "multi_threading":
        raise UserError(
            "--direct_running_mode received 'multi_threading', which loses records in Beam "
            f"{apache_beam.__version__}; expected in_memory (the default: own processes write the "
            "shards) or multi_processing."
        )
    if direct.direct_running_mode == "multi_processing":
        # In Beam 2.77 a timer thread flushes, then clears, a buffer that the bundle's thread is
        # writing to; 0 keeps the timer from being started. See TimeBasedBuffering… in data_plane.
        worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0
        if not any(arg.startswith("--direct_num_workers") for arg in beam_args):
            direct.direct_num_workers = 0  # every core; Beam's default is one
    else:
        direct.direct_running_mode = "in_memory"
        direct.direct_num_workers = 1  # the pool's processes do the work
    return Runner(fn_runner.FnApiRunner(), options, local=True)


def _check_runner(name: str) -> None:
    known = [runner.lower() for runner in StandardOptions.KNOWN_RUNNER_NAMES]
    if "." not in name and name.lower() not in known and f"{name.lower()}runner" not in known:
        raise UserError(
            f"--runner received {name!r}; expected one of "
            f"{', '.join(StandardOptions.KNOWN_RUNNER_NAMES)}, or a class as module.Class."
        )


def check_flags(beam_args: Sequence[str]) -> None:
    """Raises `UserError` for a flag that neither we nor Beam know."""
    if not beam_args:
        return
    parser = pipeline_options._BeamArgumentParser(allow_abbrev=False, add_help=False)
    for cls in _subclasses(PipelineOptions):
        cls._add_argparse_args(parser)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):  # argparse prints all of Beam's flags
            _, unknown = parser.parse_known_args(list(beam_args))
    except SystemExit:
        reason = said.getvalue().strip().rpartition("error: ")[2]
        raise UserError(f"Beam refuses its flags ({reason}); fix or leave out the flag.") from None
    if not unknown:
        return
    flags = [text.partition("=")[0] for text in unknown if text.startswith("-")]
    if not flags:
        raise UserError(
            f"{unknown[0]!r} belongs to no flag; expected --name value: put quotes around a glob "
            "or a path with spaces."
        )
    first = flags[0]
    known = [s for p in (parser, cli.make_parser()) for s in p._option_string_actions]
    close = difflib.get_close_matches(first, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "see python -m beam_pipeline --help."
    raise UserError(f"{first!r} is a flag neither of this program nor of Beam; {hint}")


def _subclasses(cls: Any) -> list[Any]:
    found: list[Any] = []
    for sub in cls.__subclasses__():
        found += [sub, *_subclasses(sub)]
    return list(dict.fromkeys(found))


# What runners say of it: FnApiRunner, then Prism, which may stumble over the closed channel.
_LOST = (
    re.compile("Channel closed prematurely"),
    re.compile("SDK worker .*exit", re.DOTALL),
    re.compile("SDK worker disconnected|worker stopped before"),
    re.compile("panic in stage.Execute.*closed channel", re.DOTALL),
)


def lost_a_worker(e: BaseException) -> bool:
    """Whether a run ended because a worker process was killed."""
    return any(words.search(str(e)) for words in _LOST)
