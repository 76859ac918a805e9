"""Work on the shards of a data set by several processes."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from imageshards.errors import UserError

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def map_in_processes(
    function: Callable[[_Task], _Result], tasks: Sequence[_Task], workers: int | None = None
) -> Iterator[_Result]:
    """Results of a function of a module, in the order of the tasks.

    Args:
        function: What is done, in another process where there are several.
        tasks: Its arguments.
        workers: Processes; None for one per core.

    Raises:
        UserError: A process was killed.
    """
    workers = min(workers or len(os.sched_getaffinity(0)), len(tasks))
    if workers <= 1:
        yield from map(function, tasks)
        return
    # Not fork: the caller may run threads of Beam or TensorFlow.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, _ignore_interrupt)
    try:
        yield from pool.map(function, tasks)
    except BrokenProcessPool as e:
        raise UserError(
            "A process that reads shards was killed, most likely for lack of memory; run it again "
            "with a smaller --workers."
        ) from e
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _ignore_interrupt() -> None:
    """Ctrl-C reaches all processes of a terminal; the first one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
