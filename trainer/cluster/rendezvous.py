"""Finds the hosts of a run, and connects them before TensorFlow starts.

The chief listens at its own address until all hosts have connected. The connections stay open, and
TensorFlow takes the port, so a cluster needs only the ports that it names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from imageshards.errors import Arg, UserError
from imageshards.typed import decode
from trainer.cluster.connection import as_connection
from trainer.cluster.hosts import ONE_HOST, Ended, Hosts

_EXAMPLE = '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'
_RETRY_SEC = 0.2


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The hosts of a run.

    Attributes:
        addresses: The `name:port` of each host, the chief first.
        index: The place of this host in `addresses`.

    Raises:
        ValueError: The index is too large, or an address is malformed or there twice.
    """

    addresses: tuple[str, ...]
    index: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < len(self.addresses):
            raise ValueError(f"the task {self.index} of {len(self.addresses)} hosts")
        for address in self.addresses:
            found = re.fullmatch(r".+:([0-9]{1,5})", str(address))
            if found is None or not 0 < int(found[1]) < 2**16:
                raise ValueError(f"the address {address!r}")
        if len(set(self.addresses)) < len(self.addresses):
            raise ValueError("an address twice")


def find_cluster(kind: str, port: int, environ: Mapping[str, str] = os.environ) -> Cluster:
    """Returns the cluster that a scheduler has described in the environment.

    Args:
        kind: `tf_config` for the JSON in TF_CONFIG, which TensorFlow and Kubeflow use; `slurm` for
            the variables that `srun` sets.
        port: The port of the first process on each host, under Slurm.
        environ: The environment.

    Raises:
        UserError: The description is missing or wrong.
    """
    return _of_tf_config(environ) if kind == "tf_config" else _of_slurm(environ, port)


def _of_tf_config(environ: Mapping[str, str]) -> Cluster:
    text = environ.get("TF_CONFIG")
    if not text:
        raise UserError(
            argument="cluster",
            received="tf_config, but the environment has no TF_CONFIG",
            expected=f"JSON such as {_EXAMPLE}",
        )
    try:
        raw = json.loads(text)
        jobs: dict[str, list[str]] = {k: list(v) for k, v in raw["cluster"].items() if v}
        # int() rejects the text of a fraction, of infinity and of True, but not these values.
        kind, index = str(raw["task"]["type"]), int(str(raw["task"]["index"]))
        if kind not in jobs:
            raise ValueError(f"no job {kind!r} in the cluster")
        if others := jobs.keys() - {"chief", "worker"}:
            raise ValueError(f"a job {min(others)!r}, where only chief and worker train")
        if not 0 <= index < len(jobs[kind]):
            raise ValueError(f"the {kind} {index} of {len(jobs[kind])}")
        chiefs = jobs.get("chief", [])
        # The workers follow the chief in the list of addresses.
        index += len(chiefs) if kind == "worker" else 0
        return Cluster((*chiefs, *jobs.get("worker", [])), index)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        problem = str(e) if type(e) is ValueError else f"{type(e).__name__}: {e}"
        shown = text if len(text) <= 200 else f"{text[:200]}…"
        raise UserError(
            argument="TF_CONFIG",
            received=f"{shown!r}, with {problem}",
            expected=f"for example {_EXAMPLE}",
        ) from e


def _of_slurm(environ: Mapping[str, str], port: int) -> Cluster:
    names = ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID")
    missing = [name for name in names if name not in environ]
    if missing:
        raise UserError(
            argument="cluster",
            received=f"slurm, but the environment has no {missing[0]}",
            expected="srun to start the program on every host",
            remedy="srun imageshards train --cluster slurm …",
        )
    # TensorFlow's own resolver sorts the hosts by name, so its ranks differ from those of Slurm.
    # Only its parsers are useful here.
    from tensorflow.python.distribute.cluster_resolver import slurm_cluster_resolver as slurm

    nodes, tasks, rank = (environ[name] for name in names)
    try:
        counts: list[Any] = slurm.expand_tasks_per_node(tasks)
        hosts = slurm.expand_hostlist(nodes)
        pairs = list(zip(hosts, counts, strict=True))
        if port + max(counts) > 2**16:
            raise ValueError(f"the port {port} leaves no ports for {max(counts)} processes")
        addresses = tuple(f"{host}:{port + i}" for host, count in pairs for i in range(count))
        return Cluster(addresses, int(rank))
    except (ValueError, IndexError) as e:
        raise UserError(
            argument="cluster",
            received=f"slurm, with SLURM_STEP_NODELIST={nodes}, "
            f"SLURM_STEP_TASKS_PER_NODE={tasks}, SLURM_PROCID={rank} and "
            + Arg("cluster_port", port)
            + f" ({e})",
            expected="what srun sets, with --distribution=block",
        ) from e


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
    """Returns the index of the host that connects, 0 for a stranger, and the connection."""
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
