"""What buckets have in common: names, retries, and which errors are about how much."""

from __future__ import annotations

import abc
import errno
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from imageshards.errors import UserError

# Names the emulator of gs:// to Google's libraries; TensorFlow does not know it.
EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"
# Requests at the same time: what copying shards and looking at many of them need.
CONNECTIONS = 32
CONNECT_SEC, READ_SEC, PROBE_SEC = 5, 30, 5
_TRIES = 5
_FIRST_WAIT_SEC = 0.2

_T = TypeVar("_T")


class Found(NamedTuple):
    """An object, or what makes a folder of several.

    Attributes:
        name: Within the bucket; a folder's ends with a slash.
        num_bytes: Its size.
        modified_nsec: When it was written, in nanoseconds since 1970.
    """

    name: str
    num_bytes: int
    modified_nsec: int


class Trouble(NamedTuple):
    """What a library's error is about.

    Attributes:
        kind: `missing`, `refused`, `credentials`, `unreachable` or `other`.
        text: What it said, without a full stop.
    """

    kind: str
    text: str


class BrokenOffError(Exception):
    """An answer that ended before its end; its cause is the library's error."""


def split_uri(uri: str) -> tuple[str, str]:
    """`s3://bucket/a/b` → (`bucket`, `a/b`)."""
    bucket, _, name = uri.partition("://")[2].partition("/")
    return bucket, name


class Store(abc.ABC):
    """One store's client; may be used by many threads.

    What its library raises becomes `FileNotFoundError`, `PermissionError` or another `OSError`
    if it is about one object, a `UserError` if it is about the bucket or the credentials.
    """

    scheme: str
    #: What the library raises, after retries of its own.
    errors: tuple[type[BaseException], ...]

    def __init__(self) -> None:
        self._sound: set[str] = set()
        self._probing = threading.Lock()

    @abc.abstractmethod
    def look(self, bucket: str, name: str) -> Found:
        """Size and time of an object."""

    @abc.abstractmethod
    def read(self, bucket: str, name: str, start: int, end: int | None) -> bytes:
        """Bytes `start` to before `end`, or all from there; fewer at the object's end.

        May raise `BrokenOffError`, which no library tries again by itself.
        """

    @abc.abstractmethod
    def names(self, bucket: str, prefix: str, delimiter: str) -> Iterator[Found]:
        """Objects, and names up to a delimiter that several share, page by page."""

    @abc.abstractmethod
    def probe(self, bucket: str) -> None:
        """Asks for one name, without patience."""

    @abc.abstractmethod
    def sort(self, error: BaseException) -> Trouble:
        """What an error of the library is about."""

    @abc.abstractmethod
    def who(self) -> str:
        """Whose credentials are in use, for messages."""

    @abc.abstractmethod
    def remedy(self, kind: str) -> str:
        """What to do about a bucket's trouble."""

    def asked(self, uri: str, ask: Callable[[], _T]) -> _T:
        """Calls the library; its errors become ours."""
        for attempt in range(1, _TRIES):
            try:
                return self._asked(uri, ask)
            except BrokenOffError:
                # Jitter keeps threads that failed together from coming back together.
                wait_sec = _FIRST_WAIT_SEC * 2**attempt
                time.sleep(wait_sec * random.uniform(0.5, 1))
        try:
            return self._asked(uri, ask)
        except BrokenOffError as e:
            text = f"the answer broke off {_TRIES} times ({first_line(e.__cause__)})"
            raise OSError(errno.EIO, text, uri) from e

    def _asked(self, uri: str, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except self.errors as e:
            raise self._error(uri, self.sort(e)) from e

    def check(self, uri: str, flag: str) -> None:
        """Finds out with one request whether a bucket can be used.

        A bucket whose names must not be listed may still hold objects that can be read, and one
        that is busy is waited for: reading tells.

        Args:
            uri: Something in it.
            flag: What gave it, for the message.

        Raises:
            UserError: It cannot.
        """
        bucket, _ = split_uri(uri)
        if not bucket:
            raise UserError(
                f"{flag} received {uri!r}, which names no bucket; expected "
                f"{self.scheme}://BUCKET/FOLDER."
            )
        trouble = self._trouble_of(bucket)
        if trouble is not None and trouble.kind in ("missing", "credentials", "unreachable"):
            raise self._bucket_error(f"{flag} received {uri!r}, whose bucket", trouble)

    def _trouble_of(self, bucket: str) -> Trouble | None:
        """What is wrong with a bucket; one that answered once is trusted."""
        with self._probing:
            if bucket in self._sound:
                return None
            try:
                self.probe(bucket)
            except self.errors as e:
                return self.sort(e)
            self._sound.add(bucket)
            return None

    def _error(self, uri: str, trouble: Trouble) -> Exception:
        bucket, _ = split_uri(uri)
        if trouble.kind == "credentials":
            return self._bucket_error(f"{self.scheme}://{bucket}", trouble)
        if trouble.kind in ("missing", "refused"):
            found = self._trouble_of(bucket)
            if found is not None and found.kind in (trouble.kind, "credentials"):
                return self._bucket_error(f"{self.scheme}://{bucket}", found)
        if trouble.kind == "missing":
            return FileNotFoundError(errno.ENOENT, "there is no such object", uri)
        if trouble.kind == "refused":
            text = f"access is refused (403) to {self.who()}: {self.remedy('refused')}"
            return PermissionError(errno.EACCES, text, uri)
        return OSError(errno.EIO, trouble.text, uri)

    def _bucket_error(self, what: str, trouble: Trouble) -> UserError:
        said = {
            "missing": "does not exist",
            "refused": f"cannot be read: access is refused (403) to {self.who()}",
            "credentials": f"cannot be read with {self.who()} ({trouble.text})",
            "unreachable": f"cannot be reached ({trouble.text})",
        }.get(trouble.kind, f"cannot be read ({trouble.text})")
        return UserError(f"{what} {said}; {self.remedy(trouble.kind)}.")


def first_line(error: object) -> str:
    """The first line of a message, without a full stop, and not too long for a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(". ")[:300] if lines else type(error).__name__


def nanoseconds(time: Any) -> int:
    """A `datetime` as nanoseconds since 1970; 0 for None."""
    return 0 if time is None else int(time.timestamp() * 10**9)
