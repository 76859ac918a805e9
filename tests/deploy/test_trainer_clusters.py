"""Training on Kubernetes and Slurm: manifest, image and script, as far as they run here."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.conftest import REPOSITORY
from trainer.cluster.rendezvous import Cluster, find_cluster
from trainer.commands import parse_config

pytestmark = pytest.mark.process

KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
SBATCH = REPOSITORY / "deploy" / "slurm" / "train.sbatch"
# Runs `python -c …`; of `python -m …` it notes arguments and environment.
PYTHON = f"""#!{sys.executable}
import json, os, sys
if sys.argv[1] == "-c":
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
folder = os.environ["NOTED"]
with open(os.path.join(folder, f"run-{{len(os.listdir(folder))}}"), "w") as f:
    json.dump({{"argv": sys.argv[1:], "environ": dict(os.environ)}}, f)
"""
# Runs a process for each node, with the variables of a step; ends as the next of CODES says.
SRUN = f"""#!{sys.executable}
import os, subprocess, sys
at, nodes = sys.argv.index("python"), os.environ["SLURM_JOB_NUM_NODES"]
for index in range(int(nodes)):
    step = {{"SLURM_PROCID": str(index), "SLURM_STEP_TASKS_PER_NODE": f"1(x{{nodes}})",
            "SLURM_STEP_NODELIST": os.environ["SLURM_JOB_NODELIST"]}}
    subprocess.run(sys.argv[at:], env={{**os.environ, **step}}, check=True)
with open(os.environ["SRUN_FLAGS"], "w") as f:
    f.write(" ".join(sys.argv[1:at]))
with open(os.environ["CODES"], "r+") as f:
    code, *others = f.read().split()
    f.seek(0)
    f.truncate()
    f.write(" ".join(others))
sys.exit(int(code))
"""
SCONTROL = '#!/bin/sh\necho "$@" > "$REQUEUED"\n'


@pytest.fixture
def environ(tmp_path: pathlib.Path) -> dict[str, str]:
    """Programs that stand in for those of a node, first on the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("python", PYTHON), ("srun", SRUN), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "noted").mkdir()
    path = f"{programs}:{os.environ['PATH']}"
    files = {name: str(tmp_path / name) for name in ("CODES", "REQUEUED", "SRUN_FLAGS")}
    return {"PATH": path, "NOTED": str(tmp_path / "noted"), "RETRY_SEC": "0", **files}


def _noted(environ: dict[str, str]) -> list[Any]:
    return [json.loads(p.read_text()) for p in sorted(pathlib.Path(environ["NOTED"]).iterdir())]


def test_every_pod_tells_tensorflow_who_the_others_are(environ, monkeypatch):
    service, job = yaml.safe_load_all((KUBERNETES / "train.yaml").read_text())
    job = job["spec"]
    (container,) = job["template"]["spec"]["containers"]
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    hosts = int(given["HOSTS"])
    assert hosts == job["completions"] == job["parallelism"]
    for index in range(hosts):
        indexed = {**given, **environ, "JOB_COMPLETION_INDEX": str(index)}
        subprocess.run([*container["command"], *container["args"]], env=indexed, check=True)
    resolver = pytest.importorskip("tensorflow").distribute.cluster_resolver
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    for index, run in enumerate(_noted(environ)):
        monkeypatch.setenv("TF_CONFIG", run["environ"]["TF_CONFIG"])
        found = resolver.TFConfigClusterResolver()
        workers = [f"{name}-{i}.{name}:{port}" for i in range(hosts)]
        assert found.cluster_spec().as_dict() == {"worker": workers}
        assert (found.task_type, found.task_id) == ("worker", index)
        assert run["argv"] == ["-m", "trainer", "--cluster", "tf_config", *container["args"]]
        assert parse_config(run["argv"][2:]).cluster == "tf_config"
        assert find_cluster("tf_config", 1, run["environ"]) == Cluster(tuple(workers), index)


def _submit(environ: dict[str, str], codes: str, *flags: str) -> int:
    """What `sbatch train.sbatch FLAGS` does on the first of two nodes."""
    pathlib.Path(environ["CODES"]).write_text(codes)
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "32"}
    job["SLURM_JOB_NODELIST"] = "node[1-2]"
    return subprocess.call(["bash", SBATCH, *flags], env={**environ, **job})


def test_every_node_runs_the_command_with_its_flags(environ: dict[str, str]) -> None:
    flags = ["--data", "gs://BUCKET/shards", "--where", "image/width>=128", "--epochs", "2"]
    assert _submit(environ, "0", *flags) == 0
    runs = _noted(environ)
    assert len(runs) == 2
    for index, run in enumerate(runs):
        assert run["argv"] == ["-m", "trainer", "--cluster", "slurm", *flags]
        found = find_cluster("slurm", parse_config(run["argv"][2:]).cluster_port, run["environ"])
        assert found == Cluster(("node1:2222", "node2:2222"), index)
    assert pathlib.Path(environ["SRUN_FLAGS"]).read_text().split() == [
        "--kill-on-bad-exit=0", "--wait=0", "--cpus-per-task=32",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("codes", "ended", "attempts", "requeued"),
    [
        ("137 1 0", 0, 3, False),  # crashes, then the end
        ("1 143", 0, 2, True),  # a crash, then the end of the time
        ("2 2 2 2 2 0", 2, 5, False),
    ],
)
def test_a_job_is_tried_again_or_queued_again(environ, codes, ended, attempts, requeued):
    assert _submit(environ, codes) == ended
    assert len(_noted(environ)) == 2 * attempts
    asked = pathlib.Path(environ["REQUEUED"])
    assert asked.exists() == requeued
    assert not requeued or asked.read_text() == "requeue 4711\n"
