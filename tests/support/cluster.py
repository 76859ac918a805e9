"""Several hosts on this machine: processes on loopback, described to the trainer by TF_CONFIG."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from scripts.local_hosts import free_addresses, host_environment
from tests.support.forked_commands import run_forked_together


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
        killed: Host → (signal, step after which it sends itself that).
        more: Host → flags of its own, added to the others.
        environment: Of all hosts.
    """
    addresses = free_addresses(hosts)
    commands = []
    for i in range(hosts):
        own = (killed or {}).get(i)
        start = ["tests.support.killed_trainer", *own] if own else ["trainer"]
        every = (
            "--cluster",
            "tf_config",
            "--cluster_timeout",
            60,
            *flags,
            *(more or {}).get(i, ()),
        )
        config = {**(environment or {}), **host_environment(addresses, i)}
        commands.append(([str(one) for one in (*start, *every)], config))
    return run_forked_together(commands)
