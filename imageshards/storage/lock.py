"""One job per output folder: a file lock on this machine, a lease in a store.

A lease is an object that its holder writes anew every few seconds, on condition that nobody
else has; it ends by itself when the holder stops doing so.
"""

from __future__ import annotations

import abc
import contextlib
import fcntl
import json
import os
import signal
import socket
import threading
import time
import uuid
from typing import Any, NamedTuple

from imageshards.errors import LeaseLostError, OutputError, UserError
from imageshards.storage import files

# How often a lease that changes hands is asked for again.
_ATTEMPTS = 5
# How long processes of a job that was killed may take to end: until its next write, usually.
_ORPHANS_SEC = 60.0

# Nonces of the leases that this process holds.
_held: set[str] = set()


class LeaseTimes(NamedTuple):
    """Timing of a lease.

    Attributes:
        renew_sec: Seconds between renewals.
        stale_sec: A lease that was not renewed for so long, by the store's clock, is free.
        give_up_sec: A holder that could not renew for so long stops: before others may take it.
    """

    renew_sec: float = 15.0
    stale_sec: float = 60.0
    give_up_sec: float = 45.0


_TIMES = LeaseTimes()


class OutputLock(abc.ABC):
    """Holds an output folder for this process, as a context manager.

    Args:
        path: The lock's file or object, in a folder of its own below the output; both are made.

    Raises:
        UserError: Another job holds it.
        OutputError: The lock cannot be written.
    """

    def __init__(self, path: str):
        self._path = path
        self._output = files.parent_of(files.parent_of(path))
        self._nonce = uuid.uuid4().hex

    def _holder(self) -> dict[str, Any]:
        """What the lock says of who holds it."""
        return {"host": socket.gethostname(), "pid": os.getpid(), "nonce": self._nonce}

    def __enter__(self) -> OutputLock:
        try:
            self._take()
        except OSError as e:
            self.__exit__(None, None, None)
            raise OutputError(
                f"⟦--output⟧ {self._output!r} cannot be written ({e.strerror or e}); choose "
                "another folder, make room or fix its permissions."
            ) from e
        return self

    @abc.abstractmethod
    def _take(self) -> None:
        """Takes the lock, or raises."""

    @abc.abstractmethod
    def renew(self) -> None:
        """Keeps the lock from now on, by a thread if need be: call it after the last fork."""

    def fileno(self) -> int | None:
        """A descriptor whose copies in other processes keep the lock, too; None if none do."""
        return None

    @abc.abstractmethod
    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Gives the lock back."""


def output_lock(path: str) -> OutputLock:
    """The lock for a path: the kernel's on this machine, a lease in a store."""
    return FileLock(path) if files.is_local(path) else Lease(path)


def lock_holder(path: str) -> str:
    """Who holds a lock, for a message: `process 7 on host`; "" where nobody is known to.

    The lock itself is not touched. A process of another machine that locked a file of this one
    cannot be asked.
    """
    try:
        holder = _parse_holder(files.read(path))
        if not files.is_local(path):
            found = files.backend(path).version_and_age(path)
            lives = found is not None and found[1] < _TIMES.stale_sec
        else:
            is_here = holder["host"] == socket.gethostname()
            lives = is_here and os.path.exists(f"/proc/{int(holder['pid'])}")
    except (OSError, KeyError, TypeError, ValueError, UserError):
        return ""
    return f"process {holder.get('pid')} on {holder.get('host')}" if lives else ""


class FileLock(OutputLock):
    """A lock of the kernel, which lets go when the process ends, however it ends.

    A process that was given a copy of `fileno()` holds it, too. So a job that was killed keeps
    its lock until the last process that writes for it has ended, and the next job waits for that.
    """

    _file: Any = None

    def _take(self) -> None:
        self._open()
        # The holder may remove the lock's folder when it ends; a lock on a file that is no
        # longer at its path would keep nobody out.
        while not self._is_at_path():
            self._file.close()
            self._open()
        # A child that outlives this process must not hold its lock by chance.
        os.register_at_fork(after_in_child=self._close)
        self._file.truncate(0)
        self._file.write(json.dumps(self._holder()).encode())
        _held.add(self._nonce)

    def renew(self) -> None:
        """Nothing to do: the kernel knows that this process lives."""

    def fileno(self) -> int:
        return int(self._file.fileno())

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        _held.discard(self._nonce)
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._file = open(self._path, "a+b", buffering=0)
        deadline = time.monotonic() + _ORPHANS_SEC
        while not self._try_lock():
            self._file.seek(0)
            holder = _parse_holder(self._file.read())
            if _has_ended(holder) and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            self._file.close()
            if _has_ended(holder):
                raise UserError(
                    f"⟦--output⟧ {self._output!r} is still held by worker processes of a job that "
                    f"was killed (process {holder['pid']}); end them (`ps` shows them with the "
                    "command of that job), then run the same command again to resume."
                )
            raise UserError(
                f"⟦--output⟧ {self._output!r} is in use by another job (process "
                f"{holder.get('pid', 'unknown')} on {holder.get('host', 'unknown')}); wait for it "
                "to end, or choose another folder."
            )

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False


