"""Chooses the runner that Beam's flags ask for, and refuses flags that nobody knows."""

from __future__ import annotations

import contextlib
import difflib
import io
import logging
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import apache_beam
from apache_beam.options import pipeline_options
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers

from beam_pipeline.runners import defaults
from beam_pipeline.runners.defaults import LOCAL_RUNNERS, runner_name
from beam_pipeline.runners.runner import Build, Runner
from imageshards.errors import UserError

_View = TypeVar("_View")


class FlinkJavaOptions(PipelineOptions):
    """Flags of Beam's Flink runner that only its Java side declares.

    Beam's Python client learns of them from a running job server, too late to tell a misspelled
    flag from a known one. A flag that is not given is not sent.
    """

    _NUMBERS = {
        "max_bundle_size": "elements of a bundle, at most",
        "max_bundle_time_mills": "milliseconds until a bundle is closed",
        "number_of_execution_retries": "how often Flink restarts a failed job by itself",
        "execution_retry_delay": "milliseconds between such restarts",
        "auto_watermark_interval": "milliseconds between watermarks",
        "job_check_interval_in_secs": "seconds between looks at a detached job",
    }
    _TEXTS = {
        "state_backend": "rocksdb or hashmap, where grouped references wait",
        "state_backend_storage_path": "folder or URI of the state backend",
        "flink_conf_dir": "folder with a Flink configuration, on the job server's host",
    }
    _SWITCHES = {
        "object_reuse": "reuse Java objects between operators",
        "faster_copy": "leave out deep copies between operators",
        "disable_metrics": "do without Beam's metrics",
    }

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        for texts, key, value in (
            (cls._NUMBERS, "type", int),
            (cls._TEXTS, "type", str),
            (cls._SWITCHES, "action", "store_true"),
        ):
            kind: Any = {key: value}
            for name, text in texts.items():
                parser.add_argument(f"--{name}", default=None, help=f"Flink: {text}.", **kind)


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


def choose(
    beam_args: Sequence[str], build: Build | None = None, own_flags: Iterable[str] = ()
) -> Runner:
    """The runner that Beam's flags ask for; the one in this process if they ask for none.

    Args:
        beam_args: Flags for Beam.
        build: What it is for.
        own_flags: See `check_flags`.

    Raises:
        UserError: A flag is unknown, or asks for a mode that loses records.
    """
    build = build or Build()
    check_flags(beam_args, own_flags)
    beam_args = defaults.fill(beam_args, build.num_shards)
    # It logs the traceback of what a worker raised, which is raised to us as well.
    logging.getLogger("apache_beam.runners.common").setLevel(logging.CRITICAL)
    options = _Options(list(beam_args), save_main_session=False)
    given = options.view_as(StandardOptions).runner
    name = runner_name(given)
    if name in LOCAL_RUNNERS:
        _set_direct(options.view_as(DirectOptions), beam_args)
        # Named explicitly: Beam's DirectRunner would try to download Prism.
        return Runner(options, build, fn_runner.FnApiRunner())
    _check_runner(str(given))
    # Each imports what the others do not need.
    if name == "flink":
        from beam_pipeline.runners.flink import FlinkRunner

        return FlinkRunner(options, build)
    if name == "dataflow":
        from beam_pipeline.runners.dataflow import DataflowRunner

        return DataflowRunner(options, build)
    from beam_pipeline.runners.submit import RemoteRunner

    return RemoteRunner(options, build)


def _set_direct(direct: Any, beam_args: Sequence[str]) -> None:
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


def _check_runner(name: str) -> None:
    known = [runner.lower() for runner in StandardOptions.KNOWN_RUNNER_NAMES]
    if "." not in name and name.lower() not in known and f"{name.lower()}runner" not in known:
        raise UserError(
            f"--runner received {name!r}; expected one of "
            f"{', '.join(StandardOptions.KNOWN_RUNNER_NAMES)}, or a class as module.Class."
        )


def check_flags(beam_args: Sequence[str], own_flags: Iterable[str] = ()) -> None:
    """Refuses a flag that Beam does not know either.

    Args:
        beam_args: Flags that the command line did not know.
        own_flags: Flags that it knows, one of which may have been meant.

    Raises:
        UserError: There is such a flag, or one of Beam's has no value.
    """
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
    known = [*parser._option_string_actions, *own_flags]
    close = difflib.get_close_matches(flags[0], known, n=1)
    hint = f"did you mean {close[0]}?" if close else "see python -m beam_pipeline --help."
    raise UserError(f"{flags[0]!r} is a flag neither of this program nor of Beam; {hint}")


def _subclasses(cls: Any) -> list[Any]:
    found: list[Any] = []
    for sub in cls.__subclasses__():
        found += [sub, *_subclasses(sub)]
    return list(dict.fromkeys(found))
