"""Runs in a process of the pool: does tasks, and notes its progress in shared memory."""

from __future__ import annotations

import contextlib
import gc
import importlib
import mmap
import os
import pickle
import queue
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, MutableSequence
from multiprocessing import connection
from typing import Any, NamedTuple

from beam_pipeline.lean_imports import pyarrow_without_pandas
from imageshards import storage
from imageshards.errors import ImageError, UserError, naming_flags
from imageshards.images.encode import tune_allocator
from imageshards.storage.lease import join_job

# Each process notes numbers of 8 bytes in shared memory. The first COUNTS are the counts of its
# current task: images, bytes read, rejects, images of shards that were finished before. AT is one
# more than the number of the current picture, or 0. SINCE is the time of its beginning in ns.
COUNTS = 4
AT, SINCE, WIDTH = 4, 5, 6


class Watch:
    """Counts and current picture of a task, in memory that the parent process reads meanwhile.

    `crashed` maps the number of a picture that is left out to the reason.
    """

    def __init__(
        self,
        noted: MutableSequence[int] | memoryview | None = None,
        crashed: Mapping[int, str] | None = None,
    ):
        self._noted = [0] * WIDTH if noted is None else noted
        self._crashed = crashed or {}

    def add(self, *amounts: int) -> None:
        """Counts images, bytes read, rejects, and images of shards that were finished before."""
        for field, amount in enumerate(amounts):
            self._noted[field] += amount

    @contextlib.contextmanager
    def picture(self, number: int) -> Iterator[None]:
        """Notes a picture while it is decoded; raises `ImageError` if it has killed processes."""
        if number in self._crashed:
            raise ImageError("decoder_crashed", self._crashed[number])
        # SINCE first: the parent process reads SINCE whenever AT is set.
        self._noted[SINCE] = time.monotonic_ns()
        self._noted[AT] = number + 1
        try:
            yield
        finally:
            self._noted[AT] = 0


class Done(NamedTuple):
    """Answer of a process, with its requests to stores since the last answer."""

    value: Any
    error: Exception | None
    counts: storage.Counts


def serve(tasks_fd: int, memory_fd: int, modules: list[str], job: tuple[str, int] | None) -> None:
    if job is not None:
        join_job(*job)
    connected = connection.Connection(tasks_fd)
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connected, tasks), daemon=True).start()
    noted = memoryview(mmap.mmap(memory_fd, 0)).cast("q")
    tune_allocator()
    # A task has thousands of references, which the garbage collector would search in vain.
    gc.set_threshold(100_000)
    # The process waits for its first task for a second or more.
    for module in modules:
        importlib.import_module(module)
    pyarrow_without_pandas()
    known = None
    while True:
        environ, names_flags, crashed, packed = tasks.get()
        # Some settings of stores are in the environment, which the parent may have changed.
        if environ != known:
            known = environ
            os.environ.clear()
            os.environ.update(environ)
            storage.forget_clients()
        with naming_flags(names_flags):
            value, error = None, None
            try:
                task, batch, args, settings = pickle.loads(packed)
                with storage.using(settings):
                    value = task(batch, *args, Watch(noted, crashed))
            except Exception as e:  # noqa: BLE001  # the parent process raises the error
                error = _sendable(e)
            connected.send(Done(value, error, storage.unreported()))


def _receive(connected: connection.Connection, tasks: queue.SimpleQueue[Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            tasks.put(connected.recv())
    # The parent process has ended. This process must not go on writing, so it exits immediately.
    os._exit(1)


def _sendable(e: Exception) -> Exception:
    """Returns an error that can be pickled, with the traceback of this process."""
    if not isinstance(e, UserError):  # these are shown without a traceback
        e.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(e))
    except (pickle.PickleError, TypeError, AttributeError, ValueError):
        return RuntimeError(traceback.format_exc())
    return e
