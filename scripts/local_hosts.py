"""Several hosts that are processes of this machine: their addresses and environments."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence

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


def host_environment(addresses: Sequence[str], index: int) -> dict[str, str]:
    """What makes a process one host of a cluster; GPUs, which all would take, are hidden."""
    task = {"type": "worker", "index": index}
    cluster = {"cluster": {"worker": list(addresses)}, "task": task}
    return {"TF_CONFIG": json.dumps(cluster), "CUDA_VISIBLE_DEVICES": ""}
