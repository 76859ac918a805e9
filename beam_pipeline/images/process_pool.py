"""Decodes pictures in processes of this machine, and survives pictures that kill a process.

On every runner all pictures are decoded in these processes. A picture may kill its process or never
finish. So each process notes its current picture where the parent process can read the number. A
picture that ends two processes in turn is left out and named. SIGKILL alone is no evidence, as the
kernel sends it to any process when the memory is full. Then the shard is written again while no
other one is, and the picture is left out only if its process is killed once more.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from beam_pipeline.images import pool_worker
from beam_pipeline.images.pool_worker import AT, COUNTS, SINCE, WIDTH, Done, Watch
from beam_pipeline.images.read import read_images
from beam_pipeline.option_texts import beam_flag
from beam_pipeline.options import UrlOptions
from imageshards import storage
from imageshards.errors import Arg, ImageError, UserError, names_flags
from imageshards.images.encode import encode_image
from imageshards.images.options import ImageOptions
from imageshards.storage.concurrency import available_cores
from imageshards.storage.lease import Job

# A shard is given up after this many killed processes, not counting kills by a picture. A build
# therefore survives any five kills, even if all of them hit the same shard.
MAX_ATTEMPTS = 6
# A picture that has ended this many processes is left out.
TRIES = 2
# Generous, as a machine may be busy, and a picture that takes this long twice is left out.
PICTURE_SEC = 300.0
# A process may write a core dump before it ends.
_ENDING_SEC = 20.0

_SAMPLED = 8  # pictures of a sample that one process encodes

_MEMORY_REMEDY = "if the system was out of memory, use a smaller " + Arg("max_image_mpx")
_MEMORY_REMEDY += " or fewer processes (" + beam_flag("direct_num_workers") + "); "
_SIGNALS = {number.value: number.name for number in signal.Signals}

# `multiprocessing` and `ProcessPoolExecutor` would run the main module again, which may be a script
# with a pipeline. The executor also ends all its processes when one is killed.
_START = (
    "import json, sys; sys.path[:], given = json.loads(sys.argv[1]); "
    f"from {pool_worker.__name__} import serve; serve(*given)"
)

_LOGGER = logging.getLogger(__name__)


class LocalPool:
    """Pool of processes, each started when it is needed, with counts of their work.

    `say` gets a sentence when a process was lost. Each process joins the job that holds the `lock`
    of the output, so the lock is free only after the last process has ended, and no process writes
    to a store without it. A process that decodes one picture longer than `picture_sec` is killed.
    Each process imports the `modules` of its tasks when it starts.
    """

    def __init__(
        self,
        workers: int,
        say: Callable[[str], None] = _LOGGER.warning,
        lock: Job | None = None,
        picture_sec: float = PICTURE_SEC,
        modules: Sequence[str] = (),
    ):
        self.is_of_job = False  # a build holds the pool, which is not replaced when it was stopped
        self.total = 0  # images of all shards that were queued
        self._say = say
        self._picture_sec = picture_sec
        self._done = [0] * COUNTS
        self._lock = lock
        self._modules = list(modules)
        # A task has one turn while it runs, or all of them to run alone.
        self._turns = threading.Semaphore(workers)
        self.size = workers
        self._taking_turns = threading.Lock()
        self.is_stopped = False  # the processes were ended, and none is started again
        self._changing = threading.Lock()
        self._workers: list[_Worker] = []
        # The process that was idle last comes first, so that few tasks keep few processes warm.
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._idle.put(None)  # a process that is not started yet
        self._threads = concurrent.futures.ThreadPoolExecutor(workers, "shard")

    def __enter__(self) -> LocalPool:
        """Makes the pool belong to a build, whose end ends the processes."""
        self.is_of_job = True
        _pools.append(self)
        return self

    def start(self) -> None:
        """Starts all processes before they are needed."""
        for worker in [self._ready(self._idle.get()) for _ in range(self._idle.qsize())]:
            self._idle.put(worker)

    def __exit__(self, *error: object) -> None:
        _pools.remove(self)
        self.kill()

    def submit(
        self, name: str, task: Callable[..., Any], batch: Any, *args: Any, size: int = 0
    ) -> concurrent.futures.Future[Any]:
        """Queues `task(batch, *args, watch)`, a function of a module, and returns a future.

        `name` is the shard, for messages. `batch.refs` are the pictures, each with a `place`;
        `size` is added to `total`. The future raises `UserError` if too many processes are killed.
        """
        # Pickled references take a sixth of the memory while they wait.
        packed = pickle.dumps((task, batch, args, dict(storage.settings())), protocol=5)
        self.total += size
        return self._threads.submit(self._do, name, packed)

    def results(self, queued: list[concurrent.futures.Future[Any]]) -> Iterator[Any]:
        """Takes tasks from a list, yields their results; a failed one drops those not begun."""
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
        """Passes a task to an idle process, and to another process if that is killed."""
        worker = self._idle.get()
        blame = _Blame()
        deaths = 0
        try:
            while deaths < MAX_ATTEMPTS:
                with self._turn(is_alone=bool(blame.suspects)):
                    worker = self._ready(worker)
                    done = worker.call(packed, blame.crashed, self._picture_sec)
                if isinstance(done, Done):
                    storage.count(*done.counts)
                    if done.error is not None:
                        raise done.error
                    # Once the counts of the task are in the total, its notes must not count again.
                    with self._changing:
                        counts = zip(self._done, worker.noted, strict=False)
                        self._done = [sum(pair) for pair in counts]
                        worker.forget()
                    return done.value
                death = done
                # Deaths that a picture caused do not count as attempts of the shard.
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

    @contextlib.contextmanager
    def _turn(self, is_alone: bool) -> Iterator[None]:
        """Waits until a task may run; `is_alone` if no other task may run meanwhile."""
        number = self.size if is_alone else 1
        with self._taking_turns:  # no task begins while another one waits for all turns
            for _ in range(number):
                self._turns.acquire()
        try:
            yield
        finally:
            self._turns.release(number)

    def _ready(self, worker: _Worker | None) -> _Worker:
        """Returns the process, or a new one if it has ended; raises if the pool was stopped."""
        with self._changing:
            if self.is_stopped:
                remedy = "run the same command again to resume from its shards"
                raise UserError("the job was stopped", remedy=remedy)
            if worker is not None and worker.has_ended():
                worker.end(_ENDING_SEC)
                self._workers.remove(worker)
                worker = None
            if worker is None:
                worker = _Worker(self._lock, self._modules)
                self._workers.append(worker)
            worker.forget()
            return worker

    def progress(self) -> tuple[int, int, int, int]:
        """Returns the (images, bytes read, rejects, images of shards finished before) so far."""
        with self._changing:
            noted = [self._done, *(worker.noted[:COUNTS] for worker in self._workers)]
            images, read_bytes, rejects, before = map(sum, zip(*noted, strict=True))
        return images, read_bytes, rejects, before

    def kill(self) -> None:
        """Ends all processes immediately; shards that they were writing are lost."""
        with self._changing:
            self.is_stopped = True
            for worker in self._workers:
                worker.end(0)
        self._threads.shutdown(cancel_futures=True)


# The last pool is used. A build on this machine begins with a pool. A Beam worker on a cluster, or
# a user's own pipeline, gets a pool when needed, as Beam's process must not decode pictures.
_pools: list[LocalPool] = []
_making = threading.Lock()
# A pipeline has this name in its graph. FnApiRunner runs it in the process that built it.
THIS_PROCESS = uuid.uuid4().hex


def own_pool() -> LocalPool:
    """Returns the pool of this process; makes a pool with a process per core if there is none."""
    with _making:
        if not _pools or (_pools[-1].is_stopped and not _pools[-1].is_of_job):
            _pools.append(LocalPool(available_cores()))
            atexit.register(_pools[-1].kill)
        return _pools[-1]


def _forget_pools() -> None:
    # In a fork the processes belong to the parent process.
    for worker in (worker for pool in _pools for worker in pool._workers):
        worker.connection.close()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_pools)


def encoded_sizes(files: Any, options: ImageOptions, urls: UrlOptions) -> list[int]:
    """Returns the encoded sizes, in bytes, of `files.refs` without unreadable pictures, unordered.

    The processes share the work, as none of them has a shard to write yet.
    """
    pool = own_pool()
    # A process takes as long to start as to encode a hundred pictures, and may have to.
    number = min(pool.size, -(-len(files.refs) // _SAMPLED))
    parts = [files.refs[i::number] for i in range(number)]
    given = options, urls
    queued = [pool.submit("of a sample", _sizes, type(files)(refs), *given) for refs in parts]
    return [size for sizes in pool.results(queued) for size in sizes]


def _sizes(files: Any, options: ImageOptions, urls: UrlOptions, watch: Watch) -> list[int]:
    sizes: list[int] = []
    for number, (_, data) in enumerate(read_images(files.refs, options.max_bytes, urls)):
        # Unreadable pictures are counted, with their reasons, when their shards are written.
        with contextlib.suppress(ImageError), watch.picture(number):
            if not isinstance(data, ImageError):
                sizes.append(len(encode_image(data, options).data))
    return sizes


class _Death(NamedTuple):
    picture: int | None  # number of the picture that it decoded
    how: str  # words for a message, after "the process"
    may_be_memory: bool  # the system may have been out of memory


class _Blame:
    def __init__(self) -> None:
        self.crashed: dict[int, str] = {}  # pictures that are left out → reason
        self.suspects: set[int] = set()  # pictures to decode while no other task runs
        self._tries: collections.Counter[int] = collections.Counter()

    def add(self, death: _Death) -> int:
        """Notes a death; returns how many deaths a picture caused that is left out from now on."""
        if death.picture is None:
            return 0
        self._tries[death.picture] += 1
        tries, was_alone = self._tries[death.picture], death.picture in self.suspects
        if tries >= TRIES and (was_alone or not death.may_be_memory):
            self.suspects.discard(death.picture)
            # The same words for every signal, as a broken heap may end in different ones.
            self.crashed[death.picture] = (
                f"the process that decodes it crashed or hung in each of {tries} tries"
                + ", the last time while no other picture was decoded" * was_alone
            )
            return tries
        if death.may_be_memory:
            self.suspects.add(death.picture)
        return 0


def _lost(name: str, packed: bytes, death: _Death, blame: _Blame, deaths: int) -> str:
    again = f"shard {name} is written again"
    if death.picture is None:
        remedy = "; was the system out of memory?" if death.may_be_memory else ""
        return f"a worker process {death.how}{remedy}; {again} ({deaths} of {MAX_ATTEMPTS} tries)"
    _, batch, *_ = pickle.loads(packed)
    place, fate = batch.refs[death.picture].place, ""
    if death.picture in blame.crashed:
        fate = " without that picture"
    elif death.picture in blame.suspects:
        fate = " while no other shard is"
    return f"a worker process {death.how} while it decoded {place!r}; {again}{fate}"


class _Worker:
    """Process that does tasks in turn, as seen by its parent process."""

    def __init__(self, lock: Job | None, modules: list[str]):
        size_bytes = 8 * WIDTH
        memory_fd = storage.shared_memory(size_bytes)
        self.noted = memoryview(mmap.mmap(memory_fd, size_bytes)).cast("q")
        self.connection, its_end = multiprocessing.Pipe()
        self._hung_sec: float | None = None
        fds = [its_end.fileno(), memory_fd]
        # JSON takes no pathlib.Path, which people append to sys.path.
        given = [*map(os.fsdecode, sys.path)], [*fds, modules, lock]
        # The new process inherits the blocked signal, as only the parent process answers Ctrl-C.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(given)],
                stdin=subprocess.DEVNULL,
                pass_fds=[*fds, *([lock.fd] if lock else ())],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            its_end.close()
            os.close(memory_fd)

    def forget(self) -> None:
        for field in range(WIDTH):
            self.noted[field] = 0

    def call(self, packed: bytes, crashed: Mapping[int, str], picture_sec: float) -> Done | _Death:
        """Returns the answer of the process, or how it has ended."""
        try:
            self.connection.send((dict(os.environ), names_flags(), crashed, packed))
            return self._answer(picture_sec)
        except (EOFError, OSError):
            return self._death()

    def _answer(self, picture_sec: float) -> Done:
        wait_sec = picture_sec
        while not self.connection.poll(wait_sec):
            at_picture_sec = (time.monotonic_ns() - self.noted[SINCE]) / 1e9
            wait_sec = picture_sec
            if self.noted[AT] and at_picture_sec >= picture_sec:
                # The killed process closes its end, so that `poll` returns and `recv` raises.
                self._hung_sec = picture_sec
                self._process.kill()
            elif self.noted[AT]:
                wait_sec -= at_picture_sec
        return cast(Done, self.connection.recv())

    def _death(self) -> _Death:
        """Returns how the process has ended: its exit code, or that one picture took too long."""
        picture = self.noted[AT] - 1 if self.noted[AT] else None
        code = self.end(_ENDING_SEC)
        if self._hung_sec is not None:
            return _Death(picture, f"was at one picture for over {self._hung_sec:g} s", False)
        if code >= 0:
            return _Death(picture, f"ended with exit code {code}", False)
        how = f"was killed by signal {-code} ({_SIGNALS.get(-code, 'unknown')})"
        return _Death(picture, how, may_be_memory=code == -signal.SIGKILL)

    def has_ended(self) -> bool:
        return self._process.poll() is not None or self.connection.poll()

    def end(self, patience_sec: float) -> int:
        """Waits for the process, kills it after `patience_sec`, and returns its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(patience_sec)
        self._process.kill()
        return self._process.wait()
