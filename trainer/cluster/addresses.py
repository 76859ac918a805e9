"""Finds the hosts that train together, and the place of this process among them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from imageshards.errors import Arg, UserError

_EXAMPLE = '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'


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
