"""Several calls at once: in threads, as a store answers slowly, and in processes; their memory."""

from __future__ import annotations

import collections
import concurrent.futures
import contextvars
import functools
import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from imageshards.errors import Arg, UserError

_In = TypeVar("_In")
_Out = TypeVar("_Out")

_AT_ONCE = 16


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def in_thread(function: Callable[..., _Out]) -> Callable[..., _Out]:
    """The function for another thread, which uses stores as this one does."""
    return functools.partial(contextvars.copy_context().run, function)


def map_concurrently(
    function: Callable[[_In], _Out], items: Iterable[_In], at_once: int = _AT_ONCE
) -> Generator[_Out, None, None]:
    """`map(function, items)` in threads, at most `at_once` items ahead of the consumer."""
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
    """The results of calls that do not depend on each other, made at once in threads.

    Raises:
        Exception: What the first of them raised; those that were begun have ended.
    """
    return list(map_concurrently(lambda call: call(), calls))


def map_in_processes(
    function: Callable[[_In], _Out], tasks: Sequence[_In], workers: int | None = None
) -> Iterator[_Out]:
    """`map(function, tasks)` in processes, for a function of a module, in the order of the tasks.

    There is one process per core, or `workers`.

    Raises:
        UserError: A process was killed.
    """
    workers = min(workers or available_cores(), len(tasks))
    if workers <= 1:
        yield from map(function, tasks)
        return
    # Not fork: the caller may run threads of Beam or TensorFlow.
    context = multiprocessing.get_context("spawn")
    # Ctrl-C reaches all processes of a terminal; the first one ends the others.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, signal.signal, ignore)
    # They begin here, and would run the main module again: a script without a guard.
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
    """A descriptor of zeros that processes map; nothing of it can be lacking later."""
    fd = os.memfd_create("imageshards")
    os.write(fd, bytes(num_bytes))
    return fd
