"""One job per output folder: a file lock on this machine, a lease in a store.

A lease is an object that its holder writes anew every few seconds, on condition that nobody
else has; it ends by itself when the holder stops doing so. The holder stops well before that: it
watches a clock of its own, and from then on the store's client sends no write of it.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import fcntl
import mmap
import os
import re
import signal
import socket
import tempfile
import threading
import time
import uuid
import weakref
from typing import Annotated, Any, NamedTuple

import msgspec

from imageshards.errors import LeaseLostError, OutputError, UserError
from imageshards.storage import files
from imageshards.storage.base import WRITE_GUARDS
from imageshards.storage.concurrency import in_thread, shared_memory
from imageshards.storage.local import is_at
from imageshards.typed import Whole, decode

# How often a lease that changes hands is asked for again.
_ATTEMPTS = 5
# How long processes of a job that was killed may take to end: until its next write, usually.
_ORPHANS_SEC = 60.0
_TAKEN = "was taken by another job or deleted"


class LeaseTimes(NamedTuple):
    """Timing of a lease.

    Attributes:
        renew_sec: Seconds between renewals; one that failed is tried again in a fifth of that.
        stale_sec: A lease that was not renewed for so long, by the store's clock, is free.
        give_up_sec: A holder that could not renew for so long stops. What it had sent by then has
            ended before others may take the lease: a request waits 5 s for a connection and 30 s
            for an answer.
    """

    renew_sec: float = 15.0
    stale_sec: float = 90.0
    give_up_sec: float = 45.0


_TIMES = LeaseTimes()


class _Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The process that holds a lock, as far as the lock names it; `renewals` of a lease."""

    host: str = ""
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 0
    nonce: str = ""
    renewals: Whole = 0


