"""Exchanges small values and the end of a run between its hosts, beside TensorFlow's sums.

Each host has one connection to the chief, which collects and forwards. If a host is late or lost,
TensorFlow's sums wait for ever or fail with many lines; here each wait has a time-out, and its
failure one sentence.

A message is a line of JSON, a name and the sizes of values, and then the values. An empty line is a
heartbeat.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

import numpy as np

from imageshards.errors import Arg, UserError

HEARTBEAT_SEC = 1.0
# A host that has sent nothing for this time is lost: it has no power or network, or is stopped.
LOST_AFTER_SEC = 60.0
# The main thread has this time to end by itself. It may hang in a sum that another host will never
# join, so after this time the process ends.
GRACE_SEC = 20.0
EXIT_LOST = 1

_T = TypeVar("_T")
_ALIVE = b"\n"
_PIECE_BYTES = 2**20
# The name of the end of a run, whose values are an exit code and a sentence.
_FAILED = "failed"
# The name of a run's last value: a host that has sent it may close its connection.
LAST = "end"
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

    All hosts must call `gather`, and what calls it, with a `name` in the same order, from their
    main threads. A thread for each connection receives, so that the end of another host wakes the
    main thread. One more thread sends, so that no signal interrupts a message half-way, and watches
    the time.

    Args:
        addresses, index: The hosts, the chief first, and the place of this host among them.
        peers: Connections by index: the chief has one to each host, each host one to the chief.
        timeout_sec: The time that this host waits for a value or a sum.

    Attributes:
        count: The number of hosts.
        is_chief: Whether this host writes the run's output and prints.
        writing: A lock that the thread that writes a checkpoint holds, so that the process does not
            end in the middle of a checkpoint.
    """

    def __init__(
        self,
        addresses: Sequence[str] = ("localhost",),
        index: int = 0,
        peers: Mapping[int, socket.socket] | None = None,
        timeout_sec: float = 600.0,
    ) -> None:
        self.addresses, self.index, self._peers = tuple(addresses), index, dict(peers or {})
        self.count, self.is_chief, self.timeout_sec = len(addresses), index == 0, timeout_sec
        self.writing = threading.Lock()
        # The end of the run by another host. After `leave` a closed connection is no error.
        self._ended: Future[Ended] = Future()
        self._limit: tuple[float, str] | None = None
        self._outbox: queue.Queue[bytes | None] = queue.Queue()
        # The messages of each peer, a name and values; None wakes the main thread at the end.
        self._inbox: dict[int, Any] = {number: queue.SimpleQueue() for number in self._peers}
        self._sender = threading.Thread(target=self._send_all, daemon=True)
        if self._peers:
            self._sender.start()
        for number, stream in self._peers.items():
            stream.settimeout(LOST_AFTER_SEC)
            # Messages are small and awaited, so none may wait for more data to send.
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._receive_all, args=[number, stream], daemon=True).start()

    def gather(self, name: str, value: _T, patient: bool = False) -> list[_T]:
        """Returns on all hosts the JSON values of all hosts, in the order of the hosts.

        A `patient` call waits as long as the hosts live, for example while they write, or decode
        pictures for hours.

        Raises:
            Ended: A host does not answer.
        """
        found = self.exchange(name, json.dumps(value).encode(), patient)
        return [json.loads(one) for one in found]

    def exchange(self, name: str, value: bytes, patient: bool = False) -> list[bytes]:
        """Returns on all hosts the bytes of all hosts, as `gather` does for JSON values."""
        if self.count == 1:
            return [value]
        if not self.is_chief:
            self._outbox.put(_message(name, value))
            return self._take(0, name, patient)
        values = [value]
        for number in sorted(self._inbox):
            values += self._take(number, name, patient)
        self._outbox.put(_message(name, *values))
        # TensorFlow may hold the interpreter's lock next, which would stop the sending thread.
        self._outbox.join()
        return values

    def concatenate(self, name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns on all hosts the arrays of all hosts, joined along their first axis."""
        if self.count == 1:
            return dict(arrays)
        file = io.BytesIO()
        np.savez(file, **dict[str, Any](arrays))
        found = self.exchange(name, file.getvalue())
        parts = [np.load(io.BytesIO(one), allow_pickle=False) for one in found]
        return {each: np.concatenate([part[each] for part in parts]) for each in arrays}

    def compare(self, settings: Mapping[str, object]) -> None:
        """Refuses, on all hosts, settings (JSON values by name) that differ between two hosts."""
        chiefs, *rest = self.gather("settings", dict(settings))
        for address, theirs in zip(self.addresses[1:], rest, strict=True):
            for name in chiefs | theirs:
                if chiefs.get(name) != theirs.get(name):
                    raise UserError(
                        f"{name} is {theirs.get(name)} on {address}, but {chiefs.get(name)} on "
                        f"{self.addresses[0]}",
                        expected="the same on all hosts",
                        remedy="start the same command, of the same version, on the same data",
                    )

    @contextlib.contextmanager
    def limited(self, what: str) -> Iterator[None]:
        """Ends the run if the `with` block, such as a sum over all hosts, takes too long.

        `what` names the block in the error. A second call inside the block has a time of its own.
        """
        before, self._limit = self._limit, (time.monotonic(), what)
        try:
            yield
        finally:
            self._limit = before

    def leave(self, error: BaseException | None) -> None:
        """Ends the connections; an error of this host ends the run on all hosts."""
        # This fails if another host has ended the run already.
        if self._ended.cancel() and error is not None:
            # The errors of signals and of other hosts bring their exit codes.
            code = getattr(error, "exit_code", 2 if isinstance(error, UserError) else EXIT_LOST)
            self._say_end(code, _sentence(error))
        self._outbox.put(None)
        self._sender.join(LOST_AFTER_SEC)
        for stream in self._peers.values():
            # This also ends the receiving thread.
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)

    def explain(self, error: BaseException) -> BaseException:
        """Returns the cause of an error: the loss of a host, or the error itself."""
        if isinstance(error, UserError) or hasattr(error, "exit_code"):
            return error
        is_of_others = type(error).__name__ in _FROM_OTHERS
        # TensorFlow may notice a broken connection before the threads here do.
        concurrent.futures.wait([self._ended], 5 * HEARTBEAT_SEC if is_of_others else 0)
        if isinstance(error, Exception) and self._ended.done():
            return self._ended.result()
        if not is_of_others:
            return error
        return Ended(
            f"TensorFlow on {self.addresses[self.index]} does not reach another host of "
            f"{', '.join(self.addresses)} ({_sentence(error)}); check names and firewalls, and run "
            "the same command on all hosts again."
        )

    def _take(self, number: int, name: str, patient: bool) -> list[bytes]:
        """Returns the next values of a peer, which must have this name."""
        there, here = self.addresses[number], self.addresses[self.index]
        # The end of the run ends the wait.
        with contextlib.nullcontext() if patient else self.limited(f"A wait for {there} ({name})"):
            found = self._inbox[number].get()
        if found is None:
            raise self._ended.result()
        if found[0] != name:
            raise Ended(
                f"host {there} is at {found[0]!r}, while {here} is at {name!r}; expected all hosts "
                "to do the same: look for a callback that stops or fails on one host only."
            )
        return found[1]

    def _send_all(self) -> None:
        sent: bytes | None = _ALIVE
        while sent is not None:
            try:
                sent = self._outbox.get(timeout=HEARTBEAT_SEC)
            except queue.Empty:
                self._outbox.put(_ALIVE)
                continue
            finally:
                self._watch()
            rest = memoryview(sent or b"")
            # Each peer gets a piece in turn, so that none seems silent to another one.
            while rest:
                for stream in self._peers.values():
                    # The receiving thread sees a broken connection, and whether it is an error.
                    with contextlib.suppress(OSError):
                        stream.sendall(rest[:_PIECE_BYTES])
                rest = rest[_PIECE_BYTES:]
            self._outbox.task_done()

    def _receive_all(self, number: int, stream: socket.socket) -> None:
        name = ""
        # A silent peer raises a TimeoutError, and half of a message a ValueError or TypeError.
        broken = contextlib.suppress(OSError, ValueError, TypeError)
        with broken, stream, stream.makefile("rb") as lines:
            for line in lines:
                if line == _ALIVE:
                    continue
                name, sizes = json.loads(line)
                values = [lines.read(size) for size in sizes]
                if [len(value) for value in values] != sizes:
                    break
                if name == _FAILED:
                    # The chief forwards the end of a host, so only the chief names the host.
                    origin = f"host {self.addresses[number]}: " if self.is_chief else ""
                    self._end(origin + values[1].decode(), int(values[0]))
                self._inbox[number].put((name, values))
        if name != LAST:
            self._end(
                f"host {self.addresses[number]} is lost: its process was killed, or its machine or "
                "network failed; run the same command on all hosts again to resume from the last "
                "checkpoint."
            )

    def _watch(self) -> None:
        """Ends the run when a `limited` block takes too long."""
        limit = self._limit
        if limit is not None and time.monotonic() > limit[0] + self.timeout_sec:
            self._end(
                f"{limit[1]} did not end within {self.timeout_sec:g} s on "
                f"{self.addresses[self.index]}: another host or the network hangs; check both, or "
                f"raise {Arg('cluster_timeout')}, and run the same command on all hosts again."
            )

    def _end(self, message: str, exit_code: int = EXIT_LOST) -> None:
        """Makes the main thread end wherever it waits, and tells the peers."""
        try:
            self._ended.set_result(Ended(message, exit_code))
        except InvalidStateError:
            return  # another thread, or `leave`, was first
        self._say_end(exit_code, message)
        # The main thread may wait for a value. A sum of TensorFlow ends when a process of it ends.
        for inbox in self._inbox.values():
            inbox.put(None)
        threading.Thread(target=self._exit, args=[message, exit_code], daemon=True).start()

    def _exit(self, message: str, exit_code: int) -> None:
        """Ends the process if the main thread does not end it."""
        self._sender.join(GRACE_SEC)
        # Without the checkpoint in progress, all work since the previous one would be lost.
        if self._sender.is_alive():
            self.writing.acquire()
        if self._sender.is_alive():
            print(f"imageshards train: {message}", file=sys.stderr, flush=True)
            os._exit(exit_code)

    def _say_end(self, exit_code: int, sentence: str) -> None:
        self._outbox.put(_message(_FAILED, str(exit_code).encode(), sentence.encode()))


ONE_HOST = Hosts()


def _message(name: str, *values: bytes) -> bytes:
    """Returns the message that sends values."""
    return b"\n".join([json.dumps([name, [*map(len, values)]]).encode(), b"".join(values)])


def _sentence(error: BaseException) -> str:
    if isinstance(error, UserError) or hasattr(error, "exit_code"):
        return str(error)
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
