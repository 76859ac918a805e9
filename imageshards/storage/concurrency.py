"""Concurrent calls in threads, as a store answers slowly, and in processes; shared memory."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import contextvars
import functools
import math
import multiprocessing
import os
import pathlib
import signal
import sys
import threading
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from imageshards.errors import Arg, UserError

_In = TypeVar("_In")
_Out = TypeVar("_Out")

_AT_ONCE = 16  # threads, which mostly wait for answers of a store


def available_cores(root: str = "/") -> int:
    """Returns the number of cores that this process may use: its affinity, or a smaller quota.

    A container with a limit of 4 CPUs sees all cores of its host. The files of the kernel's control
    groups (version 2), below `root`, hold the limit.
    """
    cores = float(len(os.sched_getaffinity(0)))
    groups = pathlib.Path(root, "proc/self/cgroup")
    for line in groups.read_text().splitlines() if groups.exists() else ():
        path = pathlib.PurePosixPath(line.removeprefix("0::"))
        # A group above may have the limit. In a container, the path may be the host's.
        for group in (path, *path.parents) if line.startswith("0::") else ():
            limit = pathlib.Path(root, "sys/fs/cgroup", str(group).strip("/"), "cpu.max")
            with contextlib.suppress(OSError, ValueError):  # no such file, or `max` for no limit
                quota, period = map(int, limit.read_text().split())
                cores = min(cores, quota / period)
    return max(1, math.ceil(cores))


# Set when the user stops the program: only the main thread sees the exception of a signal.
STOPPED = threading.Event()


def check_stopped() -> None:
    """Raises `KeyboardInterrupt` in any thread once the user has stopped the program.

    Work of more than a second calls this function now and then, as a pool waits for its threads.
    """
    if STOPPED.is_set():
        raise KeyboardInterrupt


def in_thread(function: Callable[..., _Out]) -> Callable[..., _Out]:
    """Returns a function for another thread, with the storage settings of this thread."""
    return functools.partial(contextvars.copy_context().run, function)


def map_concurrently(
    function: Callable[[_In], _Out], items: Iterable[_In], at_once: int = _AT_ONCE
) -> Generator[_Out, None, None]:
    """Yields `map(function, items)`, computed in threads at most `at_once` items ahead."""
    waiting: collections.deque[concurrent.futures.Future[_Out]] = collections.deque()
    threads = concurrent.futures.ThreadPoolExecutor(at_once)
    try:
        for item in items:
            waiting.append(threads.submit(in_thread(function), item))
            if len(waiting) >= at_once:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def run_concurrently(*calls: Callable[[], Any]) -> list[Any]:
    """Returns the results of independent calls, which run in threads at the same time.

    Raises:
        Exception: The error of the first call that failed, after all running calls have ended.
    """
    return list(map_concurrently(lambda call: call(), calls))


def map_in_processes(
    function: Callable[[_In], _Out], tasks: Sequence[_In], workers: int | None = None
) -> Iterator[_Out]:
    """Yields `map(function, tasks)`, computed in `workers` processes (default: one per core).

    Raises:
        UserError: A process was killed.
    """
    workers = min(workers or available_cores(), len(tasks))
    if workers <= 1:
        yield from map(function, tasks)
        return
    # Not fork: the caller may run threads of Beam or TensorFlow.
    context = multiprocessing.get_context("spawn")
    # A terminal sends Ctrl-C to every process. The parent alone handles it and ends the children.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, signal.signal, ignore)
    # `map` starts the processes, and spawn would run the main module again in each of them. That
    # breaks a script without a `__main__` guard, so the processes see an empty main module.
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        results = pool.map(function, tasks)
    finally:
        sys.modules["__main__"] = main
    try:
        yield from results
    except BrokenProcessPool as e:
        raise UserError(
            "A process that reads shards was killed, most likely for lack of memory",
            remedy="run it again with a smaller " + Arg("workers"),
        ) from e
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def shared_memory(num_bytes: int) -> int:
    """Returns a descriptor of zeroed memory, which other processes can map."""
    fd = os.memfd_create("imageshards")
    # Writing the zeros makes the kernel reserve the memory now, so that none is lacking later.
    os.write(fd, bytes(num_bytes))
    return fd
