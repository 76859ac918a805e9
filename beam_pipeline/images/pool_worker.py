"""What runs in a process of the pool: it does tasks, and notes for others how far it is."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import pickle
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing import connection
from typing import Any, NamedTuple

from beam_pipeline import beam_files
from beam_pipeline.images.encode import tune_allocator
from imageshards import storage
from imageshards.errors import ImageError, UserError

# Each process counts in shared memory of its own, of which these are the parts: images, bytes
# read, rejects and images of shards that were finished before; of its finished tasks, then of
# its current one; then one more than the number of the picture it is at, and since when, in ns.
FIELDS = 4
AT, SINCE, WIDTH = 8, 9, 10


class Watch:
    """Counts and place of a task, in memory that others can read while it works.

    Args:
        memory: Where; None for a task that nobody watches.
        first: Where in it.
        crashed: Number of a picture → what it has done to the processes that decoded it.
    """

    def __init__(
        self,
        memory: memoryview | None = None,
        first: int = 0,
        crashed: Mapping[int, str] | None = None,
    ):
        self._memory = memoryview(bytearray(8 * WIDTH)).cast("q") if memory is None else memory
        self._first = first
        self._crashed = crashed or {}

    def add(self, *amounts: int) -> None:
        """Counts images, bytes read, rejects, and images of shards finished before."""
        for field, amount in enumerate(amounts, start=self._first + FIELDS):
            self._memory[field] += amount

    @contextlib.contextmanager
    def picture(self, number: int) -> Iterator[None]:
        """Entered while a picture of the batch is decoded.

        Raises:
            ImageError: `decoder_crashed`: it has killed other processes.
        """
        if number in self._crashed:
            raise ImageError("decoder_crashed", self._crashed[number])
        self._memory[self._first + SINCE] = time.monotonic_ns()
        self._memory[self._first + AT] = number + 1
        try:
            yield
        finally:
            self._memory[self._first + AT] = 0

    def finish(self) -> None:
        """Makes the counts final."""
        for field in range(self._first, self._first + FIELDS):
            self._memory[field] += self._memory[field + FIELDS]
            self._memory[field + FIELDS] = 0


class Done(NamedTuple):
    """What a process answers.

    Attributes:
        counts: Its requests to stores since the last answer.
    """

    value: Any
    error: Exception | None
    counts: storage.Counts


def serve(
    tasks_fd: int, memory_fd: int, lifeline_fd: int, number: int, job: tuple[str, int] | None
) -> None:
    """Does tasks until the process that started this one is gone."""
    if job is not None:
        storage.join_job(*job)
    threading.Thread(target=_die_with_parent, args=(lifeline_fd,), daemon=True).start()
    memory = memoryview(mmap.mmap(memory_fd, 0)).cast("q")
    tune_allocator()
    gc.set_threshold(100_000)  # thousands of references are no garbage
    known: tuple[dict[str, str], dict[str, Any]] | None = None
    tasks = connection.Connection(tasks_fd)
    with contextlib.suppress(EOFError):
        while True:
            settings, crashed = pickle.loads(tasks.recv_bytes())
            if settings != known:
                known = settings
                _use(*settings)
            watch = Watch(memory, number * WIDTH, crashed)
            tasks.send(_do_task(tasks.recv_bytes(), watch))


def _use(environ: Mapping[str, str], flags: Mapping[str, Any]) -> None:
    """Takes over what the parent knows of stores."""
    os.environ.clear()
    os.environ.update(environ)
    beam_files.use_flags(flags)
    storage.forget_clients()  # settings may be in the environment, too


def _die_with_parent(lifeline_fd: int) -> None:
    os.read(lifeline_fd, 1)
    os._exit(1)


def _do_task(packed: bytes, watch: Watch) -> Done:
    value, error = None, None
    try:
        task, batch, args = pickle.loads(packed)
        value = task(batch, *args, watch)
        watch.finish()
    except Exception as e:  # noqa: BLE001  # it is raised where the result is asked for
        error = _sendable(e)
    return Done(value, error, storage.unreported())


def _sendable(e: Exception) -> Exception:
    """An error that says where in this process it was raised."""
    trace = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(e))
    except (pickle.PickleError, TypeError, AttributeError, ValueError):
        return RuntimeError(trace)
    if not isinstance(e, UserError):
        e.add_note(trace)
    return e
