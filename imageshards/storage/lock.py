"""Locks that allow one job per output folder; here the lock of the kernel, for this machine."""

from __future__ import annotations

import abc
import contextlib
import errno
import fcntl
import logging
import os
import re
import socket
import tempfile
import time
import uuid
from typing import Annotated, Any

import msgspec

from imageshards import storage
from imageshards.bounds import MAX_LINE_BYTES
from imageshards.errors import OutputError, UserError
from imageshards.storage.local import is_at
from imageshards.typed import Whole, decode

_LOGGER = logging.getLogger(__name__)

# How long to wait for the worker processes of a killed job, which usually end at their next write.
_ORPHANS_SEC = 60.0
# Answers of a file system without locks: NFS without lockd, and some Lustre and FUSE mounts.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The process that holds a lock, as the lock's content names it."""

    host: str = ""
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 0
    nonce: str = ""
    renewals: Whole = 0

    def __str__(self) -> str:
        return f"process {self.pid or 'unknown'} on {self.host or 'unknown'}"

    @classmethod
    def parse(cls, content: bytes) -> Holder:
        """Returns the holder that a lock's content names; an empty one for damaged content."""
        try:
            return decode(content, cls)
        except ValueError:
            return cls()

    @property
    def sign_of_life(self) -> str:
        """The path of a file of this machine that is locked until the holder has ended."""
        name = self.nonce if re.fullmatch("[0-9a-f]{32}", self.nonce) else "of-nobody"
        return os.path.join(tempfile.gettempdir(), f"imageshards-lock-{name}")

    def has_ended(self) -> bool:
        """Returns whether the holder certainly ran on this machine and has ended."""
        # The file is missing (another machine) or locked (still running).
        with contextlib.suppress(OSError), open(self.sign_of_life, opener=_open_no_link) as sign:
            fcntl.flock(sign, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def forget(self) -> None:
        """Deletes the sign of life of a holder that has ended."""
        with contextlib.suppress(OSError):
            os.unlink(self.sign_of_life)


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
        self._output = output_of(path)
        self._holder = Holder(socket.gethostname(), os.getpid(), uuid.uuid4().hex)
        self._sign: Any = None

    def __enter__(self) -> OutputLock:
        # A temporary file, named after this lock's nonce, is locked until this process has ended.
        # From this file a later job on the same machine can be sure that this process has ended.
        # Process ids and host names prove nothing: containers and copied machines share them.
        # No job can read the nonce before the lock is taken, so none looks for this file too early.
        # Without the file, a lease that is left behind expires in its time.
        with contextlib.suppress(OSError):
            self._sign = open(self._holder.sign_of_life, "xb")
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

    def _held(self, holder: object, remedy: str) -> UserError:
        """Returns the error for an output that another job holds; `holder` is its process."""
        return UserError(
            argument="output",
            received=f"{self._output!r}, which is in use by another job ({holder})",
            remedy=f"wait for it to end, or {remedy}",
        )

    def _end_life(self) -> None:
        self._holder.forget()
        if self._sign is not None:
            self._sign.close()

    @abc.abstractmethod
    def _take(self) -> None:
        """Takes the lock, or raises."""

    @abc.abstractmethod
    def fileno(self) -> int:
        """Returns a descriptor that other processes of the job pass to `join_job`."""

    @abc.abstractmethod
    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Releases the lock."""


class FileLock(OutputLock):
    """A lock of the kernel, which ends with the process.

    Every process with a copy of `fileno()` holds the lock, too. So a killed job keeps its lock
    until its last worker process has ended, and the next job waits for that.

    On a file system without locks, the job makes a second file, which only one job can make, and
    which the user deletes after a kill.
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
        self._found().forget()
        self._file.truncate(0)
        self._file.write(msgspec.json.encode(self._holder))

    def _found(self) -> Holder:
        self._file.seek(0)
        return Holder.parse(self._file.read(MAX_LINE_BYTES))

    def _make_second_file(self, path: str, why: OSError) -> None:
        self._close()
        try:
            self._file = open(path, "x+b", buffering=0)
        except FileExistsError:
            self._file = open(path, "rb", buffering=0)
            raise self._held(self._found(), f"delete {path} if it was killed") from why
        self._only = path
        _LOGGER.warning(
            "%s is on a file system without locks (%s), so the file %s keeps other jobs out; "
            "delete the file if its job was killed",
            self._output, why.strerror, path,
        )  # fmt: skip

    def fileno(self) -> int:
        return int(self._file.fileno())

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
            holder = self._found()
            if not holder.has_ended() or time.monotonic() >= deadline:
                raise self._held(holder, "end its processes, or choose another folder")
            time.sleep(0.05)


def output_of(path: str) -> str:
    """Returns the output folder of a lock's path."""
    return storage.parent_of(storage.parent_of(path))


def _open_no_link(path: str, flags: int) -> int:
    # A FIFO of another user must not block the open.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
