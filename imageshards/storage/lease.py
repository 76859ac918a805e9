"""One job per output in a store: a lease that its holder renews, and that ends by itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
import uuid
from typing import Any

from imageshards import storage
from imageshards.errors import LeaseLostError, OutputError, UserError

RENEW_SEC = 15.0
# A lease that was not renewed for so long, by the store's clock, is nobody's.
STALE_SEC = 60.0
# The holder gives up earlier than others may take it.
GIVE_UP_SEC = 45.0

_ATTEMPTS = 5

# Nonces of the leases that this process holds.
_held: set[str] = set()


class StorageLock:
    """Holds an object of a store for this process.

    Its content says who holds it. While it is held, a thread writes it anew, on condition
    that nobody else has; a process that ends without giving it back stops doing so. `renew`
    starts that thread: it is not started before processes have been forked.

    Args:
        path: The object, in a folder of its own below the output.
        renew_sec: Seconds between renewals.

    Raises:
        UserError: Another job holds it.
        OutputError: The object cannot be written.
        LeaseLostError: On leaving, if it was lost meanwhile: the main thread was interrupted.
    """

    def __init__(self, path: str, renew_sec: float = RENEW_SEC):
        self._path = path
        self._output = storage.parent_of(storage.parent_of(path))
        self._renew_sec = renew_sec
        self._nonce = uuid.uuid4().hex
        self._renewals = 0
        self._version: str = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._renewed = 0.0
        self._lost = ""

    def __enter__(self) -> StorageLock:
        try:
            self._take()
        except OSError as e:
            raise OutputError(
                f"--output {self._output!r} cannot be written ({e.strerror or e}); choose another "
                "folder or fix its permissions."
            ) from e
        return self

    def _take(self) -> None:
        for _ in range(_ATTEMPTS):
            self._renewed = time.monotonic()
            version = storage.create(self._path, self._content())
            if version is None:
                version = self._take_over()
            if version is not None:
                self._version = version
                _held.add(self._nonce)
                return
        raise UserError(
            f"--output {self._output!r} is wanted by several jobs at once; wait until one holds it."
        )

    def _take_over(self) -> str | None:
        """Takes a lease that is nobody's any more; None if it changed or went meanwhile."""
        found = storage.stat(self._path)  # before its content: a version that is too old is refused
        age_sec = storage.age_sec(self._path)
        if found is None or age_sec is None:
            return None
        try:
            holder = json.loads(storage.read(self._path))
        except FileNotFoundError:
            return None
        except ValueError:
            holder = {}
        if age_sec < STALE_SEC and not _is_dead(holder):
            raise UserError(
                f"--output {self._output!r} is in use by another job (process "
                f"{holder.get('pid', 'unknown')} on {holder.get('host', 'unknown')}, seen "
                f"{age_sec:.0f} s ago); wait for it to end, or choose another folder: the lock "
                f"of a job that was killed on another machine ends {STALE_SEC:.0f} s after it."
            )
        return storage.replace_if(self._path, self._content(), found.version)

    def _content(self) -> str:
        # Other bytes each time: some stores' versions are hashes of the content.
        self._renewals += 1
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "nonce": self._nonce}
        return json.dumps(holder | {"renewals": self._renewals})

    def renew(self) -> None:
        """Keeps the lease from now on, in a thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
            self._thread.start()

    def _keep(self) -> None:
        while not self._stop.wait(self._renew_sec):
            begun = time.monotonic()
            try:
                version = storage.replace_if(self._path, self._content(), self._version)
            except (OSError, UserError) as e:
                if time.monotonic() - self._renewed < GIVE_UP_SEC:
                    continue
                self._lose(f"could not be renewed for {GIVE_UP_SEC:.0f} s ({e})")
                return
            if version is None:
                self._lose("was taken by another job or deleted")
                return
            self._version, self._renewed = version, begun

    def _lose(self, how: str) -> None:
        if self._stop.is_set():
            return
        self._lost = how
        main = threading.main_thread().ident
        if main is not None:  # a blocking call of that thread ends by a signal alone
            signal.pthread_kill(main, signal.SIGINT)

    def __exit__(self, kind: Any, error: BaseException | None, trace: object) -> None:
        self._stop.set()
        _held.discard(self._nonce)
        if self._thread is not None:
            self._thread.join(5)
        if self._lost:
            raise LeaseLostError(
                f"the lock {self._path} {self._lost}, so this job was stopped; nothing was "
                "committed: when no other job writes there, run the same command again to resume."
            ) from error
        with contextlib.suppress(OSError, UserError):  # it ends by itself
            storage.delete([self._path])


def _is_dead(holder: Any) -> bool:
    """Whether the process that holds a lease was of this machine and is gone."""
    if not isinstance(holder, dict) or holder.get("host") != socket.gethostname():
        return False
    try:
        pid = int(holder["pid"])
        if pid == os.getpid():  # in containers many processes have the same number
            return holder.get("nonce") not in _held
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, KeyError, TypeError, ValueError):
        return False
    return False
