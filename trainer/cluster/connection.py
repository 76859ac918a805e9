"""Whole messages between two hosts, sent and received by threads, with a sign of life between them.

The main thread only puts messages into a queue: no signal can interrupt one half-way, and no slow
receiver can hold it up.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

HEARTBEAT_SEC = 5.0
# A host that has sent nothing for so long is lost: its power, its network, or a stopped process.
LOST_AFTER_SEC = 60.0
_ALIVE = b""
# In place of that from a host that has got on with its work since.
WORKING = b"W"


class _Work:
    notes = 0


def note_work() -> None:
    """Notes that this process gets on: the other hosts wait for it as long as it does so."""
    _Work.notes += 1


def noted_work() -> int:
    """A number that has grown wherever work was noted."""
    return _Work.notes


def as_connection(stream: socket.socket) -> Connection:
    """Messages over a connected socket; nothing on it waits for ever in the middle of one."""
    stream.settimeout(None)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    limit = struct.pack("ll", int(LOST_AFTER_SEC), 0)
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        stream.setsockopt(socket.SOL_SOCKET, option, limit)
    return Connection(stream.detach())


class Link:
    """A connection to another host.

    A thread calls `received` with every message, not empty, and `lost` when the other host says
    nothing any more. `work` grows while there is work to tell the other host of.
    """

    def __init__(
        self,
        connection: Connection,
        received: Callable[[bytes], None],
        lost: Callable[[], None],
        work: Callable[[], int] = noted_work,
    ) -> None:
        self._connection, self._received, self._lost = connection, received, lost
        self._work, self._told = work, work()
        self._outbox: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._sender = threading.Thread(target=self._send_all, daemon=True)

    def start(self) -> None:
        """Begins to send and to receive."""
        self._sender.start()
        threading.Thread(target=self._receive_all, daemon=True).start()

    def send(self, message: bytes) -> None:
        """Sends a message, some time."""
        self._outbox.put(message)

    def flush(self) -> None:
        """Waits until everything is sent: TensorFlow may keep all threads from running next.

        Where the other host is lost, nothing more is sent, nor waited for.
        """
        sent = threading.Event()
        self._outbox.put(sent)
        while not sent.wait(1.0) and not self._over.is_set():
            pass

    def close(self) -> None:
        """Sends what is to be sent, then nothing more."""
        self._outbox.put(None)
        self._sender.join(LOST_AFTER_SEC)

    def _send_all(self) -> None:
        try:
            while (message := self._next()) is not None:
                self._connection.send_bytes(message)
        except OSError:
            self._over.set()
            return self._lost()
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(self._connection.fileno())) as stream,
        ):
            stream.shutdown(socket.SHUT_RDWR)
        return None

    def _next(self) -> bytes | None:
        try:
            found = self._outbox.get(timeout=HEARTBEAT_SEC)
        except queue.Empty:
            before, self._told = self._told, self._work()
            return _ALIVE if before == self._told else WORKING
        if isinstance(found, threading.Event):
            found.set()
            return self._next()
        return found

    def _receive_all(self) -> None:
        with self._connection, contextlib.suppress(OSError, EOFError):
            while self._connection.poll(LOST_AFTER_SEC):
                if message := self._connection.recv_bytes():
                    self._received(message)
        self._lost()
