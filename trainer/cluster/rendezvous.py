"""Connects the hosts of a run before TensorFlow starts.

The chief listens at its own address until all hosts have connected. The connections stay open, and
TensorFlow takes the port, so a cluster needs only the ports that it names.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import msgspec

from imageshards.errors import Arg, UserError
from imageshards.typed import decode
from trainer.cluster.addresses import Cluster
from trainer.cluster.connection import as_connection
from trainer.cluster.hosts import ONE_HOST, Ended, Hosts

_RETRY_SEC = 0.2


class _Hello(msgspec.Struct):
    """The first message of a host: the addresses that the host knows, and its place among them."""

    imageshards: tuple[str, ...]
    index: int


@contextlib.contextmanager
def joined(cluster: Cluster | None, timeout_sec: float) -> Iterator[Hosts]:
    """Connects all hosts for a `with` block, and ends the run on all hosts if the block fails.

    Args:
        cluster: The hosts; None or a single host needs no connection.
        timeout_sec: The time that each host may take to connect, and later to answer.

    Raises:
        UserError: A host is missing, a port is in use, or the hosts belong to two clusters.
        Ended: Another host has ended the run.
    """
    if cluster is None or len(cluster.addresses) == 1:
        yield ONE_HOST
        return
    deadline_sec = time.monotonic() + timeout_sec
    # The end of the block closes the listener, so that TensorFlow can take the port.
    with _take_port(cluster.addresses[cluster.index]) as listener:
        if cluster.index == 0:
            peers = _await_others(listener, cluster, deadline_sec, timeout_sec)
    if cluster.index != 0:
        peers = {0: _call_chief(cluster, deadline_sec, timeout_sec)}
    hosts = Hosts(cluster.addresses, cluster.index, peers, timeout_sec)
    try:
        yield hosts
        hosts.leave()
    except BaseException as e:
        cause = hosts.explain(e)
        hosts.leave(cause)
        if cause is e:
            raise
        raise cause from e


def _take_port(address: str) -> socket.socket:
    """Takes the port of TensorFlow, so that a port in use is an error here."""
    port = int(address.rpartition(":")[2])
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=128)
    except OSError as e:
        raise UserError(
            argument="cluster",
            received=f"{address} for this host, whose port {port} cannot be used ({e.strerror})",
            expected="a free port",
            remedy="end the process that has the port, or give another port (TF_CONFIG, or "
            + Arg("cluster_port")
            + " under Slurm)",
        ) from e


def _await_others(
    listener: socket.socket, cluster: Cluster, deadline_sec: float, timeout_sec: float
) -> dict[int, Connection]:
    peers: dict[int, Connection] = {}
    try:
        while len(peers := _living(peers)) < len(cluster.addresses) - 1:
            # A time-out of 0 would make the socket non-blocking.
            listener.settimeout(max(0.01, deadline_sec - time.monotonic()))
            # A time-out ends the wait for a connection, so that the deadline is checked.
            with contextlib.suppress(TimeoutError):
                number, connection = _hello(listener.accept()[0], cluster)
                if number in (peers := _living(peers)):
                    raise _refused(
                        f"two processes for {cluster.addresses[number]}",
                        "one process for each address: give each its own task index",
                        connection,
                    )
                if number:
                    peers[number] = connection
            missing = [a for i, a in enumerate(cluster.addresses) if i and i not in peers]
            if missing and time.monotonic() >= deadline_sec:
                raise UserError(
                    argument="cluster",
                    received=f"{len(cluster.addresses)} hosts, of which {', '.join(missing)} did "
                    f"not come within {timeout_sec:g} s",
                    remedy="start the same command there, or raise " + Arg("cluster_timeout"),
                )
    except UserError as e:
        _answer(str(e), *peers.values())
        raise
    _answer("", *peers.values())
    return peers


def _living(peers: dict[int, Connection]) -> dict[int, Connection]:
    # A host sends nothing while it waits, so a readable connection is a closed one. The host may
    # start again and take its old place.
    return {number: peer for number, peer in peers.items() if not peer.poll(0)}


def _hello(stream: socket.socket, cluster: Cluster) -> tuple[int, Connection]:
    """Returns the index of the host that connects, 0 for a stranger, and the connection.

    Raises:
        UserError: The host belongs to another cluster or has a wrong index.
    """
    connection = as_connection(stream)
    try:
        # A stranger, for example a port scanner, may connect and send nothing, or too much.
        if not connection.poll(5.0):
            return 0, connection
        hello = decode(connection.recv_bytes(maxlength=1_000_000), _Hello)
    except (OSError, EOFError, ValueError):
        connection.close()
        return 0, connection
    theirs, number = hello.imageshards, hello.index
    if theirs != cluster.addresses:
        raise _refused(
            f"the addresses {', '.join(theirs)} on a host, but {', '.join(cluster.addresses)} on "
            f"{cluster.addresses[0]}",
            "the same on all",
            connection,
        )
    if not 0 < number < len(theirs):
        raise _refused(
            f"the task index {number} of a process",
            f"1 to {len(theirs) - 1}, as {theirs[0]} is 0: give each process its own task index",
            connection,
        )
    return number, connection


def _refused(received: str, expected: str, connection: Connection) -> UserError:
    """Returns the error about another process, and sends it the same error."""
    error = UserError(argument="cluster", received=received, expected=expected)
    _answer(str(error), connection)
    return error


def _answer(problem: str, *connections: Connection) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.send_bytes(problem.encode())


def _call_chief(cluster: Cluster, deadline_sec: float, timeout_sec: float) -> Connection:
    chief = cluster.addresses[0]
    name, _, port = chief.rpartition(":")
    hello = msgspec.json.encode(_Hello(cluster.addresses, cluster.index))
    reason = "no answer"
    while time.monotonic() < deadline_sec:
        try:
            # An IPv6 address has brackets before its port.
            stream = socket.create_connection((name.strip("[]"), int(port)), timeout=5.0)
            connection = as_connection(stream)
            connection.send_bytes(hello)
            # The chief's time begins when it starts, maybe later; it gives up first, with a reason.
            if not connection.poll(timeout_sec + 5.0):
                reason = "it listens, but does not answer"
                break
            problem = connection.recv_bytes().decode()
        except (OSError, EOFError, UnicodeDecodeError) as e:
            # The chief ended while it waited, or TensorFlow of an earlier run still listens.
            reason = getattr(e, "strerror", None) or str(e) or type(e).__name__
            time.sleep(_RETRY_SEC)
            continue
        if problem:
            raise Ended(f"host {chief}: {problem}", 2)
        return connection
    raise UserError(
        argument="cluster",
        received=f"the chief {chief}, which did not answer within {timeout_sec:g} s ({reason})",
        remedy="start the same command there, check names and firewalls, or raise "
        + Arg("cluster_timeout"),
    )
