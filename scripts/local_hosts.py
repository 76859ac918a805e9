"""Several hosts that are processes of this machine: their addresses and environments."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Sequence


def free_addresses(count: int) -> list[str]:
    """Addresses on loopback whose ports were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [f"localhost:{one.getsockname()[1]}" for one in sockets]


def host_environment(addresses: Sequence[str], index: int) -> dict[str, str]:
    """What makes a process one host of a cluster; GPUs, which all would take, are hidden."""
    task = {"type": "worker", "index": index}
    cluster = {"cluster": {"worker": list(addresses)}, "task": task}
    return {"TF_CONFIG": json.dumps(cluster), "CUDA_VISIBLE_DEVICES": ""}
