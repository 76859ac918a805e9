"""What runs in a process of the pool: it does tasks, and notes for others how far it is."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import mmap
import os
import pickle
import queue
import threading
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, MutableSequence
from multiprocessing import connection
from typing import Any, NamedTuple

from imageshards import storage
from imageshards.errors import ImageError, UserError, naming_flags
from imageshards.images.encode import tune_allocator

# What each process notes in shared memory, as numbers of 8 bytes: images, bytes read, rejects and
# images of shards that were finished before, of its current task; then one more than the number of
# the picture it is at, and since when, in ns.
COUNTS = 4
AT, SINCE, WIDTH = 4, 5, 6


class Watch:
    """Counts and place of a task, in memory that others can read while it works.

    `crashed` maps the numbers of pictures that are left out to the reasons. The pictures of
    `alone` are decoded while no other process of the pool decodes one; all processes of the pool
    share the file `turns_fd`.
    """

    def __init__(
        self,
        noted: MutableSequence[int] | memoryview | None = None,
        crashed: Mapping[int, str] | None = None,
        alone: Collection[int] = (),
        turns_fd: int | None = None,
    ):
        self._noted = [0] * WIDTH if noted is None else noted
        self._crashed = crashed or {}
        self._alone = alone
        self._turns_fd = turns_fd

    def add(self, *amounts: int) -> None:
        """Counts images, bytes read, rejects, and images of shards finished before."""
        for field, amount in enumerate(amounts):
            self._noted[field] += amount

    @contextlib.contextmanager
    def picture(self, number: int) -> Iterator[None]:
        """Entered while a picture of the batch is decoded.

        Raises:
            ImageError: `decoder_crashed`: the picture has killed other processes.
        """
        if number in self._crashed:
            raise ImageError("decoder_crashed", self._crashed[number])
        with self._turn(is_alone=number in self._alone):
            self._noted[SINCE] = time.monotonic_ns()
            self._noted[AT] = number + 1
            try:
                yield
            finally:
                self._noted[AT] = 0

    @contextlib.contextmanager
    def _turn(self, is_alone: bool) -> Iterator[None]:
        """Holds a readers-writer lock of the pool, which the kernel releases for a killed process.

        The second byte of the file is the lock. Every process passes through the first byte, where
        a process that wants to be alone keeps the others out until it has the lock. Without the
        first byte it would wait for as long as the others overlap.
        """
        if self._turns_fd is None:
            yield
            return
        mode = fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH
        fcntl.lockf(self._turns_fd, mode, 1, 0)
        fcntl.lockf(self._turns_fd, mode, 1, 1)
        fcntl.lockf(self._turns_fd, fcntl.LOCK_UN, 1, 0)
        try:
            yield
        finally:
            fcntl.lockf(self._turns_fd, fcntl.LOCK_UN, 1, 1)


class Done(NamedTuple):
    """What a process answers, with its requests to stores since the last answer."""

    value: Any
    error: Exception | None
    counts: storage.Counts


def serve(tasks_fd: int, memory_fd: int, turns_fd: int, job: tuple[str, int] | None) -> None:
    """Does tasks until the process that started this one is gone."""
    if job is not None:
        storage.join_job(*job)
    connected = connection.Connection(tasks_fd)
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connected, tasks), daemon=True).start()
    noted = memoryview(mmap.mmap(memory_fd, 0)).cast("q")
    tune_allocator()
    gc.set_threshold(100_000)  # thousands of references are no garbage
    known = None
    while True:
        environ, names_flags, crashed, alone, packed = tasks.get()
        if environ != known:  # some settings of stores are there
            known = environ
            os.environ.clear()
            os.environ.update(environ)
            storage.forget_clients()
        with naming_flags(names_flags):
            connected.send(_do_task(packed, Watch(noted, crashed, alone, turns_fd)))


def _receive(connected: connection.Connection, tasks: queue.SimpleQueue[Any]) -> None:
    """Ends this process with the one that started it, at once: it must not go on writing."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            tasks.put(connected.recv())
    os._exit(1)


def _do_task(packed: bytes, watch: Watch) -> Done:
    value, error = None, None
    try:
        task, batch, args, settings = pickle.loads(packed)
        with storage.using(settings):
            value = task(batch, *args, watch)
    except Exception as e:  # noqa: BLE001  # it is raised where the result is asked for
        error = _sendable(e)
    return Done(value, error, storage.unreported())


def _sendable(e: Exception) -> Exception:
    """An error that says where in this process it was raised."""
    if not isinstance(e, UserError):
        e.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(e))
    except (pickle.PickleError, TypeError, AttributeError, ValueError):
        return RuntimeError(traceback.format_exc())
    return e
