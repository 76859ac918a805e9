"""What the hosts of one run tell each other beside TensorFlow's sums: small values, and the end.

Each host holds one connection to the chief, which collects and hands on. TensorFlow's own
collectives hang, or fail with many lines, where a host is late or lost; here every wait has a
time-out and a sentence.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from imageshards.errors import UserError

HEARTBEAT_SEC = 5.0
# A host that has sent nothing for so long is lost: its power, its network, or a stopped process.
LOST_AFTER_SEC = 60.0
# What the main thread has to end in, before the process is ended under it: it may hang in a sum
# that another host will never join.
GRACE_SEC = 20.0
EXIT_LOST = 1

_ALIVE, _VALUE, _END = b"A", b"V", b"E"


class Ended(Exception):
    """Another host has ended the run.

    Attributes:
        exit_code: 2 for a user's mistake that was found there, 143 or 130 after a signal, else
            `EXIT_LOST`.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Hosts:
    """The hosts of one run, seen from one of them; without peers, a machine by itself.

    Every method that takes a `name` is called by all hosts, in the same order.

    Args:
        addresses: Of all; the first is the chief's.
        index: Of this one.
        peers: Connections by index: of the chief to all others, of others to the chief.
        timeout_sec: How long others may take to answer.
    """

    def __init__(
        self,
        addresses: Sequence[str] = ("localhost",),
        index: int = 0,
        peers: Mapping[int, Connection] | None = None,
        timeout_sec: float = 600.0,
    ) -> None:
        self.addresses, self.index = tuple(addresses), index
        self._timeout_sec = timeout_sec
        self._ended: Ended | None = None
        self._left = threading.Event()
        self._noticed = threading.Event()
        self._peers = {number: _Peer(connection) for number, connection in (peers or {}).items()}
        for number, peer in self._peers.items():
            threading.Thread(target=self._listen, args=(number, peer), daemon=True).start()
        if self._peers:
            threading.Thread(target=self._beat, daemon=True).start()

    @property
    def count(self) -> int:
        """Number of hosts."""
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        """Whether this host writes the run's output and prints."""
        return self.index == 0

    def collect(self, name: str, value: bytes) -> list[bytes]:
        """The values of all hosts in their order, on the chief; on others none."""
        if not self.is_chief:
            self._send(0, _VALUE, name, value)
            return []
        return [value, *(self._receive(number, name) for number in sorted(self._peers))]

    def share(self, name: str, make: Callable[[], bytes]) -> bytes:
        """What the chief alone makes, on all hosts."""
        if not self.is_chief:
            return self._receive(0, name)
        value = make()
        for number in self._peers:
            self._send(number, _VALUE, name, value)
        return value

    def gather(self, name: str, value: Any) -> list[Any]:
        """The values of all hosts in their order, on all hosts.

        Args:
            name: What for.
            value: A JSON value.

        Raises:
            Ended: A host does not answer.
        """
        if self.count == 1:
            return [value]
        parts = self.collect(name, json.dumps(value).encode())
        return json.loads(self.share(name, lambda: b"[" + b",".join(parts) + b"]"))

    def concatenate(self, name: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays of all hosts joined along their first axis, in the order of hosts, on all of them.

        Raises:
            Ended: A host does not answer.
        """
        if self.count == 1:
            return dict(arrays)
        parts = [_unpacked(one) for one in self.collect(name, _packed(arrays))]
        return _unpacked(
            self.share(
                name,
                lambda: _packed({key: np.concatenate([p[key] for p in parts]) for key in arrays}),
            )
        )

    def compare(self, settings: Mapping[str, Any]) -> None:
        """Checks that settings are the same on all hosts.

        Args:
            settings: JSON values by the names to show.

        Raises:
            UserError: One differs; the same sentence on all hosts.
        """
        chiefs, *others = self.gather("settings", dict(settings))
        for address, theirs in zip(self.addresses[1:], others, strict=True):
            for name in [*chiefs, *(name for name in theirs if name not in chiefs)]:
                if chiefs.get(name) != theirs.get(name):
                    raise UserError(
                        f"{name} is {theirs.get(name)} on {address}, but {chiefs.get(name)} on "
                        f"{self.addresses[0]}; expected the same on all hosts: start the same "
                        "command, of the same version, on the same data."
                    )

    def leave(self, error: BaseException | None = None) -> None:
        """Ends the run here. After an error the others are told, and end, too.

        Raises:
            Ended: Another host failed after this one had finished.
        """
        try:
            if error is None:
                self.gather("end", None)
            elif self._ended is None:
                code = getattr(error, "exit_code", 2 if isinstance(error, UserError) else EXIT_LOST)
                told = isinstance(error, UserError) or hasattr(error, "exit_code")
                message = str(error) if told else _named(error)
                self._tell_end(code, message)
        finally:
            self._left.set()
            for peer in self._peers.values():
                peer.close()

    def explain(self, error: BaseException) -> BaseException:
        """What a failure of TensorFlow comes from: where a host was lost, that."""
        own = isinstance(error, UserError) or hasattr(error, "exit_code")
        if not self._peers or own or not isinstance(error, Exception):
            return error
        # TensorFlow may notice a broken connection first.
        if type(error).__module__.startswith("tensorflow"):
            self._noticed.wait(HEARTBEAT_SEC)
        return self._ended or error

    def _send(self, number: int, kind: bytes, name: str, value: bytes) -> None:
        try:
            self._peers[number].send(kind + name.encode() + b"\0" + value)
        except OSError:
            self._noticed.wait(HEARTBEAT_SEC)
            raise self._ended or self._gone(number) from None

    def _receive(self, number: int, name: str) -> bytes:
        try:
            found = self._peers[number].values.get(timeout=self._timeout_sec)
        except queue.Empty:
            raise Ended(
                f"host {self.addresses[number]} did not answer for {self._timeout_sec:g} s, while "
                f"this host waits with {name!r}; look at it, or allow more with --cluster_timeout, "
                "and run the same command on all hosts again.",
                EXIT_LOST,
            ) from None
        if found is None:
            raise self._ended or self._gone(number)
        theirs, value = found
        if theirs != name:
            here, there = self.addresses[self.index], self.addresses[number]
            raise Ended(
                f"host {there} is at {theirs!r}, while {here} is at {name!r}; expected all hosts "
                "to do the same: does a callback stop the training, or fail, on one of them only?",
                EXIT_LOST,
            )
        return value

    def _listen(self, number: int, peer: _Peer) -> None:
        """Receives what a peer sends, until one of the two ends."""
        with peer.connection:
            self._receive_all(number, peer)

    def _receive_all(self, number: int, peer: _Peer) -> None:
        while True:
            try:
                if not peer.connection.poll(min(LOST_AFTER_SEC, self._timeout_sec)):
                    return self._end(self._gone(number))
                message = peer.connection.recv_bytes()
            except (OSError, EOFError):
                return None if self._left.is_set() else self._end(self._gone(number))
            name, _, value = message[1:].partition(b"\0")
            if message[:1] == _END:
                said = value.decode()
                if self.is_chief:
                    said = f"host {self.addresses[number]}: {said}"
                return self._end(Ended(said, int(name)))
            if message[:1] == _VALUE:
                peer.values.put((name.decode(), value))

    def _end(self, ended: Ended) -> None:
        """Makes the main thread end, wherever it waits."""
        if self._left.is_set() or self._ended is not None:
            return
        self._ended = ended
        self._noticed.set()
        for peer in self._peers.values():
            peer.values.put(None)
        _abort_sums(str(ended))
        if self.is_chief:
            self._tell_end(ended.exit_code, str(ended))
        if not self._left.wait(GRACE_SEC):
            print(f"python -m trainer: {ended}", file=sys.stderr, flush=True)
            os._exit(ended.exit_code)

    def _tell_end(self, exit_code: int, message: str) -> None:
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.send(_END + str(exit_code).encode() + b"\0" + message.encode())

    def _beat(self) -> None:
        while not self._left.wait(HEARTBEAT_SEC):
            for peer in self._peers.values():
                with contextlib.suppress(OSError):
                    peer.send(_ALIVE)

    def _gone(self, number: int) -> Ended:
        return Ended(
            f"host {self.addresses[number]} is lost: its process was killed, or its machine or "
            "network failed; run the same command on all hosts again to resume from the last "
            "checkpoint.",
            EXIT_LOST,
        )


class _Peer:
    """A connection that several threads write to."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        # (name, value); None at the end.
        self.values: queue.Queue[tuple[str, bytes] | None] = queue.Queue()
        self._lock = threading.Lock()

    def send(self, message: bytes) -> None:
        with self._lock:
            self.connection.send_bytes(message)

    def close(self) -> None:
        """Says that nothing more comes; who listens closes it."""
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(self.connection.fileno())) as stream,
        ):
            stream.shutdown(socket.SHUT_RDWR)


ONE_HOST = Hosts()


def _abort_sums(reason: str) -> None:
    """Makes TensorFlow's waiting sums fail; else they wait for a lost host for ever."""
    if "tensorflow" not in sys.modules:
        return
    from tensorflow.python.eager import context

    with contextlib.suppress(Exception):  # not begun, or over
        context.context().abort_collective_ops(14, reason)


def _packed(arrays: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _unpacked(data: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        return dict(found)


def _named(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
