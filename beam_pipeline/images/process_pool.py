"""Processes of this machine that decode pictures, and survive what a picture does to them.

On every runner all pictures are decoded in such processes. A picture may kill the process that
decodes it, or keep it for ever. So each process notes, where the one that started it can read it,
at which picture it is. A picture that ends two processes in turn is left out, and named. SIGKILL
alone is no evidence, as the kernel sends it to any process when other programs take the memory.
Then the picture is decoded again while no other process of the pool decodes one, and is left out
only if its process dies once more.
"""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import contextlib
import json
import logging
import mmap
import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from beam_pipeline.images import pool_worker
from beam_pipeline.images.pool_worker import AT, COUNTS, SINCE, WIDTH, Done, Watch
from beam_pipeline.images.read import read_images
from beam_pipeline.option_texts import beam_flag
from beam_pipeline.options import UrlOptions
from imageshards import storage
from imageshards.errors import Arg, ImageError, UserError, names_flags
from imageshards.images.encode import encode_image
from imageshards.images.options import ImageOptions
from imageshards.storage import OutputLock
from imageshards.storage.concurrency import available_cores

# A shard is given up after this many killed processes, those that a picture is to blame for not
# counted. So many that a build survives any five kills, even if all should meet the same shard.
MAX_ATTEMPTS = 6
# A picture that has ended this many processes is left out.
TRIES = 2
# Generous: a machine may be busy, and a second time leaves the picture out.
PICTURE_SEC = 300.0
# A process may write a core dump before it ends.
_ENDING_SEC = 20.0

_MEMORY_REMEDY = (
    "if the system was out of memory, use fewer processes ("
    + beam_flag("direct_num_workers")
    + ") or a smaller "
    + Arg("max_image_mpx")
    + "; "
)
_SIGNALS = {number.value: number.name for number in signal.Signals}

# Neither `multiprocessing` nor `ProcessPoolExecutor`: they run the main module again, which may be
# a script with a pipeline, and one killed process costs the executor all others.
_START = (
    "import json, sys; sys.path[:], given = json.loads(sys.argv[1]); "
    f"from {pool_worker.__name__} import serve; serve(*given)"
)

_LOGGER = logging.getLogger(__name__)


