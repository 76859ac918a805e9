"""Locks that allow one job per output folder: a file lock on this machine, a lease in a store.

A lease is an object that its holder rewrites every few seconds, provided that nobody else wrote the
object meanwhile. A lease that is no longer renewed expires. Well before, the holder's clock stops
the job, and the store's client then refuses to send its writes.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import errno
import fcntl
import logging
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

from imageshards import storage
from imageshards.bounds import MAX_LINE_BYTES
from imageshards.errors import LeaseLostError, OutputError, UserError
from imageshards.storage.base import WRITE_GUARDS
from imageshards.storage.concurrency import in_thread, shared_memory
from imageshards.storage.local import is_at, locked
from imageshards.typed import Whole, decode

_LOGGER = logging.getLogger(__name__)

# Attempts to take a lease while several jobs write the object.
_ATTEMPTS = 5
# How long to wait for the worker processes of a killed job, which usually end at their next write.
_ORPHANS_SEC = 60.0
_TAKEN = "was taken by another job or deleted"
# Answers of a file system without locks: NFS without lockd, and some Lustre and FUSE mounts.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class LeaseTimes(NamedTuple):
    """Timing of a lease.

    Attributes:
        renew_sec: Seconds between renewals; a failed renewal is repeated after a fifth of them.
        stale_sec: Age in s, by the store's clock, at which another job may take the lease.
        give_up_sec: Seconds without a renewal after which the holder stops. Its last requests wait
            at most 5 s for a connection and 30 s for an answer, and so end before `stale_sec`.
    """

    renew_sec: float = 15.0
    stale_sec: float = 90.0
    give_up_sec: float = 45.0


_TIMES = LeaseTimes()


class _Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The process that holds a lock, as the lock's content names it."""

    host: str = ""
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 0
    nonce: str = ""
    renewals: Whole = 0