class OutputLock(abc.ABC):
    """Holds an output folder for this process, as a context manager.

    Attributes:
        path: The lock's file or object, in a folder of its own below the output; both are made.

    Raises:
        UserError: Another job holds it.
        OutputError: The lock cannot be written.
    """

    def __init__(self, path: str):
        self.path = path
        self._output = _output_of(path)
        self._holder = _Holder(socket.gethostname(), os.getpid(), uuid.uuid4().hex)
        self._sign: Any = None

    def __enter__(self) -> OutputLock:
        self._show_life()
        try:
            self._take()
        except BaseException as e:
            self.__exit__(None, None, None)
            if not isinstance(e, OSError):
                raise
            raise OutputError(
                argument="output",
                received=f"{self._output!r}, which cannot be written ({e.strerror or e})",
                remedy="choose another folder, make room or fix its permissions",
            ) from e
        return self

    def _show_life(self) -> None:
        """Locks a file that has this lock's number, until this process ends, however it ends.

        By it another job on this machine knows for sure that this one has ended. Process numbers
        and host names do not say so: containers share them, and copies of one machine do. Nobody
        knows the number before the lock itself is taken.
        """
        with contextlib.suppress(OSError):  # then a lease that is left behind ends in its time
            self._sign = open(_sign_of_life(self._holder), "xb")
            os.register_at_fork(after_in_child=self._sign.close)
            fcntl.flock(self._sign, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _end_life(self) -> None:
        _forget(self._holder)
        if self._sign is not None:
            self._sign.close()

    @abc.abstractmethod
    def _take(self) -> None:
        """Takes the lock, or raises."""

    def renew(self) -> None:  # noqa: B027  # the kernel knows that a process lives
        """Keeps the lock from now on, by a thread if need be: call it after the last fork."""

    @abc.abstractmethod
    def fileno(self) -> int:
        """A descriptor for other processes of the job, which give it to `join_job`."""

    @abc.abstractmethod
    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Gives the lock back."""


def output_lock(path: str) -> OutputLock:
    """The lock for a path: the kernel's on this machine, a lease in a store."""
    return FileLock(path) if files.is_local(path) else Lease(path)


class FileLock(OutputLock):
    """A lock of the kernel, which lets go when the process ends, however it ends.

    A process that was given a copy of `fileno()` holds it, too. So a job that was killed keeps
    its lock until the last process that writes for it has ended, and the next job waits for that.
    """

    _file: Any = None

    def _take(self) -> None:
        # The holder may remove the lock's folder when it ends; a lock on a file that is no
        # longer at its path would keep nobody out.
        while self._file is None or not is_at(self.path, self._file.fileno()):
            self._close()
            self._open()
        # A child that outlives this process must not hold its lock by chance.
        os.register_at_fork(after_in_child=self._close)
        self._file.seek(0)
        _forget(_parse_holder(self._file.read()))
        self._file.truncate(0)
        self._file.write(msgspec.json.encode(self._holder))

    def fileno(self) -> int:
        return int(self._file.fileno())

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._end_life()
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        self._file = open(self.path, "a+b", buffering=0)
        deadline = time.monotonic() + _ORPHANS_SEC
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            self._file.seek(0)
            holder = _parse_holder(self._file.read())
            if not _has_ended(holder):
                raise UserError(
                    argument="output",
                    received=f"{self._output!r}, which is in use by another job ({_who(holder)})",
                    remedy="wait for it to end, or choose another folder",
                )
            if time.monotonic() >= deadline:
                raise UserError(
                    argument="output",
                    received=f"{self._output!r}, which is still held by worker processes of a job "
                    f"that was killed (process {holder.pid})",
                    remedy="end them (`ps` shows them with the command of that job), then run the "
                    "same command again to resume",
                )
            time.sleep(0.05)


class _Found(NamedTuple):
    """A lease that is there."""

    version: str
    age_sec: float
    holder: _Holder


class Lease(OutputLock):
    """An object of a store whose content names its holder, renewed by conditional writes.

    Raises:
        LeaseLostError: On leaving, if it was lost meanwhile; the main thread was then
            interrupted as by Ctrl-C. In any thread, and in processes that have joined the job,
            by every write below the output from then on.
    """

    def __init__(self, path: str, times: LeaseTimes = _TIMES):
        super().__init__(path)
        self._store = files.backend(path)
        self._times = times
        self._renewals = 0
        self._version: str | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lost = ""
        self._trouble = ""
        # Until when this job may write; its other processes see what this one has renewed.
        self._shared = shared_memory(mmap.PAGESIZE)
        weakref.finalize(self, os.close, self._shared)
        self._until = _until_in(self._shared)

    def _take(self) -> None:
        for _ in range(_ATTEMPTS):
            begun = _now()
            version = self._store.write_if(self.path, self._content(), None)
            if version is None and (found := self._found()) is not None:
                self._refuse_live(found)
                version = self._store.write_if(self.path, self._content(), found.version)
                if version is not None:
                    _forget(found.holder)
            if version is not None:
                self._note_renewed(version, begun)
                WRITE_GUARDS[self._output] = self._check
                return
        raise UserError(
            argument="output",
            received=f"{self._output!r}, which several jobs want at once",
            remedy="wait until one holds it",
        )

    def _found(self) -> _Found | None:
        """What is there; None if it was given back meanwhile."""
        # Before its content: a version that is too old is refused.
        found = self._store.version_and_age(self.path)
        if found is None:
            return None
        try:
            return _Found(*found, _parse_holder(self._store.read(self.path)))
        except FileNotFoundError:
            return None

    def _refuse_live(self, found: _Found) -> None:
        holder, age_sec = found.holder, found.age_sec
        is_ours = holder.nonce == self._holder.nonce  # written, but its answer was lost
        if is_ours or age_sec >= self._times.stale_sec or _has_ended(holder):
            return
        raise UserError(
            argument="output",
            received=f"{self._output!r}, which is in use by another job ({_who(holder)}, seen "
            f"{age_sec:.0f} s ago)",
            remedy="wait for it to end, or choose another folder: the lock of a job killed on "
            f"another machine ends {self._times.stale_sec:.0f} s after it",
        )

    def _content(self) -> bytes:
        # Other bytes each time: some stores' versions are hashes of the content.
        self._renewals += 1
        return msgspec.json.encode(msgspec.structs.replace(self._holder, renewals=self._renewals))

    def _note_renewed(self, version: str, begun: float) -> None:
        self._version, self._trouble = version, ""
        self._until.value = begun + self._times.give_up_sec

    def fileno(self) -> int:
        return self._shared

    def renew(self) -> None:
        if not self._threads:
            self._renew_if_late()
            for run in (self._keep_renewing, self._watch):
                thread = threading.Thread(target=in_thread(run), name="lease", daemon=True)
                self._threads.append(thread)
                self._threads[-1].start()

    def _renew_if_late(self) -> None:
        """Renews a lease that was taken before something slow, such as an import on a busy disk.

        Nothing was written meanwhile, so that the job may go on although its time had run out,
        unless another one has taken the lease: the store compares versions.
        """
        begun = _now()
        if begun < self._until.value - self._times.give_up_sec + self._times.renew_sec:
            return
        version = self._renewed()
        if version is None:
            self._lost = _TAKEN
            raise _lost_error(self.path, self._lost)
        self._note_renewed(version, begun)

    def _keep_renewing(self) -> None:
        wait_sec = self._times.renew_sec
        while not self._stop.wait(wait_sec):
            begun = _now()
            try:
                version = self._renewed()
            except (OSError, UserError) as e:
                self._trouble = f" ({e})"
                wait_sec = self._times.renew_sec / 5
                continue
            if version is None:
                self._lose(_TAKEN)
                return
            self._note_renewed(version, begun)
            wait_sec = self._times.renew_sec

    def _renewed(self) -> str | None:
        version = self._store.write_if(self.path, self._content(), self._version or "")
        if version is not None:
            return version
        found = self._found()
        if found is None or found.holder.nonce != self._holder.nonce:
            return None
        # An earlier renewal had arrived, only its answer had not.
        return self._store.write_if(self.path, self._content(), found.version)

    def _watch(self) -> None:
        """Ends the job in time, however long a renewal that is under way may take."""
        while not self._stop.wait(max(0.0, self._until.value - _now())):
            if _now() >= self._until.value:
                self._lose(self._not_renewed())
                return

    def _not_renewed(self) -> str:
        return f"could not be renewed for {self._times.give_up_sec:.0f} s{self._trouble}"

    def _lose(self, how: str) -> None:
        if self._stop.is_set():
            return
        self._lost = how
        self._until.value = 0.0
        self._stop.set()
        main = threading.main_thread().ident
        if main is not None:  # only a signal ends a blocking call of that thread
            signal.pthread_kill(main, signal.SIGINT)

    def _check(self) -> None:
        if _now() >= self._until.value:
            raise _lost_error(self.path, self._lost or self._not_renewed())

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stop.set()
        self._end_life()
        if self._lost:  # and what still runs of this job may never write there
            raise _lost_error(self.path, self._lost) from error
        for thread in self._threads:
            thread.join(5)
        if self._version is not None:
            with contextlib.suppress(OSError, UserError):  # it ends by itself
                self._store.delete([self.path])
            WRITE_GUARDS.pop(self._output, None)


def join_job(path: str, fd: int) -> None:
    """Makes this process a part of the job that started it and holds the lock of a path.

    `fd` is a copy of the lock's `fileno()`. The kernel's lock is held until it is closed, too; by a
    lease this process sees how long it may write.
    """
    if files.is_local(path):
        return
    until = _until_in(fd)

    def check() -> None:
        if _now() >= until.value:
            raise _lost_error(path, "was lost")

    WRITE_GUARDS[_output_of(path)] = check


def _until_in(fd: int) -> ctypes.c_double:
    return ctypes.c_double.from_buffer(mmap.mmap(fd, mmap.PAGESIZE))


def _output_of(path: str) -> str:
    return files.parent_of(files.parent_of(path))


def _lost_error(path: str, how: str) -> LeaseLostError:
    return LeaseLostError(
        f"the lock {path} {how}, so this job was stopped; nothing was committed: when no other job "
        "writes there, run the same command again to resume."
    )


def _now() -> float:
    """Seconds on a clock that goes on while the machine sleeps, the same in all processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _parse_holder(content: bytes) -> _Holder:
    """Returns the holder that a lock names; an unknown one where the lock cannot be read."""
    try:
        return decode(content, _Holder)
    except ValueError:
        return _Holder()


def _who(holder: _Holder) -> str:
    return f"process {holder.pid or 'unknown'} on {holder.host or 'unknown'}"


def _sign_of_life(holder: _Holder) -> str:
    name = holder.nonce if re.fullmatch("[0-9a-f]{32}", holder.nonce) else "of-nobody"
    return os.path.join(tempfile.gettempdir(), f"imageshards-lock-{name}")


def _has_ended(holder: _Holder) -> bool:
    """Whether the process that held a lock was of this machine and has ended, for sure."""
    try:
        with open(_sign_of_life(holder), "rb") as sign:
            fcntl.flock(sign, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # of another machine, or locked
        return False
    return True


def _forget(holder: _Holder) -> None:
    with contextlib.suppress(OSError):
        os.unlink(_sign_of_life(holder))
