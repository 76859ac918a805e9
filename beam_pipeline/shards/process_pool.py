"""Processes of this machine that write shards.

Beam's own local mode `multi_processing` starts interpreters that import Beam again for every
job, divides the work before it begins, and ends the job when one of them is killed; Python's
`ProcessPoolExecutor` drops the work of all its processes when one is killed. Here the processes
are forked, take the next shard when they are free, and a killed one costs its own shard another
attempt, nobody else's.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection, reduction
from typing import Any

from imageshards import storage
from imageshards.errors import UserError
from imageshards.progress import note_activity
from imageshards.storage import Counts

# After this many killed processes a shard is taken to be their cause. So many that a build
# survives any five kills, even if all of them should meet the same shard.
MAX_ATTEMPTS = 6
# A process is started by a fork server when this one has threads; it may be killed, too.
_STARTS = 5

# Each process counts in shared memory of its own, of which these are the parts: images, bytes
# read, rejects and images of shards that were finished before; of its finished tasks, then of
# its current one; then its requests to stores.
_FIELDS = 4
_REQUESTS = 2 * _FIELDS
_WIDTH = _REQUESTS + len(Counts._fields)

Task = Callable[..., Any]

_pool: LocalPool | None = None


def active() -> LocalPool | None:
    """The pool of this process, if it has one."""
    return _pool


class LocalPool:
    """A pool of processes, and counts of what they have done.

    Make it before this process has threads: then its processes are forks, which have all that
    this one has imported.

    Args:
        workers: Number of processes.
        say: Called with a sentence when a process was lost.
        lock_fd: Descriptor of the output's lock. Each process keeps a copy open, so that the
            lock is free only when the last of them has ended.
    """

    def __init__(self, workers: int, say: Callable[[str], None], lock_fd: int | None = None):
        self.total = 0  # images of all tasks that were queued
        self._say = say
        self._lock_fd = None if lock_fd is None else _Descriptor(os.dup(lock_fd))
        self._counts = multiprocessing.RawArray("q", workers * _WIDTH)
        self._stopped = False
        self._changing = threading.Lock()
        context = _context(may_fork=True)
        self._workers = [self._start(number, context) for number in range(workers)]
        self._idle: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(workers):
            self._idle.put(number)
        self._threads = concurrent.futures.ThreadPoolExecutor(workers, "shard")
        self._futures: dict[str, concurrent.futures.Future[Any]] = {}

    def __enter__(self) -> LocalPool:
        global _pool
        _pool = self
        return self

    def __exit__(self, *error: object) -> None:
        global _pool
        _pool = None
        self.kill()

    def submit(self, name: str, task: Task, *args: Any, size: int) -> None:
        """Queues `task(*args, progress)` under a name; `size` is its number of images."""
        note_activity("writing shards")
        # Pickled, the references of a data set take a sixth of the memory while they wait.
        packed = pickle.dumps((task, args, size), protocol=5)
        self.total += size
        self._futures[name] = self._threads.submit(self._do, name, packed)

    def result(self, name: str) -> Any:
        """Waits for a task.

        Raises:
            UserError: Its processes are killed again and again.
        """
        return self._futures.pop(name).result()

    def _do(self, name: str, packed: bytes) -> Any:
        """Has a task done by an idle process, by another one if that is killed."""
        number = self._idle.get()
        try:
            for attempt in range(1, MAX_ATTEMPTS + 1):
                if self._workers[number].has_ended():  # not the task's fault
                    self._replace(number)
                try:
                    value, error = self._workers[number].call(packed)
                except (EOFError, OSError):
                    if attempt < MAX_ATTEMPTS:
                        self._replace(number)
                        self._say(
                            f"a worker process was killed (out of memory?); shard {name} is "
                            f"written again (attempt {attempt + 1} of {MAX_ATTEMPTS})"
                        )
                    continue
                if error is not None:
                    raise error
                return value
            raise UserError(
                f"the process that writes shard {name} was killed {MAX_ATTEMPTS} times, most "
                "likely for want of memory; use fewer processes (--direct_num_workers) or a "
                "smaller --max_image_mpx; finished shards are kept."
            )
        finally:
            self._idle.put(number)

    def _start(self, number: int, context: Any) -> _Worker:
        counts = self._counts
        return _Worker(context, (counts, number, dict(os.environ), self._lock_fd))

    def _replace(self, number: int) -> None:
        """Starts another process in place of one that has ended.

        Raises:
            UserError: The pool was stopped.
        """
        with self._changing:
            if self._stopped:
                raise UserError(
                    "the job was stopped; run the same command again to resume from its shards."
                )
            self._workers[number].end()
            first = number * _WIDTH
            self._counts[first + _FIELDS : first + _REQUESTS] = [0] * _FIELDS
            for attempt in range(1, _STARTS + 1):
                try:
                    self._workers[number] = self._start(number, _context(may_fork=False))
                    return
                except (EOFError, OSError):  # the fork server was killed just now
                    if attempt == _STARTS:
                        raise
                    time.sleep(0.1 * attempt)

    def progress(self) -> tuple[int, int, int, int]:
        """(images, bytes read, rejects, images of shards finished before) so far."""
        finished, current = self._sums(0, _FIELDS), self._sums(_FIELDS, _REQUESTS)
        images, read_bytes, rejects, before = map(sum, zip(finished, current, strict=True))
        return images, read_bytes, rejects, before

    def stored(self) -> Counts:
        """Requests to stores by this process and those of the pool."""
        return storage.counts().plus(Counts(*self._sums(_REQUESTS, _WIDTH)))

    def _sums(self, first: int, end: int) -> list[int]:
        return [sum(self._counts[field::_WIDTH]) for field in range(first, end)]

    def kill(self) -> None:
        """Ends all processes at once; what they were writing is lost."""
        with self._changing:
            self._stopped = True
            for worker in self._workers:
                worker.end()
        self._threads.shutdown(cancel_futures=True)
        if self._lock_fd is not None:
            self._lock_fd.close()


class _Worker:
    """A process that does one task after the other, as seen by the main process.

    Raises:
        EOFError, OSError: The fork server that starts it was killed.
    """

    def __init__(self, context: Any, args: tuple[Any, ...]):
        self._connection, its_end = multiprocessing.Pipe()
        with its_end:
            self._process = context.Process(target=_serve, args=(its_end, *args), daemon=True)
            self._process.start()

    def call(self, packed: bytes) -> tuple[Any, Exception | None]:
        """The value or the error of a task.

        Raises:
            EOFError, OSError: The process was killed.
        """
        self._connection.send_bytes(packed)
        value, error = self._connection.recv()
        return value, error

    def has_ended(self) -> bool:
        """Whether a process without a task has been killed."""
        return self._connection.poll()

    def end(self) -> None:
        """Kills the process, if it still runs."""
        self._process.kill()
        self._process.join(5)
        # Not closed: a thread may be waiting at the connection, which ends with the process.


class _Descriptor:
    """An open file that a child process is given a copy of, however it is started."""

    def __init__(self, fd: int):
        self._fd = fd

    def close(self) -> None:
        os.close(self._fd)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self._fd),)


def _received(duplicate: Any) -> _Descriptor:
    return _Descriptor(duplicate.detach())


def _context(may_fork: bool) -> Any:
    """How processes start: forked from this one while that is safe, else by a fork server.

    With threads or TensorFlow in this process a fork could wait for a lock that nobody holds
    any more.
    """
    safe = threading.active_count() == 1 and "tensorflow" not in sys.modules
    if may_fork and safe and sys.platform == "linux":
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["beam_pipeline.shards.sink"])
    return context


# What runs in the processes.


def _serve(
    tasks: connection.Connection,
    counts: Sequence[int],
    number: int,
    environ: dict[str, str],
    lock_fd: _Descriptor | None,
) -> None:
    """Does tasks until the main process is gone; holds the output's lock as long."""
    # A fork server may have been started before the settings of a store were known.
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    storage.reset_counts()
    from beam_pipeline.images.encode import tune_allocator

    tune_allocator()
    counters = _Counters(counts, number)
    with contextlib.suppress(EOFError):
        while True:
            tasks.send(_do_task(tasks.recv_bytes(), counters))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _do_task(packed: bytes, counters: _Counters) -> tuple[Any, Exception | None]:
    try:
        task, args, size = pickle.loads(packed)
        value = task(*args, counters.add)
        counters.finish(size, value.reused)
        return value, None
    except Exception as e:  # noqa: BLE001  # it is raised where the result is asked for
        trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(e))
        except (pickle.PickleError, TypeError, AttributeError, ValueError):
            return None, RuntimeError(trace)
        if not isinstance(e, UserError):
            e.add_note(trace)  # of this process: the error is raised in another one
        return None, e


class _Counters:
    """Counts of one process, in memory that it shares with the main process."""

    def __init__(self, counts: Any, number: int):
        self._counts = counts
        self._first = number * _WIDTH

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
        for field, amount in enumerate(storage.unreported(), start=self._first + _REQUESTS):
            self._counts[field] += amount


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