class Lease(OutputLock):
    """An object of a store whose content names its holder, renewed by conditional writes.

    Args:
        path: The object.
        times: When it is renewed, and when it counts as lost.

    Raises:
        LeaseLostError: On leaving, if it was lost meanwhile; the main thread was then
            interrupted as by Ctrl-C.
    """

    def __init__(self, path: str, times: LeaseTimes = _TIMES):
        super().__init__(path)
        self._store = files.backend(path)
        self._times = times
        self._renewals = 0
        self._version: str | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._renewed_at = 0.0
        self._lost = ""

    def _take(self) -> None:
        for _ in range(_ATTEMPTS):
            self._renewed_at = time.monotonic()
            version = self._store.write_if(self._path, self._content(), None)
            if version is None:
                version = self._take_over()
            if version is not None:
                self._version = version
                _held.add(self._nonce)
                return
        raise UserError(
            f"⟦--output⟧ {self._output!r} is wanted by several jobs at once; wait until one holds "
            "it."
        )

    def _take_over(self) -> str | None:
        """Takes a lease whose holder is gone; None if it changed or was given back meanwhile."""
        # Before its content: a version that is too old is refused.
        found = self._store.version_and_age(self._path)
        if found is None:
            return None
        version, age_sec = found
        try:
            holder = _parse_holder(self._store.read(self._path))
        except FileNotFoundError:
            return None
        if age_sec < self._times.stale_sec and not _has_ended(holder):
            raise UserError(
                f"⟦--output⟧ {self._output!r} is in use by another job (process "
                f"{holder.get('pid', 'unknown')} on {holder.get('host', 'unknown')}, seen "
                f"{age_sec:.0f} s ago); wait for it to end, or choose another folder: the lock of "
                f"a job that was killed on another machine ends {self._times.stale_sec:.0f} s "
                "after it."
            )
        return self._store.write_if(self._path, self._content(), version)

    def _content(self) -> bytes:
        # Other bytes each time: some stores' versions are hashes of the content.
        self._renewals += 1
        return json.dumps(self._holder() | {"renewals": self._renewals}).encode()

    def renew(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_renewing, name="lease", daemon=True)
            self._thread.start()

    def _keep_renewing(self) -> None:
        while not self._stop.wait(self._times.renew_sec):
            begun = time.monotonic()
            try:
                version = self._store.write_if(self._path, self._content(), self._version or "")
            except (OSError, UserError) as e:
                give_up_sec = self._times.give_up_sec
                if time.monotonic() - self._renewed_at < give_up_sec:
                    continue
                self._lose(f"could not be renewed for {give_up_sec:.0f} s ({e})")
                return
            if version is None:
                self._lose("was taken by another job or deleted")
                return
            self._version, self._renewed_at = version, begun

    def _lose(self, how: str) -> None:
        if self._stop.is_set():
            return
        self._lost = how
        main = threading.main_thread().ident
        if main is not None:  # only a signal ends a blocking call of that thread
            signal.pthread_kill(main, signal.SIGINT)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stop.set()
        _held.discard(self._nonce)
        if self._thread is not None:
            self._thread.join(5)
        if self._lost:
            raise LeaseLostError(
                f"the lock {self._path} {self._lost}, so this job was stopped; nothing was "
                "committed: when no other job writes there, run the same command again to resume."
            ) from error
        if self._version is not None:
            with contextlib.suppress(OSError, UserError):  # it ends by itself
                self._store.delete([self._path])


def _parse_holder(content: bytes) -> dict[str, Any]:
    """What a lock says of its holder; empty where it says nothing that can be read."""
    try:
        holder = json.loads(content)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _has_ended(holder: dict[str, Any]) -> bool:
    """Whether the process that held a lock was of this machine and is gone."""
    if holder.get("host") != socket.gethostname():
        return False
    if holder.get("pid") == os.getpid():  # in containers many processes have the same number
        return holder.get("nonce") not in _held
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, KeyError, TypeError, ValueError):
        return False
    return False
