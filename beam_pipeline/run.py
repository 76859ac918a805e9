"""Runs a build around its pipeline: signals, the output's lock, processes and the summary."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence

import imageshards
from beam_pipeline import cli, lean_imports
from beam_pipeline.beam_files import StoreConfig, given_flags
from beam_pipeline.commit import staging as staging_folder
from beam_pipeline.commit.staging import OutputState
from beam_pipeline.images.process_pool import LocalPool
from beam_pipeline.inputs.datasets import open_inputs
from beam_pipeline.inputs.layout import check_output_apart, layout_of
from beam_pipeline.option_texts import beam_flag, invalid
from beam_pipeline.options import TABLE, BuildOptions
from beam_pipeline.progress import BuildSummary, final_table, pool_line
from beam_pipeline.runners.flags import LOCAL_RUNNERS, runner_name
from imageshards import storage
from imageshards.commands.command_line import as_user_error, on_signals
from imageshards.errors import LeaseLostError
from imageshards.manifest import LOCK_NAME, PAGE_NAME, REPORT_NAME, STAGING_NAME
from imageshards.manifest.file import load_manifest
from imageshards.progress import ProgressLine, activity_line, note_activity
from imageshards.storage.concurrency import STOPPED, available_cores
from imageshards.storage.lease import Job, output_lock

_STOPS = (signal.SIGINT, signal.SIGTERM)


def run(
    options: BuildOptions, beam_args: Sequence[str], *, ends_process: bool = False
) -> BuildSummary:
    """Builds a dataset, or only plans one with `--plan_only`; returns the summary to print.

    Args:
        options: The options of the build.
        beam_args: Flags of Beam.
        ends_process: Whether this process ends after the build, so that nothing else needs Beam.

    Raises:
        UserError: The build failed for a reason that the caller can remove.
        KeyboardInterrupt: On Ctrl-C or SIGTERM, after all processes have ended.
    """
    STOPPED.clear()

    def stop(number: int, frame: object) -> None:
        STOPPED.set()
        raise KeyboardInterrupt

    try:
        with (
            on_signals(stop, *_STOPS),
            storage.using(StoreConfig.of_arguments(beam_args).settings()),
        ):
            return _run(options, beam_args, ends_process)
    except LeaseLostError:
        raise  # the lock stopped the job by a signal, as Ctrl-C does, but this error says why
    except Exception as e:
        # Beam wraps a KeyboardInterrupt that is raised inside a stage.
        if STOPPED.is_set():
            raise KeyboardInterrupt from e
        raise


def _run(options: BuildOptions, beam_args: Sequence[str], ends_process: bool) -> BuildSummary:
    begun = time.monotonic()
    storage.reset_counts()
    # Inputs are opened before any process starts: the user sees mistakes at once, and the processes
    # inherit the modules that are imported here.
    for source in options.sources:
        storage.check_bucket(source.input, "input")
    options = open_inputs(options)
    for source in options.sources:
        check_output_apart(source, options.output)
    hidden = _UNUSED if ends_process and _is_plain(options, beam_args) else ()
    if options.plan_only:
        # A plan takes seconds, so this machine makes the plan even for a job on a cluster.
        note_activity("starting")
        pool = LocalPool(_pool_size(options, beam_args) or available_cores())
        with pool, _beam_for_a_build(hidden, _reads_tables(options)), ProgressLine(activity_line):
            from beam_pipeline.pipeline import plan_only
            from beam_pipeline.runners.runner import choose

            runner = choose(beam_args, options, cli.make_parser().flags, here=True)
            return BuildSummary(options.output, plan_only(options, runner), None)
    storage.check_bucket(options.output, "output")
    fresh = not os.path.exists(options.output)
    staging = storage.join(options.output, STAGING_NAME)
    with output_lock(storage.join(staging, LOCK_NAME)) as lock:
        state = staging_folder.read_output_state(options.output, staging)
        try:
            return _build(options, beam_args, state, begun, lock, hidden)
        except Exception as e:
            if as_user_error(e):
                staging_folder.remove_empty(options.output, staging, fresh)
            raise


_LOG_RAISED_ERRORS = ("common", "portability.portable_runner", "dataflow.dataflow_runner")


def _is_no_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR


# Packages that Beam imports where it finds them, for transforms and file systems that a local build
# has not. They take as long to import as the rest of Beam, which works without them.
_UNUSED = ("apitools", "boto3", "google.api_core", "google.auth", "pandas")


def _is_no_warning(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING


@contextlib.contextmanager
def _beam_for_a_build(hidden: Sequence[str], reads_tables: bool) -> Iterator[None]:
    """Imports Beam and the steps of the job, and adapts this process to a build until the end.

    Beam does not find the packages `hidden` during the import, unless one of them is in use.
    """
    # With a path in a store, Beam may need the store's client, too.
    if not sys.modules.keys().isdisjoint(hidden):
        hidden = ()
    # Signals wait for the end of the import, because the module that is being imported may swallow
    # an error of a handler, or print a traceback.
    signals: list[int] = []
    was_enabled, thresholds = gc.isenabled(), gc.get_threshold()
    with on_signals(lambda number, frame: signals.append(number), *_STOPS):
        # The import takes 2.5 CPU s, and 0.4 to 0.7 s less without the garbage collector. Freezing
        # its 215,000 objects saves each later full collection 0.3 s.
        gc.disable()
        # Beam warns that Google's clients are missing.
        logging.getLogger().addFilter(_is_no_warning)
        try:
            with lean_imports.without(*hidden):
                for module in ("pipeline", "runners.runner"):
                    importlib.import_module(f"beam_pipeline.{module}")
        finally:
            logging.getLogger().removeFilter(_is_no_warning)
        if hidden and not reads_tables:
            lean_imports.pyarrow_without_pandas()
        gc.freeze()
        gc.enable()
        gc.set_threshold(100_000)  # millions of image references stay in use
    from apache_beam.utils import interactive_utils

    # These loggers print tracebacks of errors that `run` raises, and hide the sentence.
    loggers = [logging.getLogger(f"apache_beam.runners.{name}") for name in _LOG_RAISED_ERRORS]
    for logger in loggers:
        logger.addFilter(_is_no_error)
    is_in_ipython = interactive_utils.is_in_ipython
    # In IPython Beam would look for pipelines of the session, by a package that cannot be imported
    # beside pandas 3.
    interactive_utils.is_in_ipython = lambda: False
    try:
        for number in signals:
            signal.raise_signal(number)
        yield
    finally:
        # The process may be a notebook's, which goes on after the build.
        for logger in loggers:
            logger.removeFilter(_is_no_error)
        interactive_utils.is_in_ipython = is_in_ipython
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        if not was_enabled:
            gc.disable()


def _build(
    options: BuildOptions,
    beam_args: Sequence[str],
    state: OutputState,
    begun: float,
    lock: Job,
    hidden: Sequence[str],
) -> BuildSummary:
    is_done = staging_folder.check_output(state, options.overwrite, _digest(options))
    if is_done and (done := state.manifest):
        staging_folder.remove(state.staging)
        text = final_table(done, 0.0, done.listed) + f"\ndataset in {options.output}"
        return BuildSummary(options.output, text, done)
    if state.damage:
        print(
            f"{state.damage} It is replaced now; if --class_names does not give them, its classes "
            "may get other ids than they had.",
            file=sys.stderr,
        )
    workers = _pool_size(options, beam_args)
    progress: list[ProgressLine] = []
    with contextlib.ExitStack() as stack:
        if workers:
            note_activity("starting")
            # The processes of the pool start while this process imports Beam.
            modules = ["beam_pipeline.shards.writer"]
            pool = LocalPool(workers, lambda text: progress[0].say(text), lock, modules=modules)
            stack.enter_context(pool).start()
            progress.append(stack.enter_context(ProgressLine(pool_line(pool))))
        stack.enter_context(_beam_for_a_build(hidden, _reads_tables(options)))
        return _run_pipeline(options, beam_args, state, begun)


def _run_pipeline(
    options: BuildOptions, beam_args: Sequence[str], state: OutputState, begun: float
) -> BuildSummary:
    from beam_pipeline import pipeline
    from beam_pipeline.runners.runner import choose

    staging = state.staging
    runner = choose(beam_args, options, cli.make_parser().flags)
    runner.check()
    job = staging_folder.prepare_staging(state, _digest(options))
    pipeline.build(options, runner, state, job)
    manifest, committed = storage.run_concurrently(
        lambda: load_manifest(options.output, "output", complete=True, adopted=False),
        lambda: staging_folder.committed(staging),
    )
    staging_folder.remove(staging)
    made = [f"dataset in {options.output}"]
    page = storage.join(options.output, REPORT_NAME, PAGE_NAME)
    if options.report and storage.exists(page):
        made.append(f"report: {page}")
    stored = storage.counts()
    if stored.requests:
        made.insert(0, stored.text())
    table = final_table(manifest, time.monotonic() - begun, committed.reused_images)
    return BuildSummary(options.output, "\n".join([table, *made]), manifest)


def _digest(options: BuildOptions) -> str:
    # Options that change no record are left out.
    same = dataclasses.replace(options, output="", overwrite=False, report=True, given=frozenset())
    return hashlib.sha256(f"{imageshards.__version__} {same!r}".encode()).hexdigest()


def _is_plain(options: BuildOptions, beam_args: Sequence[str]) -> bool:
    """Returns whether Beam needs only what it always needs: no cluster, store or user's code."""
    is_plain = options.transform_module is None and storage.is_local(
        options.transform_temp_dir or ""
    )
    return is_plain and (options.plan_only or _is_local(beam_args))


def _reads_tables(options: BuildOptions) -> bool:
    # PyArrow reads times in nanoseconds from Parquet only with pandas.
    return any(layout_of(source) == TABLE for source in options.sources)


def _is_local(beam_args: Sequence[str]) -> bool:
    return runner_name(given_flags(beam_args).get("runner")) in LOCAL_RUNNERS


def _pool_size(options: BuildOptions, beam_args: Sequence[str]) -> int:
    """Returns how many processes of this machine write shards; 0 if a runner's workers do."""
    given = given_flags(beam_args)
    count = given.get("direct_num_workers") or "0"
    if not count.isdecimal():
        expected = "a number of processes, 0 for one per core"
        raise invalid(beam_flag("direct_num_workers"), repr(count), expected)
    if not _is_local(beam_args):
        return 0
    cores = available_cores()
    paths = [options.output, *(source.input for source in options.sources)]
    # With a store each process waits now and then: for the first images of a shard, and until the
    # end of the shard has been sent. One more process for every eight fills these gaps.
    if not all(map(storage.is_local, paths)):
        cores += -(-cores // 8)
    return int(count) or cores
