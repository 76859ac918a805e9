"""Several hosts on this machine: processes on loopback, described to the trainer by TF_CONFIG."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from scripts.local_hosts import free_addresses, host_environment
from tests.support.commands import Command, killed_train


def run_hosts(
    hosts: int,
    *flags: object,
    killed: Mapping[int, tuple[str, int]] | None = None,
    more: Mapping[int, Sequence[object]] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[subprocess.CompletedProcess[str]]:
    """`imageshards train --cluster tf_config …` on so many hosts, to the end of all.

    Args:
        hosts: How many.
        flags: Of all hosts.
        killed: Host → (signal, which of its steps it sends itself that in).
        more: Host → flags of its own, added to the others.
        environment: Of all hosts.
    """
    addresses = free_addresses(hosts)
    started = []
    for i in range(hosts):
        own = ("--cluster", "tf_config", "--cluster_timeout", 60, *flags, *(more or {}).get(i, ()))
        config = {**(environment or {}), **host_environment(addresses, i)}
        if killed and i in killed:
            started.append(killed_train(*killed[i], *own, environment=config))
        else:
            started.append(Command("trainer", "trainer", *own, environment=config))
    return [host.result() for host in started]
