"""Sends and receives whole messages between two hosts in threads, with heartbeats in between.

The main thread only puts messages into a queue, so that no signal interrupts a message half-way and
no slow receiver delays the main thread.
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
# A host that has sent nothing for this time is lost: it has no power or network, or is stopped.
LOST_AFTER_SEC = 60.0
_ALIVE = b""
# The heartbeat of a host that has made progress since the last heartbeat.
WORKING = b"W"


class _Work:
    notes = 0


def note_work() -> None:
    """Notes that this process makes progress, so that the peers go on waiting for it."""
    _Work.notes += 1


def noted_work() -> int:
    """Returns a number that grows with each `note_work`."""
    return _Work.notes


def as_connection(stream: socket.socket) -> Connection:
    """Returns a connection for whole messages over a connected socket."""
    stream.settimeout(None)
    # Messages are small and awaited, so none may wait for more data to send.
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The kernel's limits also end a read or a write that hangs in the middle of a message.
    limit = struct.pack("ll", int(LOST_AFTER_SEC), 0)
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        stream.setsockopt(socket.SOL_SOCKET, option, limit)
    return Connection(stream.detach())


class Link:
    """A connection to another host.

    Args:
        connection: The connected socket.
        received: A thread calls this function with each message that is not empty.
        lost: A thread calls this function when the peer is silent or has closed its end.
        work: Returns a number that grows with each progress to report to the peer.
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
        """Starts the threads that send and receive."""
        self._sender.start()
        threading.Thread(target=self._receive_all, daemon=True).start()

    def send(self, message: bytes) -> None:
        """Queues a message, which is not empty."""
        self._outbox.put(message)

    def flush(self) -> None:
        """Waits until all queued messages are sent or the peer is lost."""
        # TensorFlow may hold the interpreter's lock next, which would stop the sending thread.
        sent = threading.Event()
        self._outbox.put(sent)
        while not sent.wait(1.0) and not self._over.is_set():
            pass

    def close(self) -> None:
        """Sends the queued messages, then ends the connection."""
        self._outbox.put(None)
        self._sender.join(LOST_AFTER_SEC)

    def _send_all(self) -> None:
        try:
            while (message := self._next()) is not None:
                self._connection.send_bytes(message)
        except OSError:
            self._over.set()
            return self._lost()
        # This ends the read of the receiving thread, which then closes the connection.
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
        # An event from `flush` follows the messages that `flush` waits for.
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
