"""What the hosts of one run tell each other beside TensorFlow's sums: small values, and the end.

Each host holds one connection to the chief, which collects and hands on. TensorFlow's own sums
wait for ever, or fail with many lines, where a host is late or lost; here every wait has a
time-out and a sentence.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeVar

from imageshards.errors import Arg, UserError
from trainer.cluster.connection import HEARTBEAT_SEC, WORKING, Link, noted_work

if TYPE_CHECKING:
    import numpy as np

# What the main thread has to end in, before the process is ended under it: it may hang in a sum
# that another host will never join.
GRACE_SEC = 20.0
# So long a process that would be ended waits for its checkpoint.
WRITE_SEC = 600.0
EXIT_LOST = 1

_T = TypeVar("_T")
_VALUE, _END = b"V", b"E"
# After this value a host may go.
_LAST = "end"
# TensorFlow's errors that come from another host, or from the way to it.
_FROM_OTHERS = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")


class Ended(Exception):
    """Another host has ended the run.

    Its exit code is 2 for a user's mistake that was found there, 143 or 130 after a signal, else
    `EXIT_LOST`.
    """

    def __init__(self, message: str, exit_code: int = EXIT_LOST) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Hosts:
    """The hosts of one run, seen from one of them; without peers, a machine by itself.

    Every method that takes a `name` is called by all hosts, in the same order, from their main
    threads; a thread for each connection receives. The first of these that learns of an end
    sets `_ended`, wakes the main thread where it waits for a value, and aborts the sum that it
    may wait in; `leave` sets `_left`, after which nothing more is an error.

    Args:
        peers: Connections by index: of the chief, the first, to all others, of others to the chief.
        timeout_sec: How long others may be silent: neither answer, nor tell of work that gets on.

    Attributes:
        writing: Held by the thread that writes a checkpoint, which a lost host does not cut off.
    """

    def __init__(
        self,
        addresses: Sequence[str] = ("localhost",),
        index: int = 0,
        peers: Mapping[int, Connection] | None = None,
        timeout_sec: float = 600.0,
    ) -> None:
        self.addresses, self.index = tuple(addresses), index
        self.timeout_sec = timeout_sec
        self.writing, self._lock = threading.Lock(), threading.Lock()
        self._ended: Ended | None = None
        self._noticed, self._left = threading.Event(), threading.Event()
        self._gone: set[int] = set()
        self._limit: tuple[float, str] | None = None
        # When each of them, this one included, was last heard of to get on; others than the chief
        # hear of it from the chief.
        self._worked_sec = dict.fromkeys(range(len(self.addresses)), 0.0)
        self._handed_on = 0
        # (name, value) from each peer; None at the end.
        self._inbox: dict[int, queue.SimpleQueue[tuple[str, bytes] | None]] = {}
        self._links: dict[int, Link] = {}
        for number, connection in (peers or {}).items():
            self._inbox[number] = queue.SimpleQueue()
            self._links[number] = Link(
                connection,
                functools.partial(self._received, number),
                functools.partial(self._lost, number),
                lambda: noted_work() + self._handed_on,
            )
        for link in self._links.values():
            link.start()
        if self._links:
            threading.Thread(target=self._watch, daemon=True).start()

    @property
    def count(self) -> int:
        """Number of hosts."""
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        """Whether this host writes the run's output and prints."""
        return self.index == 0

    def share(self, name: str, make: Callable[[], bytes], patient: bool = False) -> bytes:
        """What the chief alone makes, on all hosts."""
        if not self.is_chief:
            return self._take(0, name, patient)
        value = make()
        for number in self._links:
            self._send(number, name, value)
        for link in self._links.values():
            link.flush()
        return value

    def gather(self, name: str, value: _T, patient: bool = False) -> list[_T]:
        """The values, JSON, of all hosts in their order, on all; `Ended` where one does not answer.

        With `patient` it waits as long as the others live, for example while they write.
        """
        if self.count == 1:
            return [value]

        def joined(values: list[bytes]) -> bytes:
            return b"[%b]" % b",".join(values)

        return json.loads(self._join(name, json.dumps(value).encode(), joined, patient))

    def concatenate(
        self,
        name: str,
        arrays: Mapping[str, np.ndarray],
        join: Callable[[list[np.ndarray]], np.ndarray] | None = None,
    ) -> dict[str, np.ndarray]:
        """Arrays of all hosts, joined along their first axis in the order of hosts, on all.

        With `join` the chief does this to the arrays of all hosts, for example sums them up.
        """
        if self.count == 1:
            return dict(arrays)
        import numpy as np

        def joined(packed: list[bytes]) -> bytes:
            parts = [*map(_unpacked, packed)]
            return _packed(
                {n: (join or np.concatenate)([part[n] for part in parts]) for n in arrays}
            )

        return _unpacked(self._join(name, _packed(arrays), joined))

    def compare(self, settings: Mapping[str, object]) -> None:
        """Refuses settings, JSON values by the names to show, that differ; one sentence on all."""
        chiefs, *others = self.gather("settings", dict(settings))
        for address, theirs in zip(self.addresses[1:], others, strict=True):
            for name in [*chiefs, *(name for name in theirs if name not in chiefs)]:
                if chiefs.get(name) != theirs.get(name):
                    raise UserError(
                        f"{name} is {theirs.get(name)} on {address}, but {chiefs.get(name)} on "
                        f"{self.addresses[0]}",
                        expected="the same on all hosts",
                        remedy="start the same command, of the same version, on the same data",
                    )

    @contextlib.contextmanager
    def limited(self, what: str) -> Iterator[None]:
        """Ends the run where what is inside, a sum over all hosts, does not end in time.

        Counted from the last sign that any of them gets on: the batch of a step is read inside.
        """
        self._limit = (time.monotonic(), what)
        try:
            yield
        finally:
            self._limit = None

    def leave(self, error: BaseException | None = None) -> None:
        """Ends the run here, after an error that of the others, too; `Ended` if another fails."""
        try:
            if error is None:
                self.gather(_LAST, None, patient=True)
            elif self._ended is None:
                code = getattr(error, "exit_code", 2 if isinstance(error, UserError) else EXIT_LOST)
                self._tell_end(code, str(error) if _has_sentence(error) else _named(error))
        finally:
            self._left.set()
            for link in self._links.values():
                link.close()

    def explain(self, error: BaseException) -> BaseException:
        """What a failure of TensorFlow comes from: where a host was lost, that."""
        if not self._links or _has_sentence(error) or not isinstance(error, Exception):
            return error
        # TensorFlow may notice a broken connection first.
        if type(error).__module__.startswith("tensorflow"):
            self._noticed.wait(HEARTBEAT_SEC)
        if self._ended is None and type(error).__name__ in _FROM_OTHERS:
            return Ended(
                f"TensorFlow on {self.addresses[self.index]} does not reach another host "
                f"({_named(error)}); expected that every host resolves and reaches all of "
                f"{', '.join(self.addresses)}: look at names and firewalls, then run the same "
                "command on all hosts again."
            )
        return self._ended or error

    def _join(
        self, name: str, value: bytes, join: Callable[[list[bytes]], bytes], patient: bool = False
    ) -> bytes:
        """What the chief makes of the values of all hosts, in their order, on all hosts."""
        if not self.is_chief:
            self._send(0, name, value)
            return self._take(0, name, patient)
        values = [value, *(self._take(number, name, patient) for number in sorted(self._links))]
        return self.share(name, lambda: join(values))

    def _send(self, number: int, name: str, value: bytes) -> None:
        self._links[number].send(_VALUE + name.encode() + b"\0" + value)

    def _take(self, number: int, name: str, patient: bool) -> bytes:
        """The next value of a peer, which has to be of this name."""
        begun_sec = time.monotonic()
        while True:
            since_sec = max(begun_sec, self._worked_sec[number])
            left_sec = since_sec + self.timeout_sec - time.monotonic()
            try:
                found = self._inbox[number].get(timeout=None if patient else max(0.0, left_sec))
                break
            except queue.Empty:
                if left_sec > 0:
                    continue  # it may have told of work meanwhile
                raise Ended(
                    f"host {self.addresses[number]} did not answer for {self.timeout_sec:g} s, "
                    f"while this host waits with {name!r}; look at it, or allow more with "
                    f"{Arg('cluster_timeout')}, and run the same command on all hosts again."
                ) from None
        if found is None:
            raise self._ended or self._gone_error(number)
        theirs, value = found
        if theirs != name:
            here, there = self.addresses[self.index], self.addresses[number]
            raise Ended(
                f"host {there} is at {theirs!r}, while {here} is at {name!r}; expected all hosts "
                "to do the same: does a callback stop the training, or fail, on one of them only?"
            )
        return value

    def _received(self, number: int, message: bytes) -> None:
        if message == WORKING:
            self._worked_sec[number] = time.monotonic()
            self._handed_on += self.is_chief
            return
        name, _, value = message[1:].partition(b"\0")
        if message[:1] == _END:
            origin = f"host {self.addresses[number]}: " if self.is_chief else ""
            self._end(Ended(origin + value.decode(), int(name)))
            return
        if name.decode() == _LAST:
            self._gone.add(number)  # it may go now
        self._inbox[number].put((name.decode(), value))

    def _lost(self, number: int) -> None:
        if number not in self._gone:
            self._end(self._gone_error(number))

    def _watch(self) -> None:
        told = noted_work()
        while not self._left.wait(1.0):
            if noted_work() != told:
                told, self._worked_sec[self.index] = noted_work(), time.monotonic()
            if (limit := self._limit) is None:
                continue
            since_sec = max(*self._worked_sec.values(), limit[0])
            if time.monotonic() > since_sec + self.timeout_sec:
                problem = (
                    f"{limit[1]} did not end within {self.timeout_sec:g} s on "
                    f"{self.addresses[self.index]}: another host, or the way to it, hangs; look at "
                    f"both, or allow more with {Arg('cluster_timeout')}, and run the same command "
                    "on all hosts again."
                )
                self._end(Ended(problem))

    def _end(self, ended: Ended) -> None:
        """Makes the main thread end, wherever it waits."""
        with self._lock:
            if self._left.is_set() or self._ended is not None:
                return
            self._ended = ended
        self._noticed.set()
        for inbox in self._inbox.values():
            inbox.put(None)
        self._tell_end(ended.exit_code, str(ended))
        _abort_sums(str(ended))
        last_sec = time.monotonic() + WRITE_SEC
        while not self._left.wait(GRACE_SEC):
            # Without a checkpoint that is being written all since the one before would be lost.
            if not self.writing.locked() or time.monotonic() > last_sec:
                print(f"imageshards train: {ended}", file=sys.stderr, flush=True)
                os._exit(ended.exit_code)

    def _tell_end(self, exit_code: int, message: str) -> None:
        for link in self._links.values():
            link.send(_END + str(exit_code).encode() + b"\0" + message.encode())

    def _gone_error(self, number: int) -> Ended:
        return Ended(
            f"host {self.addresses[number]} is lost: its process was killed, or its machine or "
            "network failed; run the same command on all hosts again to resume from the last "
            "checkpoint."
        )


ONE_HOST = Hosts()


def _abort_sums(reason: str) -> None:
    """Makes TensorFlow's waiting sums fail; else they wait for a lost host for ever."""
    if "tensorflow" not in sys.modules:
        return
    from tensorflow.python.eager import context

    with contextlib.suppress(Exception):  # not begun, or over
        context.context().abort_collective_ops(14, reason)


def _has_sentence(error: BaseException) -> bool:
    return isinstance(error, UserError) or hasattr(error, "exit_code")


def _packed(arrays: Mapping[str, Any]) -> bytes:
    import numpy as np

    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _unpacked(data: bytes) -> dict[str, np.ndarray]:
    import numpy as np

    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        return dict(found)


def _named(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