class LocalPool:
    """A pool of processes, and counts of what they have done.

    Args:
        workers: Number of processes, at most; each is started when it is needed.
        say: Called with a sentence when a process was lost.
        lock: The output's. Each process joins the job that holds it: it is free only when the last
            of them has ended, and none writes to a store when it is lost.
        picture_sec: A process that is longer at a picture is killed.

    Attributes:
        is_of_job: Whether a build holds it, for which no other pool may write.
        total: Images of all shards that were queued.
        is_stopped: Whether its processes were ended, and no other one is started.
    """

    def __init__(
        self,
        workers: int,
        say: Callable[[str], None] = _LOGGER.warning,
        lock: OutputLock | None = None,
        picture_sec: float = PICTURE_SEC,
    ):
        self.is_of_job = False
        self.total = 0
        self._say = say
        self._picture_sec = picture_sec
        self._done = [0] * COUNTS
        self._lock = lock
        self._turns = open(storage.shared_memory(2), "r+b", buffering=0)  # closed by `kill`
        self.is_stopped = False
        self._changing = threading.Lock()
        self._workers: list[_Worker] = []
        # The one that was idle last comes first: few tasks keep few processes, which are warm.
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._idle.put(None)  # one that is not started yet
        self._threads = concurrent.futures.ThreadPoolExecutor(workers, "shard")

    def __enter__(self) -> LocalPool:
        """Starts all processes, as those of a job."""
        self.is_of_job = True
        _pools.append(self)
        started = [self._ready(self._idle.get()) for _ in range(self._idle.qsize())]
        for worker in started:
            self._idle.put(worker)
        return self

    def __exit__(self, *error: object) -> None:
        _pools.remove(self)
        self.kill()

    def submit(
        self, name: str, task: Callable[..., Any], batch: Any, *args: Any, size: int = 0
    ) -> concurrent.futures.Future[Any]:
        """Queues `task(batch, *args, watch)`, a function of a module; the future gives its result.

        The future raises `UserError` where its processes are killed again and again. `name` is the
        shard's. `batch.refs` are its pictures, each with a `place`; `size` of them count as
        `total`.
        """
        # Pickled, the references of a dataset take a sixth of the memory while they wait.
        packed = pickle.dumps((task, batch, args, dict(storage.settings())), protocol=5)
        self.total += size
        return self._threads.submit(self._do, name, packed)

    def results(self, queued: list[concurrent.futures.Future[Any]]) -> Iterator[Any]:
        """Takes tasks from a list and yields their results, in order.

        When a task fails, those that were not begun are dropped. Ctrl-C ends all processes at once.
        """
        try:
            while queued:
                yield queued.pop(0).result()
        except KeyboardInterrupt:
            self.kill()
            raise
        finally:
            for future in queued:
                future.cancel()

    def _do(self, name: str, packed: bytes) -> Any:
        """Has a task done by an idle process, by another one if that is killed."""
        worker = self._idle.get()
        blame = _Blame()
        deaths = 0
        try:
            while deaths < MAX_ATTEMPTS:
                worker = self._ready(worker)
                try:
                    done = worker.call(packed, blame, self._picture_sec)
                except (EOFError, OSError):
                    death = worker.death()
                else:
                    storage.count(*done.counts)
                    if done.error is not None:
                        raise done.error
                    self._count(worker)
                    return done.value
                deaths += 1 - blame.add(death)
                if deaths < MAX_ATTEMPTS and not self.is_stopped:
                    self._say(_lost(name, packed, death, blame, deaths))
            remedy = _MEMORY_REMEDY if death.may_be_memory else ""
            raise UserError(
                f"the process that writes shard {name} {death.how} after {MAX_ATTEMPTS - 1} others "
                "were lost",
                remedy=remedy + "finished shards are kept",
            )
        finally:
            self._idle.put(worker)

    def _ready(self, worker: _Worker | None) -> _Worker:
        """The process, or another one in place of one that has ended.

        Raises:
            UserError: The pool was stopped.
        """
        with self._changing:
            if self.is_stopped:
                raise UserError(
                    "the job was stopped",
                    remedy="run the same command again to resume from its shards",
                )
            if worker is not None and worker.has_ended():
                worker.end(_ENDING_SEC)
                self._workers.remove(worker)
                worker = None
            if worker is None:
                worker = _Worker(self._turns.fileno(), self._lock)
                self._workers.append(worker)
            worker.forget()
            return worker

    def _count(self, worker: _Worker) -> None:
        """Makes the counts of its task final."""
        with self._changing:
            self._done = [sum(pair) for pair in zip(self._done, worker.noted, strict=False)]
            worker.forget()

    def progress(self) -> tuple[int, int, int, int]:
        """(images, bytes read, rejects, images of shards finished before) so far."""
        with self._changing:
            noted = [self._done, *(worker.noted[:COUNTS] for worker in self._workers)]
            images, read_bytes, rejects, before = map(sum, zip(*noted, strict=True))
        return images, read_bytes, rejects, before

    def kill(self) -> None:
        """Ends all processes at once; what they were writing is lost."""
        with self._changing:
            self.is_stopped = True
            for worker in self._workers:
                worker.end(0)
        self._threads.shutdown(cancel_futures=True)
        self._turns.close()


# Of the pools of this process the last one is used. A build on this machine begins with one. A
# worker of Beam's on a cluster, or a pipeline of somebody's own, gets one when it needs it: its
# pictures must not be decoded by Beam's own process.
_pools: list[LocalPool] = []
_making = threading.Lock()
# A pipeline that runs in the process that made it, as with FnApiRunner, has this name in its graph.
THIS_PROCESS = uuid.uuid4().hex


def own_pool() -> LocalPool:
    """The pool of this process; without a job, one that starts a process per core as needed."""
    with _making:
        if not _pools or (_pools[-1].is_stopped and not _pools[-1].is_of_job):
            _pools.append(LocalPool(available_cores()))
            atexit.register(_pools[-1].kill)
        return _pools[-1]


def _forget_pools() -> None:
    """In a fork: the processes are the parent's, and end with it alone."""
    for worker in (worker for pool in _pools for worker in pool._workers):
        worker.connection.close()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_pools)


def encoded_sizes(files: Any, options: ImageOptions, urls: UrlOptions) -> list[int]:
    """Bytes of the pictures of `files.refs`, as records hold them; of those that become one."""
    pool = own_pool()
    sizes: list[int]
    (sizes,) = pool.results([pool.submit("of a sample", _sizes, files, options, urls)])
    return sizes


def _sizes(files: Any, options: ImageOptions, urls: UrlOptions, watch: Watch) -> list[int]:
    sizes: list[int] = []
    for number, (_, data) in enumerate(read_images(files.refs, options.max_bytes, urls)):
        # Why a picture becomes none is told, and counted, when its shard is written.
        with contextlib.suppress(ImageError), watch.picture(number):
            if not isinstance(data, ImageError):
                sizes.append(len(encode_image(data, options).data))
    return sizes


class _Death(NamedTuple):
    """How a process has ended.

    Attributes:
        picture: Number of the picture that it was at; None for none.
        how: Goes on after "the process".
        deed: What is kept of the picture: the same whenever it does the same.
        may_be_memory: Whether the system may have been out of memory.
    """

    picture: int | None
    how: str
    deed: str
    may_be_memory: bool


