"""Finds the hosts of a run, and connects them before TensorFlow starts.

The chief listens at its own address until all hosts have connected. The connections stay open, and
TensorFlow takes the port, so a cluster needs only the ports that it names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import wait

import msgspec

from imageshards.errors import Arg, UserError
from imageshards.typed import decode
from trainer.cluster.hosts import LAST, ONE_HOST, Ended, Hosts
from trainer.cluster.tensorflow_internals import slurm_hosts

_EXAMPLE = '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'
_SLURM = ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID")
_RETRY_SEC = 0.2
# A stranger, for example a port scanner, may connect and send nothing, or too much.
_HELLO_SEC = 5.0
_MAX_BYTES = 1_000_000


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
            found = re.fullmatch(r".+:([0-9]{1,5})", address)
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


class _Task(msgspec.Struct):
    type: str
    index: int | str


class _TfConfig(msgspec.Struct):
    cluster: dict[str, list[str]]
    task: _Task


def _of_tf_config(environ: Mapping[str, str]) -> Cluster:
    text = environ.get("TF_CONFIG", "")
    try:
        if not text:
            raise ValueError("the environment has no TF_CONFIG")
        found = decode(text, _TfConfig)
        jobs = {job: addresses for job, addresses in found.cluster.items() if addresses}
        if others := jobs.keys() - {"chief", "worker"}:
            raise ValueError(f"a job {min(others)!r}, where only chief and worker train")
        kind, index = found.task.type, int(found.task.index)
        if not 0 <= index < len(jobs.get(kind, [])):
            raise ValueError(f"the {kind} {index} of {len(jobs.get(kind, []))}")
        chiefs = jobs.get("chief", [])
        # The workers follow the chief in the list of addresses.
        index += len(chiefs) if kind == "worker" else 0
        return Cluster((*chiefs, *jobs.get("worker", [])), index)
    except ValueError as e:
        raise UserError(
            argument="TF_CONFIG",
            received=f"{text[:200]!r} ({e})",
            expected=f"for example {_EXAMPLE}",
        ) from e


def _of_slurm(environ: Mapping[str, str], port: int) -> Cluster:
    nodes, tasks, rank = given = [environ.get(name, "") for name in _SLURM]
    try:
        hosts = slurm_hosts(nodes, tasks)
        # No address may have a port above 65535, whatever number Slurm's variable has.
        ports = [(host, port + i) for host, count in hosts for i in range(min(count, 2**16))]
        return Cluster(tuple(f"{host}:{number}" for host, number in ports), int(rank))
    except (ValueError, IndexError) as e:
        variables = ", ".join(f"{n}={value}" for n, value in zip(_SLURM, given, strict=True))
        raise UserError(
            argument="cluster",
            received=f"slurm, with {variables} and {Arg('cluster_port', port)} ({e})",
            expected="what srun sets, with --distribution=block",
            remedy="srun imageshards train --cluster slurm …",
        ) from e


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
    # The end of the block closes the listener, so that TensorFlow can take the port.
    with _take_port(cluster.addresses[cluster.index]) as listener:
        if cluster.index == 0:
            peers = _await_others(listener, cluster, timeout_sec)
        else:
            peers = {0: _call_chief(cluster, timeout_sec)}
    hosts = Hosts(cluster.addresses, cluster.index, peers, timeout_sec)
    error: BaseException | None = None
    try:
        yield hosts
        hosts.gather(LAST, None, patient=True)
    except BaseException as e:
        error = hosts.explain(e)
        if error is e:
            raise
        raise error from e
    finally:
        hosts.leave(error)


def _take_port(address: str) -> socket.socket:
    """Takes the port of TensorFlow, so that a port in use is an error here."""
    port = int(address.rpartition(":")[2])
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as e:
        raise UserError(
            argument="cluster",
            received=f"{address} for this host, whose port {port} cannot be used ({e.strerror})",
            expected="a free port",
            remedy="end the process that has it, or change TF_CONFIG or " + Arg("cluster_port"),
        ) from e


def _await_others(
    listener: socket.socket, cluster: Cluster, timeout_sec: float
) -> dict[int, socket.socket]:
    """Returns the connections to all hosts by index, after an answer to them: "" or an error."""
    deadline_sec = time.monotonic() + timeout_sec
    addresses, peers = cluster.addresses, dict[int, socket.socket]()
    try:
        while missing := [a for i, a in enumerate(addresses) if i and i not in peers]:
            if (left_sec := deadline_sec - time.monotonic()) <= 0:
                raise UserError(
                    argument="cluster",
                    received=f"{len(addresses)} hosts, of which {', '.join(missing)} did not come "
                    f"within {timeout_sec:g} s",
                    remedy="start the same command there, or raise " + Arg("cluster_timeout"),
                )
            listener.settimeout(left_sec)
            try:
                stream, _ = listener.accept()
                theirs = decode(_heard(stream, _HELLO_SEC), Cluster)
            except (OSError, ValueError):
                continue  # the time is over, or a stranger has connected, such as a port scanner
            # A host sends nothing while it waits, so a readable connection is a closed one. The
            # host may start again and take its old place.
            closed = wait(peers.values(), 0)
            peers = {number: peer for number, peer in peers.items() if peer not in closed}
            if theirs.addresses != addresses or theirs.index in {0, *peers}:
                peers[-1] = stream
                raise UserError(
                    argument="cluster",
                    received=f"a process with the task index {theirs.index} and the addresses "
                    f"{', '.join(theirs.addresses)}",
                    expected=f"one process for each index of the addresses {', '.join(addresses)}, "
                    "of which this process has the index 0",
                )
            peers[theirs.index] = stream
    except UserError as e:
        _say(str(e), *peers.values())
        raise
    _say("", *peers.values())
    return peers


def _call_chief(cluster: Cluster, timeout_sec: float) -> socket.socket:
    """Returns the connection to the chief, once all hosts have connected."""
    deadline_sec, reason = time.monotonic() + timeout_sec, "no answer"
    chief = cluster.addresses[0]
    name, _, port = chief.rpartition(":")
    while time.monotonic() < deadline_sec:
        try:
            # An IPv6 address has brackets before its port.
            stream = socket.create_connection((name.strip("[]"), int(port)), timeout=5.0)
            _say(cluster, stream)
            # The chief's time begins when it starts, maybe later; it gives up first, with a reason.
            problem = decode(_heard(stream, timeout_sec + 5.0), str)
        except (OSError, ValueError) as e:
            # The chief ended while it waited, or TensorFlow of an earlier run still listens.
            reason = getattr(e, "strerror", None) or str(e)
            time.sleep(_RETRY_SEC)
            continue
        if problem:
            raise Ended(f"host {chief}: {problem}", 2)
        return stream
    raise UserError(
        argument="cluster",
        received=f"the chief {chief}, which did not answer within {timeout_sec:g} s ({reason})",
        remedy="start the same command there, check names and firewalls, or raise "
        + Arg("cluster_timeout"),
    )


def _say(said: Cluster | str, *streams: socket.socket) -> None:
    for stream in streams:
        with contextlib.suppress(OSError):
            stream.sendall(msgspec.json.encode(said) + b"\n")


def _heard(stream: socket.socket, timeout_sec: float) -> bytes:
    """Returns the first line that the other side says."""
    stream.settimeout(timeout_sec)
    # Without a buffer, the messages that follow stay in the connection.
    with stream.makefile("rb", buffering=0) as lines:
        return lines.readline(_MAX_BYTES)