class OutputLock(abc.ABC):
    """A context manager that reserves an output folder for this process.

    Attributes:
        path: The lock's file or object, in a subfolder of the output that is created with it.

    Raises:
        UserError: Another job holds the lock.
        OutputError: The lock cannot be written.
    """

    def __init__(self, path: str):
        self.path = path
        self._output = _output_of(path)
        self._holder = _Holder(socket.gethostname(), os.getpid(), uuid.uuid4().hex)
        self._sign: Any = None

    def __enter__(self) -> OutputLock:
        # A temporary file, named after this lock's nonce, is locked until this process has ended.
        # From this file a later job on the same machine can be sure that this process has ended.
        # Process ids and host names prove nothing: containers and copied machines share them.
        # No job can read the nonce before the lock is taken, so none looks for this file too early.
        # Without the file, a lease that is left behind expires in its time.
        with contextlib.suppress(OSError):
            self._sign = open(_sign_of_life(self._holder), "xb")
            os.register_at_fork(after_in_child=self._sign.close)
            fcntl.flock(self._sign, fcntl.LOCK_EX | fcntl.LOCK_NB)
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

    def _held(self, who: str, remedy: str) -> UserError:
        """Returns the error for an output that the job of `who` holds."""
        return UserError(
            argument="output",
            received=f"{self._output!r}, which is in use by another job ({who})",
            remedy=f"wait for it to end, or {remedy}",
        )

    def _end_life(self) -> None:
        _forget(self._holder)
        if self._sign is not None:
            self._sign.close()

    @abc.abstractmethod
    def _take(self) -> None:
        """Takes the lock, or raises."""

    def renew(self) -> None:  # noqa: B027
        """Starts the threads that keep the lock, if it needs any; call this after the last fork."""

    @abc.abstractmethod
    def fileno(self) -> int:
        """Returns a descriptor that other processes of the job pass to `join_job`."""

    @abc.abstractmethod
    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Releases the lock."""


def output_lock(path: str) -> OutputLock:
    """Returns the lock for a path: a file lock for a local path, a lease for a store."""
    return FileLock(path) if storage.is_local(path) else Lease(path)


class FileLock(OutputLock):
    """A lock of the kernel, which ends with the process.

    Every process with a copy of `fileno()` holds the lock, too. So a killed job keeps its lock
    until its last worker process has ended, and the next job waits for that.

    On a file system without locks, the job makes a second file, which only one job can make. The
    next job of the same machine removes the file of a killed one.
    """

    _file: Any = None
    _only = ""  # the second file, if this job has made it

    def _take(self) -> None:
        # The last holder may have deleted the file between our opening and locking it. A lock on
        # a deleted file would keep no job out.
        while self._file is None or not is_at(self._only or self.path, self._file.fileno()):
            self._close()
            try:
                self._open()
            except OSError as e:
                if e.errno not in _NO_LOCKS:
                    raise
                self._make_second_file(f"{self.path}-held", e)
        # A forked child that outlives this process must not keep the lock.
        os.register_at_fork(after_in_child=self._close)
        self._file.seek(0)
        _forget(_parse_holder(self._file.read(MAX_LINE_BYTES)))
        self._file.truncate(0)
        self._file.write(msgspec.json.encode(self._holder))

    def _make_second_file(self, path: str, why: OSError) -> None:
        self._close()
        self._only = ""
        while not self._only:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                self._file = open(path, "x+b", buffering=0)
                self._only = path
            except FileExistsError:
                self._remove_if_ended(path)
        _LOGGER.warning(
            "%s is on a file system without locks (%s), so the file %s keeps other jobs out; "
            "delete the file if its job was killed on another machine",
            self._output, why.strerror, path,
        )  # fmt: skip

    def _remove_if_ended(self, path: str) -> None:
        """Removes the second file of a job that has ended; refuses the output of another job."""
        found = _holder_in(path)
        if found is None:
            return
        sign = locked(_sign_of_life(found))
        if sign is None:
            raise self._held(_who(found), f"delete {path} if it was killed on another machine")
        # While this job holds the sign of life, no other job removes the file.
        try:
            if _holder_in(path) == found:
                os.unlink(path)
            _forget(found)
        finally:
            os.close(sign)

    def fileno(self) -> int:
        # Workers with a copy of the sign of life keep the second file from being removed.
        return int((self._sign if self._only and self._sign else self._file).fileno())

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._only:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._only)
        self._end_life()
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> None:
        folder = os.path.dirname(self.path)
        if os.path.islink(folder):  # A stranger's dataset may have a link to files of the user.
            raise UserError(
                argument="output",
                received=f"{self._output!r}, whose {os.path.basename(folder)} is a link",
                remedy=f"delete the link {folder}, or choose another folder",
            )
        os.makedirs(folder, exist_ok=True)
        self._file = open(self.path, "a+b", buffering=0, opener=_open_no_link)
        deadline = time.monotonic() + _ORPHANS_SEC
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            self._file.seek(0)
            holder = _parse_holder(self._file.read(MAX_LINE_BYTES))
            if not _has_ended(holder):
                raise self._held(_who(holder), "choose another folder")
            if time.monotonic() >= deadline:
                raise UserError(
                    argument="output",
                    received=f"{self._output!r}, which is still held by worker processes of a job "
                    f"that was killed (process {holder.pid})",
                    remedy="end them (`ps` shows them with the command of that job), then run the "
                    "same command again to resume",
                )
            time.sleep(0.05)


class Lease(OutputLock):
    """An object of a store that names its holder and is renewed by conditional writes.

    The loss of a lease interrupts the main thread as Ctrl-C does.

    Raises:
        LeaseLostError: The lease was lost. Leaving the block raises this error. Later writes below
            the output raise it, too, in any thread and in processes that have joined the job.
    """

    def __init__(self, path: str, times: LeaseTimes = _TIMES):
        super().__init__(path)
        self._store: Any = storage.backend(path)  # an `ObjectStore`, loaded by its first use
        self._times = times
        self._renewals = 0
        self._version: str | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lost = ""
        self._trouble = ""
        # Time until which this job may write, in memory that its worker processes map.
        self._shared = shared_memory(mmap.PAGESIZE)
        weakref.finalize(self, os.close, self._shared)
        self._until = _until_in(self._shared)

    def _take(self) -> None:
        for _ in range(_ATTEMPTS):
            # A lease counts from before its request, as the store may write it that early.
            begun = _now()
            version = self._store.write_if(self.path, self._content(), None)
            if version is None and (found := self._found()) is not None:
                old_version, age_sec, holder = found
                # This job finds its own lease if the store wrote it but the answer was lost.
                is_ours = holder.nonce == self._holder.nonce
                if not is_ours and age_sec < self._times.stale_sec and not _has_ended(holder):
                    raise self._held(
                        f"{_who(holder)}, seen {age_sec:.0f} s ago",
                        "choose another folder: the lock of a job killed on another machine ends "
                        f"{self._times.stale_sec:.0f} s after it",
                    )
                version = self._store.write_if(self.path, self._content(), old_version)
                if version is not None:
                    _forget(holder)
            if version is not None:
                self._note_renewed(version, begun)
                WRITE_GUARDS[self._output] = self._check
                return
        raise UserError(
            argument="output",
            received=f"{self._output!r}, which several jobs try to lock at the same time",
            remedy="wait until one of the jobs holds the lock",
        )

    def _found(self) -> tuple[str, float, _Holder] | None:
        """Returns version, age in s and holder of the lease in the store; None if there is none."""
        # The version is read before the content. If the lease changes between the two, a write
        # with the old version is refused, whatever the content says.
        found = self._store.described(self.path)
        if found is None:
            return None
        stat, now_sec = found
        age_sec = max(0.0, now_sec - stat.mtime_ns / 1e9)
        try:
            holder = _parse_holder(self._store.read(self.path, MAX_LINE_BYTES))
            return stat.version, age_sec, holder
        except FileNotFoundError:
            return None

    def _content(self) -> bytes:
        # The content changes each time, because some stores use its hash as the version.
        self._renewals += 1
        return msgspec.json.encode(msgspec.structs.replace(self._holder, renewals=self._renewals))

    def _note_renewed(self, version: str, begun: float) -> None:
        self._version, self._trouble = version, ""
        self._until.value = begun + self._times.give_up_sec

    def fileno(self) -> int:
        return self._shared

    def renew(self) -> None:
        if not self._threads:
            # The lease was perhaps taken before something slow, such as an import on a busy disk,
            # and may even have expired. The job has written nothing yet, so it may go on if the
            # version in the store shows that no job took the lease.
            begun = _now()
            if begun >= self._until.value - self._times.give_up_sec + self._times.renew_sec:
                version = self._renewed()
                if version is None:
                    self._lost = _TAKEN
                    raise _lost_error(self.path, self._lost)
                self._note_renewed(version, begun)
            for run in (self._keep_renewing, self._watch):
                thread = threading.Thread(target=in_thread(run), name="lease", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _keep_renewing(self) -> None:
        wait_sec = self._times.renew_sec
        while not self._stop.wait(wait_sec):
            begun = _now()
            try:
                version = self._renewed()
            # A store that cannot be reached now may be reached before the lease expires.
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
        if found is None or found[2].nonce != self._holder.nonce:
            return None
        # An earlier renewal reached the store, and only its answer was lost.
        return self._store.write_if(self.path, self._content(), found[0])

    def _watch(self) -> None:
        """Ends the job in time, even while a renewal waits for its answer."""
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
        if main is not None:  # Only a signal interrupts a blocking call of the main thread.
            signal.pthread_kill(main, signal.SIGINT)

    def _check(self) -> None:
        if _now() >= self._until.value:
            raise _lost_error(self.path, self._lost or self._not_renewed())

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stop.set()
        self._end_life()
        if self._lost:  # The write guard stays, because threads of this job may still run.
            raise _lost_error(self.path, self._lost) from error
        for thread in self._threads:
            thread.join(5)
        if self._version is not None:
            with contextlib.suppress(OSError, UserError):  # The lease expires anyway.
                self._store.delete([self.path])
            WRITE_GUARDS.pop(self._output, None)


def join_job(path: str, fd: int) -> None:
    """Makes this process a part of the job that started it and holds the lock at `path`.

    `fd`, a copy of the lock's `fileno()`, must stay open while this process writes.
    """
    if storage.is_local(path):
        return  # The open descriptor alone holds a lock of the kernel.
    until = _until_in(fd)

    def check() -> None:
        if _now() >= until.value:
            raise _lost_error(path, "was lost")

    WRITE_GUARDS[_output_of(path)] = check


def _until_in(fd: int) -> ctypes.c_double:
    return ctypes.c_double.from_buffer(mmap.mmap(fd, mmap.PAGESIZE))


def _output_of(path: str) -> str:
    return storage.parent_of(storage.parent_of(path))


def _lost_error(path: str, how: str) -> LeaseLostError:
    return LeaseLostError(
        f"the lock {path} {how}, so this job was stopped; nothing was committed: when no other job "
        "writes there, run the same command again to resume."
    )


def _now() -> float:
    """Returns s on a clock that all processes share and that runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _parse_holder(content: bytes) -> _Holder:
    """Returns the holder that a lock's content names; an empty one for damaged content."""
    try:
        return decode(content, _Holder)
    except ValueError:
        return _Holder()


def _who(holder: _Holder) -> str:
    return f"process {holder.pid or 'unknown'} on {holder.host or 'unknown'}"


def _sign_of_life(holder: _Holder) -> str:
    name = holder.nonce if re.fullmatch("[0-9a-f]{32}", holder.nonce) else "of-nobody"
    return os.path.join(tempfile.gettempdir(), f"imageshards-lock-{name}")


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _holder_in(path: str) -> _Holder | None:
    try:
        with open(path, "rb") as file:
            return _parse_holder(file.read(MAX_LINE_BYTES))
    except FileNotFoundError:
        return None


def _has_ended(holder: _Holder) -> bool:
    """Returns whether a lock's holder certainly ran on this machine and has ended."""
    # The file is missing (another machine) or locked (still running).
    sign = locked(_sign_of_life(holder))
    if sign is not None:
        os.close(sign)
    return sign is not None


def _forget(holder: _Holder) -> None:
    with contextlib.suppress(OSError):
        os.unlink(_sign_of_life(holder))