class _Blame:
    """Pictures of a task that ended processes.

    Attributes:
        crashed: Pictures that are left out → why.
        alone: Pictures to decode while no other process of the pool decodes one.
    """

    def __init__(self) -> None:
        self.crashed: dict[int, str] = {}
        self.alone: set[int] = set()
        self._tries: collections.Counter[int] = collections.Counter()

    def add(self, death: _Death) -> int:
        """Notes a death; returns how many deaths a picture that is left out now is to blame for."""
        if death.picture is None:
            return 0
        self._tries[death.picture] += 1
        tries, was_alone = self._tries[death.picture], death.picture in self.alone
        if tries >= TRIES and (was_alone or not death.may_be_memory):
            self.crashed[death.picture] = (
                f"the process that decodes it {death.deed} in each of {tries} tries"
                + ", the last time while no other picture was decoded" * was_alone
            )
            return tries
        if death.may_be_memory:
            self.alone.add(death.picture)
        return 0


def _lost(name: str, packed: bytes, death: _Death, blame: _Blame, deaths: int) -> str:
    """What to say of a process that was lost."""
    again = f"shard {name} is written again"
    if death.picture is None:
        remedy = "; was the system out of memory?" if death.may_be_memory else ""
        return f"a worker process {death.how}{remedy}; {again} ({deaths} of {MAX_ATTEMPTS} tries)"
    _, batch, *_ = pickle.loads(packed)
    place = batch.refs[death.picture].place
    fate = ""
    if death.picture in blame.crashed:
        fate = " without that picture"
    elif death.picture in blame.alone:
        fate = ", and that picture is decoded while no other one is"
    return f"a worker process {death.how} while it decoded {place!r}; {again}{fate}"


class _Worker:
    """A process that does one task after the other, as seen by the one that started it."""

    def __init__(self, turns_fd: int, lock: OutputLock | None):
        size_bytes = 8 * WIDTH
        memory_fd = storage.shared_memory(size_bytes)
        self.noted = memoryview(mmap.mmap(memory_fd, size_bytes)).cast("q")
        self.connection, its_end = multiprocessing.Pipe()
        self._hung_sec: float | None = None
        job = None if lock is None else (lock.path, lock.fileno())
        fds = [its_end.fileno(), memory_fd, turns_fd]
        given = [*map(os.fsdecode, sys.path)], [*fds, job]  # people append a pathlib.Path
        # Blocked for good in what is started: the process that starts it answers Ctrl-C.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(given)],
                stdin=subprocess.DEVNULL,
                pass_fds=[*fds, *(job[1:] if job else ())],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            its_end.close()
            os.close(memory_fd)

    def forget(self) -> None:
        """Clears what was noted of a task that is over."""
        for field in range(WIDTH):
            self.noted[field] = 0

    def call(self, packed: bytes, blame: _Blame, picture_sec: float) -> Done:
        """What the process answers to a task.

        Raises:
            EOFError, OSError: It has ended.
        """
        told = dict(os.environ), names_flags(), blame.crashed, blame.alone, packed
        self.connection.send(told)
        wait_sec = picture_sec
        while not self.connection.poll(wait_sec):
            at_picture_sec = (time.monotonic_ns() - self.noted[SINCE]) / 1e9
            wait_sec = picture_sec
            if self.noted[AT] and at_picture_sec >= picture_sec:
                self._hung_sec = picture_sec
                self._process.kill()
            elif self.noted[AT]:
                wait_sec -= at_picture_sec
        done: Done = self.connection.recv()
        return done

    def death(self) -> _Death:
        """How it has ended, by its exit code, or by the time that it was at one picture."""
        picture = self.noted[AT] - 1 if self.noted[AT] else None
        code = self.end(_ENDING_SEC)
        if self._hung_sec is not None:
            how = f"was at one picture for more than {self._hung_sec:g} s"
            return _Death(picture, how, f"took longer than {self._hung_sec:g} s", False)
        how = f"was killed by signal {-code} ({_SIGNALS.get(-code, 'unknown')})"
        if code == -signal.SIGKILL:
            deed = "was killed (SIGKILL), as the system does when it is out of memory,"
            return _Death(picture, how, deed, True)
        # By whatever signal: a broken heap is noticed by one or another.
        return _Death(
            picture, how if code < 0 else f"ended with exit code {code}", "crashed", False
        )

    def has_ended(self) -> bool:
        """Whether a process without a task has been killed."""
        return self._process.poll() is not None or self.connection.poll()

    def end(self, patience_sec: float) -> int:
        """Kills the process, if it does not end by itself meanwhile; its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(patience_sec)
        self._process.kill()
        return self._process.wait()
