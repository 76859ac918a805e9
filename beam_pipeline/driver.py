"""Runs a build on this machine or submits it: the lock, the processes, what is printed."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import ModuleType

from beam_pipeline import local_pool, staging_folder
from beam_pipeline.errors import UserError
from beam_pipeline.imports import quick_imports
from beam_pipeline.label_export import LabelExporter
from beam_pipeline.local_pool import LocalPool
from beam_pipeline.lock import OutputLock
from beam_pipeline.manifest import STAGING_NAME, load_manifest
from beam_pipeline.options import MANIFEST_SUFFIXES, BuildOptions
from beam_pipeline.progress import ProgressLine, final_table, plan_table

# As often as a worker of Beam's own local processes may be killed before we give up.
MAX_RUNS = 3


def run(options: BuildOptions, beam_args: Sequence[str]) -> str:
    """Builds a data set, or plans it; returns what to print.

    Raises:
        UserError: Something the caller can mend.
        KeyboardInterrupt: On Ctrl-C or SIGTERM, after all processes have ended.
    """
    stopped = threading.Event()

    def stop(number: int, frame: object) -> None:
        stopped.set()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _run(options, beam_args)
    except Exception as e:
        if stopped.is_set():  # Beam wraps what is raised inside a stage
            raise KeyboardInterrupt from e
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(options: BuildOptions, beam_args: Sequence[str]) -> str:
    begun = time.monotonic()
    if options.plan_only:
        pipeline, runners = _import_beam()
        return plan_table(pipeline.plan_only(options, runners.choose(beam_args)))
    if "://" in options.output:
        raise UserError(
            f"--output received {options.output!r}; expected a local folder in this release; copy "
            "the finished folder to the store afterwards."
        )
    fresh = not os.path.exists(options.output)
    staging = os.path.join(options.output, STAGING_NAME)
    with OutputLock(os.path.join(staging, "lock")):
        try:
            return _build(options, beam_args, staging, begun)
        except UserError:
            staging_folder.remove_empty(options.output, staging, fresh)
            raise


def _import_beam() -> tuple[ModuleType, ModuleType]:
    """(pipeline, runners), imported when local processes have been started."""
    with quick_imports():
        from beam_pipeline import pipeline, runners
    gc.set_threshold(100_000)  # millions of references are no garbage
    return pipeline, runners


def _build(options: BuildOptions, beam_args: Sequence[str], staging: str, begun: float) -> str:
    done = staging_folder.check_output(options, staging)
    if done:
        shutil.rmtree(staging, ignore_errors=True)
        return final_table(done, 1e-9, done["listed"]) + f"\ndata set in {options.output}"
    wants_pool, workers = _pool_size(beam_args)
    if not wants_pool:
        return _run_pipeline(options, beam_args, staging, begun, None)
    progress: list[ProgressLine] = []
    with contextlib.ExitStack() as stack:
        if not _has_columns(options):
            # It imports TensorFlow while Beam is imported here.
            stack.enter_context(LabelExporter())
        _import_beam()
        pool = stack.enter_context(LocalPool(workers, lambda sentence: progress[0].say(sentence)))
        progress.append(stack.enter_context(ProgressLine(pool)))
        return _run_pipeline(options, beam_args, staging, begun, pool)


def _has_columns(options: BuildOptions) -> bool:
    """Whether there may be more to analyse than labels."""
    manifest = options.source.input.lower().endswith(MANIFEST_SUFFIXES)
    return manifest or options.source.layout == "manifest" or bool(options.transform_module)


def _run_pipeline(
    options: BuildOptions,
    beam_args: Sequence[str],
    staging: str,
    begun: float,
    pool: LocalPool | None,
) -> str:
    pipeline, runners = _import_beam()
    runner = runners.choose(beam_args)
    staging_folder.prepare(options.output, staging)
    for attempt in range(1, MAX_RUNS + 1):
        try:
            pipeline.build(options, runner, staging)
            break
        except RuntimeError as e:
            if not runners.lost_a_worker(e):
                raise
            _say_lost(attempt, staging, e)
    manifest = load_manifest(options.output)
    shutil.rmtree(staging, ignore_errors=True)
    reused = pool.progress()[3] if pool else 0
    made = [f"data set in {options.output}"]
    if options.report:
        made.append(f"report: {os.path.join(options.output, 'report', 'index.html')}")
    return "\n".join([final_table(manifest, time.monotonic() - begun, reused), *made])


def _say_lost(attempt: int, staging: str, e: Exception) -> None:
    if attempt == MAX_RUNS:
        raise UserError(
            f"worker processes of the runner were killed in {MAX_RUNS} runs, most likely for want "
            "of memory; use fewer (--direct_num_workers) or a smaller --max_image_mpx; finished "
            "shards are kept."
        ) from e
    finished = sum(name.endswith(".json") for name in os.listdir(staging))
    print(
        f"a worker process was killed (out of memory?); going on after {finished} finished shards "
        f"(run {attempt + 1} of {MAX_RUNS})",
        file=sys.stderr,
    )


def _pool_size(beam_args: Sequence[str]) -> tuple[bool, int]:
    """Whether our own processes write the shards, and how many; without importing Beam."""
    import argparse

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    # A flag without its value is found, and said, when Beam's flags are checked.
    parser.add_argument("--runner", nargs="?", default="DirectRunner", const="")
    parser.add_argument("--direct_running_mode", nargs="?")
    parser.add_argument("--direct_num_workers", nargs="?", default="0", const="")
    args, _ = parser.parse_known_args(list(beam_args))
    name = args.runner.rpartition(".")[2].lower().removesuffix("runner")
    wanted = name in ("direct", "fnapi") and args.direct_running_mode in (None, "in_memory")
    if not args.direct_num_workers.isdecimal():
        raise UserError(
            f"--direct_num_workers received {args.direct_num_workers!r}; expected a number of "
            "processes, 0 for one per core."
        )
    return wanted, int(args.direct_num_workers) or local_pool.available_cores()
