"""Locks that allow one job per output folder; here the lock of the kernel, for this machine."""

from __future__ import annotations

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
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from imageshards import storage
from imageshards.bounds import MAX_LINE_BYTES
from imageshards.errors import UserError
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


@contextlib.contextmanager
def living_holder() -> Iterator[Holder]:
    """Yields this process as a holder, with a sign of life until the block or the process ends."""
    holder = Holder(socket.gethostname(), os.getpid(), uuid.uuid4().hex)
    with contextlib.ExitStack() as stack:
        stack.callback(holder.forget)
        # A temporary file, named after this lock's nonce, is locked until this process has ended.
        # From this file a later job on the same machine can be sure that this process has ended.
        # Process ids and host names prove nothing: containers and copied machines share them.
        # No job can read the nonce before the lock is taken, so none looks for this file too early.
        # Without the file, a lease that is left behind expires in its time.
        with contextlib.suppress(OSError):
            sign = stack.enter_context(open(holder.sign_of_life, "xb"))
            os.register_at_fork(after_in_child=sign.close)
            fcntl.flock(sign, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield holder


def held_error(path: str, holder: object, remedy: str) -> UserError:
    """Returns the error for an output that another job holds; `holder` is its process."""
    return UserError(
        argument="output",
        received=f"{output_of(path)!r}, which is in use by another job ({holder})",
        remedy=f"wait for it to end, or {remedy}",
    )


@contextlib.contextmanager
def file_lock(path: str, holder: Holder) -> Iterator[int]:
    """Takes a lock of the kernel, which ends with the process; yields its descriptor.

    Every process with a copy of the descriptor holds the lock, too. So a killed job keeps its lock
    until its last worker process has ended, and the next job waits for that.

    On a file system without locks, the job makes a second file, which only one job can make, and
    which the user deletes after a kill.
    """
    file = _locked_file(path)
    # The last holder may have deleted the file between our opening and locking it. A lock on a
    # deleted file would keep no job out.
    while not is_at(file.name, file.fileno()):
        file.close()
        file = _locked_file(path)
    # A forked child that outlives this process must not keep the lock.
    os.register_at_fork(after_in_child=file.close)
    with file:
        try:
            _holder_in(file).forget()
            file.truncate(0)
            file.write(msgspec.json.encode(holder))
            yield file.fileno()
        finally:
            if file.name != path:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(file.name)


def _locked_file(path: str) -> Any:
    folder = os.path.dirname(path)
    if os.path.islink(folder):  # A stranger's dataset may have a link to files of the user.
        raise UserError(
            argument="output",
            received=f"{output_of(path)!r}, whose {os.path.basename(folder)} is a link",
            remedy=f"delete the link {folder}, or choose another folder",
        )
    os.makedirs(folder, exist_ok=True)
    file = open(path, "a+b", buffering=0, opener=_open_no_link)
    deadline = time.monotonic() + _ORPHANS_SEC
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            holder = _holder_in(file)
            if not holder.has_ended() or time.monotonic() >= deadline:
                raise held_error(
                    path, holder, "end its processes, or choose another folder"
                ) from None
            time.sleep(0.05)
        except OSError as e:
            if e.errno not in _NO_LOCKS:
                raise
            return _second_file(f"{path}-held", e)


def _second_file(path: str, why: OSError) -> Any:
    try:
        file = open(path, "x+b", buffering=0)
    except FileExistsError:
        with open(path, "rb", buffering=0) as other:
            raise held_error(path, _holder_in(other), f"delete {path} if it was killed") from why
    _LOGGER.warning(
        "%s is on a file system without locks (%s), so the file %s keeps other jobs out; "
        "delete the file if its job was killed",
        output_of(path), why.strerror, path,
    )  # fmt: skip
    return file


def _holder_in(file: Any) -> Holder:
    file.seek(0)
    return Holder.parse(file.read(MAX_LINE_BYTES))


def output_of(path: str) -> str:
    """Returns the output folder of a lock's path."""
    return storage.parent_of(storage.parent_of(path))


def _open_no_link(path: str, flags: int) -> int:
    # A FIFO of another user must not block the open.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
