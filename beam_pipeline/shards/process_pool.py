"""Processes of this machine that write shards.

Beam's own local mode `multi_processing` starts interpreters that import Beam again for every
job, divides the work before it begins, and ends the job when one of them is killed. Here the
processes are forked, take the next shard when they are free, and a shard whose process was
killed is written again.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any

from imageshards import storage
from imageshards.errors import UserError
from imageshards.storage import Counts

# After this many killed processes a shard is taken to be their cause.
MAX_ATTEMPTS = 3

# Each process counts in memory of its own: (images, bytes read, rejects, images of shards
# that were finished before) of its finished tasks, then the same of its current one.
_FIELDS = 4
_WIDTH = 2 * _FIELDS

Task = Callable[..., Any]

_pool: LocalPool | None = None


def active() -> LocalPool | None:
    """The pool of this process, if it has one."""
    return _pool


class LocalPool:
    """A pool of processes, and counts of what they have done.

    Args:
        workers: Number of processes.
        say: Called with a sentence when a process was lost.
    """

    def __init__(self, workers: int, say: Callable[[str], None]):
        self.workers = workers
        self.lost = 0
        self._say = say
        self._context = _context(may_fork=True)
        self._lock = threading.RLock()
        # Pickled, the references of a data set take a sixth of the memory while they wait.
        self._tasks: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}
        self._futures: dict[str, concurrent.futures.Future[Any]] = {}
        self._attempts: dict[str, int] = {}
        self._counts_before = [0] * _FIELDS
        self._requests_before = Counts()
        self._stopped = False
        self._start()

    def __enter__(self) -> LocalPool:
        global _pool
        _pool = self
        return self

    def __exit__(self, *error: object) -> None:
        global _pool
        _pool = None
        self.kill()

    def _start(self) -> None:
        self._counts = self._context.RawArray("q", self.workers * _WIDTH)
        self._requests = self._context.RawArray("q", self.workers * len(Counts._fields))
        self._next_number = self._context.Value("i", 0)
        self._executor = concurrent.futures.ProcessPoolExecutor(
            self.workers, self._context, _begin_worker,
            (self._counts, self._requests, self._next_number, dict(os.environ)),
        )  # fmt: skip
        # Starts all processes: a fork must come before this process has threads.
        self._executor.submit(_nothing)

    def submit(self, name: str, task: Task, *args: Any, size: int) -> None:
        """Queues `task(*args, progress)` under a name; `size` is its number of images."""
        with self._lock:
            self._tasks[name] = pickle.dumps((task, args), protocol=5)
            self._sizes[name] = size
            self._submit(name)

    def _submit(self, name: str) -> None:
        packed = self._tasks[name]
        size = self._sizes[name]
        try:
            self._futures[name] = self._executor.submit(_run, packed, size)
        except BrokenProcessPool:
            self._restart()
            self._futures[name] = self._executor.submit(_run, packed, size)

    def result(self, name: str) -> Any:
        """Waits for a task, again if its process is killed.

        Raises:
            UserError: Its processes are killed again and again.
        """
        while True:
            with self._lock:
                future = self._futures[name]
            try:
                value = future.result()
            except BrokenProcessPool:
                self._recover(future)
                continue
            with self._lock:
                self._tasks.pop(name, None)
                self._futures.pop(name, None)
            return value

    def _recover(self, broken: concurrent.futures.Future[Any]) -> None:
        """Replaces all processes, and queues again what they had not finished."""
        with self._lock:
            if self._stopped:
                raise UserError(
                    "the job was stopped; run the same command again to resume from its shards."
                )
            if broken not in self._futures.values():
                return  # another thread has recovered
            unfinished = [name for name, f in self._futures.items() if _is_broken(f)]
            begun = unfinished[: self.workers]  # tasks begin in the order they were queued
            for name in begun:
                self._attempts[name] = self._attempts.get(name, 0) + 1
            hopeless = [name for name in begun if self._attempts[name] >= MAX_ATTEMPTS]
            if hopeless:
                raise UserError(
                    f"the process that writes shard {hopeless[0]} was killed {MAX_ATTEMPTS} times, "
                    "most likely for want of memory; use fewer processes (--direct_num_workers) "
                    "or a smaller --max_image_mpx; finished shards are kept."
                )
            self._say(
                f"a worker process was killed (out of memory?); going on with {len(unfinished)} "
                f"unfinished shards (attempt {max(self._attempts.values()) + 1} of {MAX_ATTEMPTS})"
            )
            self._restart()
            for name in unfinished:
                self._submit(name)

    def _restart(self) -> None:
        self.lost += 1
        for field in range(_FIELDS):
            self._counts_before[field] += sum(self._counts[field::_WIDTH])
        self._requests_before = self._requests_before.plus(self._requests_now())
        self._executor.shutdown(wait=False, cancel_futures=False)
        self._context = _context(may_fork=False)
        self._start()

    def progress(self) -> tuple[int, int, int, int]:
        """(images, bytes read, rejects, images of shards finished before) so far."""
        with self._lock:
            now = [self._counts_before[i] + sum(self._counts[i::_FIELDS]) for i in range(_FIELDS)]
        return now[0], now[1], now[2], now[3]

    def stored(self) -> Counts:
        """Requests to stores by this process and those of the pool."""
        with self._lock:
            return storage.counts().plus(self._requests_before).plus(self._requests_now())

    def _requests_now(self) -> Counts:
        width = len(Counts._fields)
        return Counts(*(sum(self._requests[field::width]) for field in range(width)))

    @property
    def total(self) -> int:
        """Images of all tasks that were queued."""
        with self._lock:
            return sum(self._sizes.values())

    def kill(self) -> None:
        """Ends all processes at once; what they were writing is lost."""
        with self._lock:
            self._stopped = True
            processes = list((self._executor._processes or {}).values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join(5)


def _context(may_fork: bool) -> Any:
    """How processes start: forked from this one while that is safe, else by a fork server.

    A fork has all that this process has imported. With threads or TensorFlow in it a child
    could wait for a lock that nobody holds any more.
    """
    safe = threading.active_count() == 1 and "tensorflow" not in sys.modules
    if may_fork and safe and sys.platform == "linux":
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["beam_pipeline.shards.sink"])
    return context


def _nothing() -> None:
    return


def _is_broken(future: concurrent.futures.Future[Any]) -> bool:
    return future.done() and isinstance(future.exception(), BrokenProcessPool)


class _ProcessCounters:
    """Counts of one process, in memory that it shares with the main process."""

    def __init__(self, counts: Any, stored: Any, number: int):
        self._counts = counts
        self._first = number * _WIDTH
        self._requests = stored
        self._number = number

    def add(self, *amounts: int) -> None:
        """Counts part of the current task."""
        for field, amount in enumerate(amounts, start=self._first + _FIELDS):
            self._counts[field] += amount

    def finish(self, size: int, reused: bool) -> None:
        """Makes the current task's counts final."""
        current = self._first + _FIELDS
        if reused:
            self._counts[current] = self._counts[current + 3] = size
        for field in range(_FIELDS):
            self._counts[self._first + field] += self._counts[current + field]
            self._counts[current + field] = 0
        width = len(Counts._fields)
        self._requests[self._number * width : (self._number + 1) * width] = storage.counts()


_counters: _ProcessCounters | None = None


def _begin_worker(counts: Any, stored: Any, next_number: Any, environ: dict[str, str]) -> None:
    """Readies a new process."""
    global _counters
    # A fork server may have been started before the settings of a store were known.
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with next_number.get_lock():
        _counters = _ProcessCounters(counts, stored, next_number.value)
        next_number.value += 1
    from beam_pipeline.images.encode import tune_allocator

    tune_allocator()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _run(packed: bytes, size: int) -> Any:
    if _counters is None:
        raise RuntimeError("this process was not begun as a worker")
    task, args = pickle.loads(packed)
    value = task(*args, _counters.add)
    _counters.finish(size, value.reused)
    return value


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
