"""Exchanges small values and the end of a run between its hosts, beside TensorFlow's sums.

Each host has one connection to the chief, which collects and forwards. If a host is late or lost,
TensorFlow's sums wait for ever or fail with many lines; here each wait has a time-out, and its
failure one sentence.
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
from typing import Any, TypeVar

import numpy as np

from imageshards.errors import Arg, UserError
from trainer.cluster.connection import HEARTBEAT_SEC, WORKING, Link, noted_work

# The main thread has this time to end by itself. It may hang in a sum that another host will never
# join, so after this time the process ends.
GRACE_SEC = 20.0
# A process that must end waits this long for the checkpoint that it writes.
WRITE_SEC = 600.0
EXIT_LOST = 1

_T = TypeVar("_T")
_VALUE, _END = b"V", b"E"
# The last value of a run: a host that has sent it may close its connection.
_LAST = "end"
# TensorFlow's errors that come from another host or from the network.
_FROM_OTHERS = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")


class Ended(Exception):
    """The end of the run, caused by another host.

    Attributes:
        exit_code: 2 for a user's mistake, 143 or 130 after a signal, else `EXIT_LOST`.
    """

    def __init__(self, message: str, exit_code: int = EXIT_LOST) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Hosts:
    """The connections of this host to the hosts of its run; without peers a single machine.

    All hosts must call each method with a `name` in the same order, from their main threads. A
    thread for each connection receives. The first thread that learns of the end of another host
    sets `_ended`, wakes the main thread, and aborts the sum in which the main thread may wait.

    Args:
        addresses, index: The hosts, the chief first, and the place of this host among them.
        peers: Connections by index: the chief has one to each host, each host one to the chief.
        timeout_sec: The time that a host may neither answer nor report progress.

    Attributes:
        writing: A lock that the thread that writes a checkpoint holds, so that the process does not
            end in the middle of a checkpoint.
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
        self._noticed = threading.Event()
        self._left = threading.Event()  # After `leave` a closed connection is no error.
        self._gone: set[int] = set()
        self._limit: tuple[float, str] | None = None
        # The time of the last progress of each host, this host included. The chief forwards all
        # progress, so that on every host the time of the chief covers all hosts.
        self._worked_sec = dict.fromkeys(range(len(self.addresses)), 0.0)
        self._handed_on = 0
        # Each inbox holds (name, value) from a peer; None wakes the main thread at the end.
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
        """The number of hosts."""
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        """Whether this host writes the run's output and prints."""
        return self.index == 0

    def share(self, name: str, make: Callable[[], bytes], patient: bool = False) -> bytes:
        """Returns on all hosts the value that `make` returns on the chief."""
        if not self.is_chief:
            return self._take(0, name, patient)
        value = make()
        # All messages are queued before the first wait, so that no slow host delays the others.
        for number in self._links:
            self._send(number, name, value)
        for link in self._links.values():
            link.flush()
        return value

    def gather(self, name: str, value: _T, patient: bool = False) -> list[_T]:
        """Returns on all hosts the JSON values of all hosts, in the order of the hosts.

        A `patient` call waits as long as the hosts live, for example while they write.

        Raises:
            Ended: A host does not answer.
        """
        if self.count == 1:
            return [value]
        mine = json.dumps(value).encode()
        # Each value is JSON already, so the chief need not parse the values.
        joined = self._join(name, mine, lambda all_: b"[%b]" % b",".join(all_), patient)
        return json.loads(joined)

    def concatenate(
        self,
        name: str,
        arrays: Mapping[str, np.ndarray],
        join: Callable[[list[np.ndarray]], np.ndarray] | None = None,
    ) -> dict[str, np.ndarray]:
        """Returns on all hosts the arrays of all hosts, joined along their first axis.

        The chief calls `join`, for example a sum, in place of concatenation.
        """
        if self.count == 1:
            return dict(arrays)

        def joined(packed: list[bytes]) -> bytes:
            parts = [*map(_unpacked, packed)]
            return _packed(
                {n: (join or np.concatenate)([part[n] for part in parts]) for n in arrays}
            )

        return _unpacked(self._join(name, _packed(arrays), joined))

    def compare(self, settings: Mapping[str, object]) -> None:
        """Refuses, on all hosts, settings (JSON values by name) that differ between two hosts."""
        chiefs, *rest = self.gather("settings", dict(settings))
        for address, theirs in zip(self.addresses[1:], rest, strict=True):
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
        """Ends the run if the `with` block, a sum over all hosts, takes too long.

        `what` names the block in the error. The time begins again with each progress of any host,
        since the block also reads the batch of a step.
        """
        self._limit = (time.monotonic(), what)
        try:
            yield
        finally:
            self._limit = None

    def leave(self, error: BaseException | None = None) -> None:
        """Waits until all hosts have ended; after an error of this host, ends the run on all hosts.

        Raises:
            Ended: Another host has failed.
        """
        try:
            if error is None:
                self.gather(_LAST, None, patient=True)
            elif self._ended is None:
                # The errors of signals and of other hosts bring their exit codes.
                code = getattr(error, "exit_code", 2 if isinstance(error, UserError) else EXIT_LOST)
                self._tell_end(code, str(error) if _has_sentence(error) else _named(error))
        finally:
            self._left.set()
            for link in self._links.values():
                link.close()

    def explain(self, error: BaseException) -> BaseException:
        """Returns the cause of an error: the loss of a host, or the error itself."""
        if not self._links or _has_sentence(error) or not isinstance(error, Exception):
            return error
        # TensorFlow may notice a broken connection before the threads here do.
        if type(error).__module__.startswith("tensorflow"):
            self._noticed.wait(HEARTBEAT_SEC)
        if self._ended is None and type(error).__name__ in _FROM_OTHERS:
            return Ended(
                f"TensorFlow on {self.addresses[self.index]} does not reach another host "
                f"({_named(error)}); expected that every host resolves and reaches all of "
                f"{', '.join(self.addresses)}: check names and firewalls, then run the same "
                "command on all hosts again."
            )
        return self._ended or error

    def _join(
        self, name: str, value: bytes, join: Callable[[list[bytes]], bytes], patient: bool = False
    ) -> bytes:
        """Returns on all hosts the value that the chief joins from the values of all hosts."""
        if not self.is_chief:
            self._send(0, name, value)
            return self._take(0, name, patient)
        values = [value, *(self._take(number, name, patient) for number in sorted(self._links))]
        return self.share(name, lambda: join(values))

    def _send(self, number: int, name: str, value: bytes) -> None:
        self._links[number].send(_VALUE + name.encode() + b"\0" + value)

    def _take(self, number: int, name: str, patient: bool) -> bytes:
        """Returns the next value of a peer, which must have this name."""
        begun_sec = time.monotonic()
        while True:
            since_sec = max(begun_sec, self._worked_sec[number])
            left_sec = since_sec + self.timeout_sec - time.monotonic()
            try:
                found = self._inbox[number].get(timeout=None if patient else max(0.0, left_sec))
                break
            except queue.Empty:
                if left_sec > 0:
                    continue  # The peer may have reported progress during the wait.
                raise Ended(
                    f"host {self.addresses[number]} did not answer for {self.timeout_sec:g} s, "
                    f"while this host waits at {name!r}; check that host, or raise "
                    f"{Arg('cluster_timeout')}, and run the same command on all hosts again."
                ) from None
        if found is None:
            raise self._ended or self._gone_error(number)
        theirs, value = found
        if theirs != name:
            here, there = self.addresses[self.index], self.addresses[number]
            raise Ended(
                f"host {there} is at {theirs!r}, while {here} is at {name!r}; expected all hosts "
                "to do the same: look for a callback that stops or fails on one host only."
            )
        return value

    def _received(self, number: int, message: bytes) -> None:
        if message == WORKING:
            self._worked_sec[number] = time.monotonic()
            self._handed_on += self.is_chief
            return
        name, _, value = message[1:].partition(b"\0")
        if message[:1] == _END:
            # The chief forwards the end of a host, so only the chief names the host.
            origin = f"host {self.addresses[number]}: " if self.is_chief else ""
            self._end(Ended(origin + value.decode(), int(name)))
            return
        if name.decode() == _LAST:
            self._gone.add(number)  # From now on a closed connection is no error.
        self._inbox[number].put((name.decode(), value))

    def _lost(self, number: int) -> None:
        if number not in self._gone:
            self._end(self._gone_error(number))

    def _watch(self) -> None:
        seen = noted_work()
        while not self._left.wait(1.0):
            if noted_work() != seen:
                seen, self._worked_sec[self.index] = noted_work(), time.monotonic()
            if (limit := self._limit) is None:
                continue
            since_sec = max(*self._worked_sec.values(), limit[0])
            if time.monotonic() > since_sec + self.timeout_sec:
                problem = (
                    f"{limit[1]} did not end within {self.timeout_sec:g} s on "
                    f"{self.addresses[self.index]}: another host or the network hangs; check both, "
                    f"or raise {Arg('cluster_timeout')}, and run the same command on all hosts "
                    "again."
                )
                self._end(Ended(problem))

    def _end(self, ended: Ended) -> None:
        """Makes the main thread end wherever it waits, and the process if the thread does not."""
        with self._lock:
            if self._left.is_set() or self._ended is not None:
                return
            self._ended = ended
        self._noticed.set()
        # The main thread may wait for a value, or in a sum of TensorFlow.
        for inbox in self._inbox.values():
            inbox.put(None)
        self._tell_end(ended.exit_code, str(ended))
        # TensorFlow's sums would otherwise wait for a lost host for ever.
        if "tensorflow" in sys.modules:
            from tensorflow.python.eager import context

            with contextlib.suppress(Exception):  # There may be no sum, or no context yet.
                # 14 is the code UNAVAILABLE.
                context.context().abort_collective_ops(14, str(ended))
        last_sec = time.monotonic() + WRITE_SEC
        while not self._left.wait(GRACE_SEC):
            # Without the checkpoint in progress, all work since the previous one would be lost.
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


def _has_sentence(error: BaseException) -> bool:
    return isinstance(error, UserError) or hasattr(error, "exit_code")


def _packed(arrays: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _unpacked(data: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        return dict(found)


def _named(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
