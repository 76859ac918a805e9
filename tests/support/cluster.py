"""Several hosts on this machine: processes on loopback, described to the trainer by TF_CONFIG."""

import json
import socket

from tests.support.commands import Command, killed_train

_reserved: list[socket.socket] = []


def free_addresses(count: int) -> list[str]:
    """Addresses on loopback that nobody else is given until this process ends.

    Their ports are bound here, but not listened on: so only a server that names one gets it.
    """
    for _ in range(count):
        _reserved.append(socket.socket())
        _reserved[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _reserved[-1].bind(("localhost", 0))
    return [f"localhost:{one.getsockname()[1]}" for one in _reserved[-count:]]


def run_hosts(hosts, *flags, killed=(), more=None, environment=None):
    """`imageshards train --cluster tf_config …` on so many hosts, to the end of all.

    Args:
        killed: Host → (signal, which of its steps it sends itself that in).
        more: Host → flags whose values are its own.
    """
    addresses = free_addresses(hosts)
    started = []
    for i in range(hosts):
        of_host = (more or {}).get(i, {})
        values = [of_host.get(*pair) for pair in zip(("", *flags), flags, strict=False)]
        own = ("--cluster", "tf_config", "--cluster_timeout", 60, *values)
        cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}
        config = {**(environment or {}), "TF_CONFIG": json.dumps(cluster)}
        if i in killed:
            started.append(killed_train(*killed[i], *own, environment=config))
        else:
            started.append(Command("trainer", "trainer", *own, environment=config))
    return [host.result() for host in started]
