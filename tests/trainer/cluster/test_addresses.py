import json
from typing import Any

import pytest

from tests.support.errors import refused
from trainer.cluster.rendezvous import Cluster, find_cluster

ABC = ("a:1", "b:2", "c:3")


def _config(cluster: Any, kind: Any, index: Any) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def _slurm(nodes: str, tasks: str, rank: object) -> dict[str, str]:
    names = ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID")
    return dict(zip(names, (nodes, tasks, str(rank)), strict=True))


HOSTS = {
    "workers": (_config({"worker": ["a:1", "b:2", "c:3"]}, "worker", 1), ABC, 1),
    "one": (_config({"worker": ["a:1"]}, "worker", 0), ("a:1",), 0),
    "chief": (_config({"worker": ["b:2", "c:3"], "chief": ["a:1"]}, "chief", 0), ABC, 0),
    "after a chief": (_config({"chief": ["a:1"], "worker": ["b:2", "c:3"]}, "worker", "1"), ABC, 2),
    "IPv6": (_config({"worker": ["[::1]:1", "[::1]:2"], "ps": []}, "worker", 1),
             ("[::1]:1", "[::1]:2"), 1),
    "Slurm": (_slurm("gpu[1-2]", "1(x2)", 1), ("gpu1:9", "gpu2:9"), 1),
    # In the order of Slurm's ranks: sorted by name, gpu10 would come first.
    "ranks": (_slurm("gpu[9-10]", "1(x2)", 0), ("gpu9:9", "gpu10:9"), 0),
    "processes": (_slurm("a,b[01-02]", "2,1(x2)", 3), ("a:9", "a:10", "b01:9", "b02:9"), 3),
}  # fmt: skip


@pytest.mark.parametrize(("environ", "addresses", "index"), HOSTS.values(), ids=HOSTS)
def test_a_scheduler_names_the_hosts(environ, addresses, index):
    kind = "tf_config" if "TF_CONFIG" in environ else "slurm"
    if kind == "slurm":
        pytest.importorskip("tensorflow")
    assert find_cluster(kind, 9, environ) == Cluster(addresses, index)


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({}, "has no TF_CONFIG"),
        ({"TF_CONFIG": "{"}, "(Input data was truncated)"),
        (_config({"worker": ["a:1"]}, "worker", 1), "(the worker 1 of 1)"),
        # That would be the other job's host.
        (_config({"chief": ["a:1"], "worker": ["b:1"]}, "worker", -1), "(the worker -1 of 1)"),
        (_config({"worker": ["a:1", "b:1"]}, "worker", 0.5), "task.index: expected `int | str`"),
        (_config({"worker": ["a:1"]}, "worker", "x"), "invalid literal"),
        (_config({"worker": ["a:1"], "ps": ["b:1"]}, "worker", 0), "a job 'ps'"),
        *((_config({"worker": [address]}, "worker", 0), f"the address {address!r}")
          for address in ("a", "a:0", "a:65536", ":1", "a:²", "a:" + "9" * 5000)),
        (_config({"worker": [7]}, "worker", 0), "expected `str`, got `int`"),
        (_config({"worker": ["a:1", "a:1"]}, "worker", 0), "an address twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_an_invalid_tf_config_is_one_sentence(environ: dict[str, str], problem: str) -> None:
    with refused("TF_CONFIG", problem, '"worker": ["a:2222", "b:2222"]'):
        find_cluster("tf_config", 2222, environ)


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({}, "SLURM_STEP_NODELIST"),
        (_slurm("a", "1", 1), "the task 1 of 1 hosts"),
        (_slurm("a,a", "1(x2)", 0), "an address twice"),
        (_slurm("a", "9" * 12, 0), "the address 'a:65536'"),
        (_slurm("a,b", "1", 0), "SLURM_STEP_TASKS_PER_NODE=1"),
        (_slurm("a", "many", 0), "SLURM_STEP_TASKS_PER_NODE=many"),
    ],
)
def test_invalid_slurm_variables_are_one_sentence(environ, problem):
    pytest.importorskip("tensorflow")
    with refused("cluster", problem):
        find_cluster("slurm", 2222, environ)
