"""Leases, which allow one job per output folder in a store, and the choice of a lock for a path.

A lease is an object that its holder rewrites every few seconds, provided that nobody else wrote the
object meanwhile. A lease that is no longer renewed expires. Well before, the holder's clock stops
the job, and the store's client then refuses to send its writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from imageshards import storage
from imageshards.bounds import MAX_LINE_BYTES
from imageshards.errors import LeaseLostError, OutputError, UserError
from imageshards.storage.base import WRITE_GUARDS
from imageshards.storage.concurrency import in_thread, shared_memory
from imageshards.storage.lock import Holder, file_lock, held_error, living_holder, output_of

# Attempts to take a lease while several jobs write the object.
_ATTEMPTS = 5
_TAKEN = "was taken by another job or deleted"
# Seconds between renewals; a failed renewal is repeated after a fifth of them.
_RENEW_SEC = 15.0
# Age in s, by the store's clock, at which another job may take the lease.
_STALE_SEC = 90.0
# Seconds without a renewal after which the holder stops. Its last requests wait at most 5 s for a
# connection and 30 s for an answer, and so end before `_STALE_SEC`.
_GIVE_UP_SEC = 45.0


class Job(NamedTuple):
    """The job that holds an output: the path of its lock, and a descriptor for `join_job`."""

    path: str
    fd: int


class Lease:
    """An object of a store that names its holder and is renewed by conditional writes.

    The loss of a lease interrupts the main thread as Ctrl-C does.

    Raises:
        LeaseLostError: The lease was lost. Leaving the block raises this error. Later writes below
            the output raise it, too, in any thread and in processes that have joined the job.
    """

    def __init__(self, path: str, holder: Holder):
        self.path = path
        self._holder = holder
        self._store: Any = storage.backend(path)  # an `ObjectStore`, loaded by its first use
        self._renewals = 0
        self._version: str | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost = ""
        self._trouble = ""
        # Time until which this job may write, in memory that its worker processes map.
        self._shared = shared_memory(mmap.PAGESIZE)
        weakref.finalize(self, os.close, self._shared)
        self._until = _until_in(self._shared)

    def __enter__(self) -> int:
        def may_take(age_sec: float, holder: Holder) -> bool:
            if age_sec < _STALE_SEC and not holder.has_ended():
                raise held_error(
                    self.path,
                    f"{holder}, seen {age_sec:.0f} s ago",
                    "choose another folder: the lock of a job killed on another machine ends "
                    f"{_STALE_SEC:.0f} s after it",
                )
            holder.forget()
            return True

        for _ in range(_ATTEMPTS):
            # A lease counts from before its request, as the store may write it that early.
            begun = _now()
            version = self._write(None, may_take)
            if version is not None:
                self._note_renewed(version, begun)
                WRITE_GUARDS[output_of(self.path)] = self._check
                self._thread = threading.Thread(target=in_thread(self._keep_renewing), daemon=True)
                self._thread.start()
                return self._shared
        raise held_error(self.path, "of several", "choose another folder")

    def _write(self, version: str | None, may_take: Callable[[float, Holder], bool]) -> str | None:
        """Writes the lease in place of a version, or of a lease that it may take; None if not."""
        written = self._store.write_if(self.path, self._content(), version)
        if written is None and (found := self._found()) is not None:
            other, age_sec, holder = found
            # An earlier write may have reached the store, and only its answer was lost.
            if holder.nonce == self._holder.nonce or may_take(age_sec, holder):
                written = self._store.write_if(self.path, self._content(), other)
        return written

    def _found(self) -> tuple[str, float, Holder] | None:
        """Returns version, age in s and holder of the lease in the store; None if there is none."""
        # The version is read before the content. If the lease changes between the two, a write
        # with the old version is refused, whatever the content says.
        found = self._store.described(self.path)
        if found is None:
            return None
        stat, now_sec = found
        age_sec = max(0.0, now_sec - stat.mtime_ns / 1e9)
        try:
            holder = Holder.parse(self._store.read(self.path, MAX_LINE_BYTES))
            return stat.version, age_sec, holder
        except FileNotFoundError:
            return None

    def _content(self) -> bytes:
        # The content changes each time, because some stores use its hash as the version.
        self._renewals += 1
        return msgspec.json.encode(msgspec.structs.replace(self._holder, renewals=self._renewals))

    def _note_renewed(self, version: str, begun: float) -> None:
        self._version, self._trouble = version, ""
        self._until.value = begun + _GIVE_UP_SEC

    def _keep_renewing(self) -> None:
        wait_sec = _RENEW_SEC
        while not self._stop.wait(wait_sec):
            begun = _now()
            try:
                version = self._write(self._version or "", lambda *_: False)
            # A store that cannot be reached now may be reached before the lease expires.
            except (OSError, UserError) as e:
                self._trouble = f" ({e})"
                wait_sec = _RENEW_SEC / 5
                if _now() >= self._until.value:
                    self._lose(self._not_renewed())
                continue
            if version is None:
                self._lose(_TAKEN)
                return
            self._note_renewed(version, begun)
            wait_sec = _RENEW_SEC

    def _not_renewed(self) -> str:
        return f"could not be renewed for {_GIVE_UP_SEC:.0f} s{self._trouble}"

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
        if self._lost:  # The write guard stays, because threads of this job may still run.
            raise _lost_error(self.path, self._lost) from error
        if self._thread is not None:
            self._thread.join(5)
        if self._version is not None:
            with contextlib.suppress(OSError, UserError):  # The lease expires anyway.
                self._store.delete([self.path])
            WRITE_GUARDS.pop(output_of(self.path), None)


@contextlib.contextmanager
def output_lock(path: str) -> Iterator[Job]:
    """Reserves an output folder for this process: by a file lock, or in a store by a lease.

    `path` is the lock's file or object, in a subfolder of the output that is created with it.

    Raises:
        UserError: Another job holds the lock.
        OutputError: The lock cannot be written.
    """
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(living_holder())
        lock = file_lock(path, holder) if storage.is_local(path) else Lease(path, holder)
        try:
            fd = stack.enter_context(lock)
        except OSError as e:
            raise OutputError(
                argument="output",
                received=f"{output_of(path)!r}, which cannot be written ({e.strerror or e})",
                remedy="choose another folder, make room or fix its permissions",
            ) from e
        yield Job(path, fd)


def join_job(path: str, fd: int) -> None:
    """Makes this process a part of the `Job` that started it; `fd` stays open while it writes."""
    if storage.is_local(path):
        return  # The open descriptor alone holds a lock of the kernel.
    until = _until_in(fd)

    def check() -> None:
        if _now() >= until.value:
            raise _lost_error(path, "was lost")

    WRITE_GUARDS[output_of(path)] = check


def _until_in(fd: int) -> ctypes.c_double:
    return ctypes.c_double.from_buffer(mmap.mmap(fd, mmap.PAGESIZE))


def _lost_error(path: str, how: str) -> LeaseLostError:
    return LeaseLostError(
        f"the lock {path} {how}, so this job was stopped; nothing was committed: when no other job "
        "writes there, run the same command again to resume."
    )


def _now() -> float:
    """Returns s on a clock that all processes share and that runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
